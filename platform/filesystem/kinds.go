package filesystem

import (
	"context"
	"os"

	"cambium/internal/command"
	"cambium/platform/filesystem/probe"
)

// managedKind is how one of the file systems is made, mounted and grown that the agent uses.
type managedKind struct {
	// lookFlags are the mount options, besides ro, with which nothing is written, not even a journal replayed.
	lookFlags []string
	// mkfs is the command without the device. It must not be interactive.
	mkfs func() command.Cmd
	// check repairs what needs no decision; nil where the kernel does that when it mounts.
	check func(ctx context.Context, device string, percent func(int)) error
	// finished reports whether the making of an unmounted file system was completed.
	finished func(ctx context.Context, device string, c probe.Content) (bool, error)
	// length is that of the mounted file system, in bytes.
	length func(device, dir *os.File) (int64, error)
	// grow extends the mounted file system to a length.
	grow func(dir *os.File, length int64) error
	// growUnmounted is for where the kernel lacks the capability; nil where it never does.
	growUnmounted func(ctx context.Context, device string) error
}

// managedKinds has a row for each kind that is probe.Kind.Managed.
var managedKinds = map[probe.Kind]managedKind{
	probe.Ext4: {lookFlags: []string{"noload"}, mkfs: mkfsExt4, check: checkExt4, finished: finishedExt4,
		length: lengthExt4, grow: growExt4, growUnmounted: growUnmountedExt4},
	probe.XFS: {lookFlags: []string{"norecovery", "nouuid"}, mkfs: mkfsXFS, finished: finishedXFS,
		length: lengthXFS, grow: growXFS},
}

// GrowsUnmounted reports a kind that can be grown while it is not mounted.
func GrowsUnmounted(kind probe.Kind) bool { return managedKinds[kind].growUnmounted != nil }
