package filesystem

import (
	"context"
	"io"
	"os"

	"cambium/platform/filesystem/probe"
)

// managedKind adds to package managedfs what the programs and the kernel do with a file system of that kind.
type managedKind struct {
	// repair mends what needs no decision, or all; nil where the kernel does that at a mount.
	repair func(ctx context.Context, device string, all bool, percent func(int)) error
	// finished reports whether the making of an unmounted file system was completed.
	finished func(ctx context.Context, device string, c probe.Content) (bool, error)
	// journal reports whether the journal of an unmounted file system may hold changes that are not replayed.
	journal func(r io.ReaderAt) (bool, error)
	// length returns the length of the mounted file system in bytes.
	length func(device, dir *os.File) (int64, error)
	// grow extends the mounted file system to a length.
	grow func(dir *os.File, length int64) error
	// growUnmounted is used where the kernel lacks the capability to grow a mounted one; nil where it never does.
	growUnmounted func(ctx context.Context, device string) error
}

// managedKinds has a row for each file system of package managedfs.
var managedKinds = map[probe.Kind]managedKind{
	probe.Ext4: {repair: repairExt4, finished: finishedExt4, journal: probe.ExtJournal, length: lengthExt4,
		grow: growExt4, growUnmounted: growUnmountedExt4},
	probe.XFS: {finished: finishedXFS, journal: probe.XFSJournal, length: lengthXFS, grow: growXFS},
}

// GrowsUnmounted reports a kind that can be grown while it is not mounted.
func GrowsUnmounted(kind probe.Kind) bool { return managedKinds[kind].growUnmounted != nil }
