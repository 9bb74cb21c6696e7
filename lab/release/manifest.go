package release

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"go.yaml.in/yaml/v3"
)

// Manifest is a small deployment manifest, in YAML or JSON.
type Manifest struct {
	Name   string  `yaml:"name"`
	Groups []Group `yaml:"instance_groups"`
	// Base is the directory of the manifest, to which paths are relative.
	Base string `yaml:"-"`
}

// Group is an instance group.
type Group struct {
	Name      string `yaml:"name"`
	Instances int    `yaml:"instances"` // 1 if missing
	// PersistentDisk and EphemeralDisk are in MiB. EphemeralDisk is 4096 if missing.
	PersistentDisk int64          `yaml:"persistent_disk"`
	EphemeralDisk  int64          `yaml:"ephemeral_disk"`
	Source         string         `yaml:"source"` // settings source of the machine
	Env            map[string]any `yaml:"env"`
	Jobs           []Job          `yaml:"jobs"`
	Packages       []Package      `yaml:"packages"`
}

// ReadManifest reads and checks a manifest. Unknown keys are errors, because they are probably misspelled.
func ReadManifest(path string) (Manifest, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Manifest{}, err
	}
	m, err := parseManifest(data)
	if err != nil {
		return m, fmt.Errorf("manifest %s: %w", path, err)
	}
	m.Base = filepath.Dir(path)
	return m, nil
}

// parseManifest decodes and checks a manifest.
func parseManifest(data []byte) (Manifest, error) {
	var m Manifest
	decode := yaml.NewDecoder(bytes.NewReader(data))
	decode.KnownFields(true)
	if err := decode.Decode(&m); err != nil {
		return m, err
	}
	return m, m.check()
}

func (m *Manifest) check() error {
	if m.Name == "" {
		return fmt.Errorf("name is missing")
	}
	if len(m.Groups) == 0 {
		return fmt.Errorf("instance_groups is empty")
	}
	seen := map[string]bool{}
	for n := range m.Groups {
		g := &m.Groups[n]
		if g.Name == "" || seen[g.Name] {
			return fmt.Errorf("instance_groups[%d]: name is missing or used twice", n)
		}
		seen[g.Name] = true
		if g.Instances == 0 {
			g.Instances = 1
		}
		if g.EphemeralDisk == 0 {
			g.EphemeralDisk = 4096
		}
		if g.Instances < 0 || g.Instances > 50 || g.EphemeralDisk < 0 || g.PersistentDisk < 0 {
			return fmt.Errorf("instance group %s: sizes and counts must be positive, instances at most 50", g.Name)
		}
		for _, j := range g.Jobs {
			if j.Name == "" {
				return fmt.Errorf("instance group %s: a job has no name", g.Name)
			}
		}
		for _, p := range g.Packages {
			if p.Name == "" {
				return fmt.Errorf("instance group %s: a package has no name", g.Name)
			}
		}
	}
	return nil
}

// WebManifest returns the manifest of the demo.
func WebManifest() Manifest {
	jobs, packages := web()
	return Manifest{Name: "demo", Groups: []Group{{Name: "web", Instances: 1, PersistentDisk: 1024, EphemeralDisk: 10240,
		Jobs: jobs, Packages: packages}}}
}
