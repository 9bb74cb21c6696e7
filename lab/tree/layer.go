package tree

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"cambium/internal/thread"
)

// Layer is a writable layer over a tree, kept in Dir.
type Layer struct {
	Tree string
	Dir  string
}

// upper is the directory that holds what differs from the tree.
func (l Layer) upper() string { return filepath.Join(l.Dir, "upper") }

// Root returns the mount point of the layer. The mount is visible only in the mount namespace that Mounted makes.
func (l Layer) Root() string { return filepath.Join(l.Dir, "root") }

func (l Layer) work() string { return filepath.Join(l.Dir, "work") }

// Make makes the directories.
func (l Layer) Make() error {
	for _, dir := range []string{l.upper(), l.work(), l.Root()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// Mounted calls f with the layer mounted, in a mount namespace that only f, and what f starts,
// can see: a crash leaves no mount behind.
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
