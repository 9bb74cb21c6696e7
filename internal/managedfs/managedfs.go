// Package managedfs is the table of the file systems that the agent makes, mounts, checks and grows, with the
// properties of each that do not depend on a disk. Whatever deals with all of them ranges over it, tests included.
// How one is recognized is in platform/filesystem/probe, what the kernel does with one in platform/filesystem.
package managedfs

import (
	"fmt"
	"slices"
	"strings"
)

// FileSystem describes one file system of the table.
type FileSystem struct {
	// Name is the kernel's name, and a value of env.persistent_disk_fs.
	Name string
	// Package is the Debian package of its programs.
	Package string
	// Make is the command that makes a file system, with the device as a further argument. It does not ask, and does
	// not discard what it does not write: a device that was formatted by mistake keeps the rest of its content.
	Make []string
	// Check is the command that looks for errors of an unmounted file system, and changes nothing.
	Check []string
	// Repair is the command with which an operator repairs a file system that the kernel refuses: it makes decisions,
	// and asks.
	Repair string
	// Look lists the mount options, besides ro, that prevent every write, even the replay of a journal. Replay lists
	// those of a mount that does replay it.
	Look, Replay []string
}

// All lists the file systems; the first one is the default.
var All = []FileSystem{
	{Name: "ext4", Package: "e2fsprogs", Make: []string{"mkfs.ext4", "-q", "-F", "-E", "nodiscard"},
		Check: []string{"e2fsck", "-n", "-f"}, Repair: "e2fsck -f", Look: []string{"noload"}},
	{Name: "xfs", Package: "xfsprogs", Make: []string{"mkfs.xfs", "-q", "-f", "-K"},
		Check: []string{"xfs_repair", "-n"}, Repair: "xfs_repair", Look: []string{"norecovery", "nouuid"}, Replay: []string{"nouuid"}},
}

// Find returns the file system with a name.
func Find(name string) (FileSystem, bool) {
	i := slices.IndexFunc(All, func(f FileSystem) bool { return f.Name == name })
	if i < 0 {
		return FileSystem{}, false
	}
	return All[i], true
}

// Repairing says how to look at a damaged file system, and how to repair it.
func Repairing(look, repair string) string {
	return fmt.Sprintf("To look at it without writing, run '%s'. To repair it, take a snapshot of the disk first, then "+
		"run '%s'", look, repair)
}

// Damaged says the same of a file system whose first superblock is good.
func (f FileSystem) Damaged(device string) string {
	return Repairing(strings.Join(append(f.Check, device), " "), f.Repair+" "+device)
}

// Names returns the names of all file systems.
func Names() []string { return each(func(f FileSystem) string { return f.Name }) }

// Packages returns the Debian packages with the programs of all file systems.
func Packages() []string { return each(func(f FileSystem) string { return f.Package }) }

func each(of func(FileSystem) string) (texts []string) {
	for _, f := range All {
		texts = append(texts, of(f))
	}
	return texts
}
