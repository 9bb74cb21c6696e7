// Package initrd builds initial RAM disks: archives with the kernel's first file system, and with the kernel modules
// that the first program loads.
package initrd

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Directories of kernel modules in the archive: modules that are always loaded, and modules that are loaded only if no
// root disk is found.
const (
	ModuleDir         = "modules"
	FallbackModuleDir = "fallback-modules"
)

// Archive is a cpio archive in the "newc" format. Missing parent directories are added. Bytes returns the first error
// of all calls.
type Archive struct {
	data  bytes.Buffer
	dirs  map[string]bool
	inode int
	err   error
}

// Dir adds directories.
func (a *Archive) Dir(names ...string) {
	for _, name := range names {
		name = clean(name)
		if name == "" || name == "." || a.dirs[name] {
			continue
		}
		a.Dir(path.Dir(name))
		if a.dirs == nil {
			a.dirs = map[string]bool{}
		}
		a.dirs[name] = true
		a.add(name, 0o40755, 0, 0, nil)
	}
}

// Console adds the device node that the kernel opens for the first program.
func (a *Archive) Console() {
	a.Dir("dev")
	a.add("dev/console", 0o20600, 5, 1, nil)
}

// File adds a file.
func (a *Archive) File(name string, data []byte, mode fs.FileMode) {
	name = clean(name)
	a.Dir(path.Dir(name))
	a.add(name, 0o100000|int(mode.Perm()), 0, 0, data)
}

// Copy adds a file of the host.
func (a *Archive) Copy(name, from string) {
	data, err := os.ReadFile(from)
	if err != nil {
		a.fail(err)
		return
	}
	a.File(name, data, 0o755)
}

// Modules adds the named kernel modules below dir to the directory "to", numbered in the order of names. Modules that
// are missing are built into the kernel.
func (a *Archive) Modules(to, dir string, names ...string) {
	found := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		name, isModule := strings.CutSuffix(filepath.Base(path), ".ko")
		if isModule && slices.Contains(names, name) {
			found[name] = path
		}
		return err
	})
	a.fail(err)
	a.Dir(to)
	for n, name := range names {
		if from, ok := found[name]; ok {
			a.Copy(fmt.Sprintf("%s/%02d-%s.ko", to, n, name), from)
		}
	}
}

// Bytes completes the archive and returns it.
func (a *Archive) Bytes() ([]byte, error) {
	a.add("TRAILER!!!", 0, 0, 0, nil)
	return a.data.Bytes(), a.err
}

func clean(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

func (a *Archive) fail(err error) {
	if a.err == nil {
		a.err = err
	}
}

func (a *Archive) add(name string, mode, major, minor int, content []byte) {
	a.inode++
	_, _ = fmt.Fprintf(&a.data, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		a.inode, mode, 0, 0, 1, 0, len(content), 0, 0, major, minor, len(name)+1, 0)
	a.data.WriteString(name + "\x00")
	a.pad()
	a.data.Write(content)
	a.pad()
}

func (a *Archive) pad() {
	for a.data.Len()%4 != 0 {
		a.data.WriteByte(0)
	}
}
