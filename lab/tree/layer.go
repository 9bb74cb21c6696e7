package tree

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"cambium/internal/thread"
)

// Layer is a writable layer over a tree, stored in Dir.
type Layer struct {
	Tree string
	Dir  string
}

// upper returns the directory with the changes to the tree.
func (l Layer) upper() string { return filepath.Join(l.Dir, "upper") }

// Root returns the mount point of the layer. The mount exists only in the mount namespace that Mounted creates.
func (l Layer) Root() string { return filepath.Join(l.Dir, "root") }

func (l Layer) work() string { return filepath.Join(l.Dir, "work") }

// Make creates the directories.
func (l Layer) Make() error {
	for _, dir := range []string{l.upper(), l.work(), l.Root()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// Mounted calls f with the layer mounted. Only f and its child processes see the mount, so that a crash leaves none.
func (l Layer) Mounted(f func(root string) error) error {
	return thread.Run(func() error {
		if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("mount namespace: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("mount namespace: %w", err)
		}
		options := "lowerdir=" + l.Tree + ",upperdir=" + l.upper() + ",workdir=" + l.work()
		if err := unix.Mount("lab", l.Root(), "overlay", 0, options); err != nil {
			return fmt.Errorf("overlay on %s: %w", l.Root(), err)
		}
		return f(l.Root())
	})
}
