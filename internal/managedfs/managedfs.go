// Package managedfs is the table of the file systems that the agent makes, mounts, checks and grows, with their
// properties. All code that handles them, tests included, iterates over it. platform/filesystem/probe recognizes them;
// platform/filesystem mounts and grows them.
package managedfs

import (
	"fmt"
	"slices"
	"strings"
)

// FileSystem is a row of the table.
type FileSystem struct {
	// Name is the kernel's name, and a value of env.persistent_disk_fs.
	Name string
	// Package is the Debian package with its programs.
	Package string
	// Make is the command that makes a file system; the device is appended. It does not ask, and does not discard
	// blocks: if a device is formatted by mistake, the rest of its content remains.
	Make []string
	// Check is the command that checks an unmounted file system without changing it.
	Check []string
	// Repair is the command by which an operator repairs a file system that the kernel refuses to mount. It is
	// interactive.
	Repair string
	// Look lists the mount options, in addition to ro, that prevent every write, even a journal replay. Replay lists
	// those for a mount that replays the journal.
	Look, Replay []string
}

// All is the table. The first file system is the default.
var All = []FileSystem{
	{Name: "ext4", Package: "e2fsprogs", Make: []string{"mkfs.ext4", "-q", "-F", "-E", "nodiscard"},
		Check: []string{"e2fsck", "-n", "-f"}, Repair: "e2fsck -f", Look: []string{"noload"}},
	{Name: "xfs", Package: "xfsprogs", Make: []string{"mkfs.xfs", "-q", "-f", "-K"},
		Check: []string{
			"xfs_repair",
			"-n",
		}, Repair: "xfs_repair", Look: []string{"norecovery", "nouuid"}, Replay: []string{"nouuid"}},
}

// Find returns the file system with the name.
func Find(name string) (FileSystem, bool) {
	i := slices.IndexFunc(All, func(f FileSystem) bool { return f.Name == name })
	if i < 0 {
		return FileSystem{}, false
	}
	return All[i], true
}

// RepairAdvice returns advice on how to examine and repair a damaged file system.
func RepairAdvice(look, repair string) string {
	return fmt.Sprintf(
		"To look at it without writing, run '%s'. To repair it, take a snapshot of the disk first, then "+
			"run '%s'",
		look,
		repair,
	)
}

// DamageAdvice returns the same advice for a file system that still has a valid superblock.
func (f FileSystem) DamageAdvice(device string) string {
	return RepairAdvice(strings.Join(append(f.Check, device), " "), f.Repair+" "+device)
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
