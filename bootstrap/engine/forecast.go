package engine

import (
	"fmt"
	"strings"
)

// Forecast is what earlier steps of a plan will leave, as far as later ones depend on it.
type Forecast struct {
	step        string              // that is being planned
	planned     map[string][]Change // by step
	directories []string
	mounts      []Mount  // in the order of mounting
	warnings    []string // of the step that is being planned
	notes       []string // of the step that is being planned
}

// Mount is a file system that a step will mount.
type Mount struct {
	Step, Path string
	// Empty means that the file system is new. Otherwise it carries what earlier boots left on it,
	// which cannot be seen before it is mounted.
	Empty bool
}

// Warn adds what the boot would warn of.
func (f *Forecast) Warn(format string, args ...any) {
	f.warnings = append(f.warnings, OneLine(fmt.Sprintf(format, args...)))
}

// Note adds what is worth knowing though the boot does not do it.
func (f *Forecast) Note(format string, args ...any) {
	f.notes = append(f.notes, OneLine(fmt.Sprintf(format, args...)))
}

// Planned are the changes of an earlier step.
func (f *Forecast) Planned(step string) []Change { return f.planned[step] }

// AddMount says that the step being planned will mount a file system.
func (f *Forecast) AddMount(path string, empty bool) {
	f.mounts = append(f.mounts, Mount{Step: f.step, Path: path, Empty: empty})
}

// AddDirectory says that there will be a directory after the step being planned.
func (f *Forecast) AddDirectory(path string) { f.directories = append(f.directories, path) }

// Directories are those that will be there after earlier steps.
func (f *Forecast) Directories() []string { return f.directories }

// Hidden returns the mount that will hide what is at path now, the last one if there are several.
func (f *Forecast) Hidden(path string) (m Mount, hidden bool) {
	for _, candidate := range f.mounts {
		if strings.HasPrefix(path, candidate.Path+"/") {
			m, hidden = candidate, true
		}
	}
	return m, hidden
}
