//go:build ns

package logs

import (
	"crypto/rand"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cambium/internal/nstest"

	"golang.org/x/sys/unix"
)

// TestNSBundleLeavesRoom: a bundle that does not fit fails before the disk is full, says so, and leaves nothing.
func TestNSBundleLeavesRoom(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		c := collector(t)
		if err := unix.Mount("tmpfs", c.Dirs.Tmp(), "tmpfs", 0, "size=32m"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(c.Dirs.Tmp(), 0) })
		log, err := os.Create(filepath.Join(c.Dirs.SysLog(), "noise.log"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(log, rand.Reader, 64<<20); err != nil {
			t.Fatal(err)
		}
		if err := log.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Bundle(t.Context(), Selection{Types: "job"}, ""); err == nil ||
			!strings.Contains(err.Error(), "free some space") {
			t.Errorf("got %v, want an error that says what to do", err)
		}
		var st unix.Statfs_t
		if err := unix.Statfs(c.Dirs.Tmp(), &st); err != nil {
			t.Fatal(err)
		}
		if free := st.Bavail * uint64(st.Bsize); free < 31<<20 {
			t.Errorf("%d MiB free of 32", free>>20)
		}
		if left, err := os.ReadDir(c.Dirs.Tmp()); err != nil || len(left) != 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	})
}
