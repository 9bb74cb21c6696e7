package filesystem

import (
	"context"
	"io"
	"os"

	"cambium/platform/filesystem/probe"
)

// managedKind adds to package managedfs how programs and the kernel handle one kind of file system.
type managedKind struct {
	// repair repairs errors: those that need no decision, or all. It is nil if the kernel does that when it mounts.
	repair func(ctx context.Context, device string, all bool, percent func(int)) error
	// finished reports whether an unmounted file system was created completely.
	finished func(ctx context.Context, device string, c probe.Content) (bool, error)
	// journal reports whether the journal of an unmounted file system may contain changes to replay.
	journal func(r io.ReaderAt) (bool, error)
	// length returns the size of the mounted file system in bytes.
	length func(device, dir *os.File) (int64, error)
	// grow grows the mounted file system to a size in bytes.
	grow func(dir *os.File, length int64) error
	// growUnmounted grows an unmounted file system, for sandboxes where the kernel does not permit it while mounted. It
	// is nil if that is not supported.
	growUnmounted func(ctx context.Context, device string) error
}

// managedKinds has a row for each file system of package managedfs.
var managedKinds = map[probe.Kind]managedKind{
	probe.Ext4: {repair: repairExt4, finished: finishedExt4, journal: probe.ExtJournal, length: lengthExt4,
		grow: growExt4, growUnmounted: growUnmountedExt4},
	probe.XFS: {finished: finishedXFS, journal: probe.XFSJournal, length: lengthXFS, grow: growXFS},
}

// GrowsUnmounted reports whether file systems of this kind can be grown while they are not mounted.
func GrowsUnmounted(kind probe.Kind) bool { return managedKinds[kind].growUnmounted != nil }
