// Package initrd makes initial RAM disks: archives from which a kernel takes its first file
// system, and the kernel modules that the first program loads from there.
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

// Directories of kernel modules in the archive: those that are always loaded, and those that are loaded if no root disk is there then.
const (
	ModuleDir         = "modules"
	FallbackModuleDir = "fallback-modules"
)

// Archive is a cpio archive in the "newc" format. Directories on the way are made. The first
// error is kept and returned by Bytes.
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

// Console adds the node that the kernel opens for the first program.
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

// Copy adds a file of this host.
func (a *Archive) Copy(name, from string) {
	data, err := os.ReadFile(from)
	if err != nil {
		a.fail(err)
		return
	}
	a.File(name, data, 0o755)
}

// Modules adds to the directory "to" those of the named kernel modules that are below dir, in the order of the names;
// what is not there is built into the kernel.
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

// Bytes ends the archive.
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
