package filesystem

import (
	"context"
	"os"
	"slices"
	"strings"

	"cambium/internal/command"
)

// managedKind is everything that is specific to one file system that the agent makes, mounts and grows.
type managedKind struct {
	kind      Kind
	mountType string
	// lookFlags are the mount options, besides ro, with which nothing is written, not even a journal replayed.
	lookFlags []string
	// mkfs is the command without the device. It must not be interactive.
	mkfs func() command.Cmd
	// check repairs what needs no decision; nil where the kernel does that when it mounts.
	check func(ctx context.Context, device string, percent func(int)) error
	// finished reports whether the making of an unmounted file system was completed.
	finished func(ctx context.Context, device string, c Content) (bool, error)
	// length is that of the mounted file system, in bytes.
	length func(device, dir *os.File) (int64, error)
	// grow extends the mounted file system to a length.
	grow func(dir *os.File, length int64) error
	// growUnmounted is for where the kernel lacks the capability; nil where it never does.
	growUnmounted func(ctx context.Context, device string) error
}

// managedKinds are the file systems that the agent uses. A new one is a row here, its functions, a signature, and a
// reader of its superblock in readers.
var managedKinds = []managedKind{
	{kind: Ext4, mountType: "ext4", lookFlags: []string{"noload"}, mkfs: mkfsExt4, check: checkExt4, finished: finishedExt4, length: lengthExt4, grow: growExt4, growUnmounted: growUnmountedExt4},
	{kind: XFS, mountType: "xfs", lookFlags: []string{"norecovery", "nouuid"}, mkfs: mkfsXFS, finished: finishedXFS, length: lengthXFS, grow: growXFS},
}

func managed(k Kind) (managedKind, bool) {
	for _, m := range managedKinds {
		if m.kind == k {
			return m, true
		}
	}
	return managedKind{}, false
}

// Managed reports a file system that the agent can make, mount and grow.
func (k Kind) Managed() bool {
	_, ok := managed(k)
	return ok
}

// ExtOrXFS reports what shows that ext or xfs is or was there, a damaged one included.
func (k Kind) ExtOrXFS() bool {
	return slices.Contains([]Kind{extFamily, Ext2, Ext3, Ext4, JBD, XFS, Unknown}, k)
}

// GrowsUnmounted reports a kind that can be grown while it is not mounted.
func (k Kind) GrowsUnmounted() bool {
	m, ok := managed(k)
	return ok && m.growUnmounted != nil
}

// MountType is what mount(2) calls it.
func (k Kind) MountType() string {
	if m, ok := managed(k); ok {
		return m.mountType
	}
	return string(k)
}

// ManagedNames lists the managed kinds for messages.
func ManagedNames() string {
	var names []string
	for _, m := range managedKinds {
		names = append(names, string(m.kind))
	}
	return strings.Join(names, " and ")
}

// BootSector reports a kind whose first sector may end like a DOS partition table.
func (k Kind) BootSector() bool {
	switch k {
	case FAT, NTFS, ExFAT, BitLocker, XFS, Ext2, Ext3, Ext4:
		return true
	}
	return false
}
