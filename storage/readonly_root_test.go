//go:build root

package storage

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRootRecordCannotBeWritten: a store on record is mounted even if the bosh directory is full or read-only.
func TestRootRecordCannotBeWritten(t *testing.T) {
	for name, options := range map[string]string{"read-only": "size=1m", "full": "size=64k"} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, Options{})
			dev := b.disk(400<<20, "vol-1")
			b.ok(b.Mount(ctx, "vol-1"))
			write(t, filepath.Join(b.Dirs.Store(), "data"), "precious")
			b.unmounted("vol-1", "Unmounted partition of vol-1")
			before := read(t, b.Dirs.DiskRecord())
			b.ok(unix.Mount("tmpfs", b.Dirs.Bosh(), "tmpfs", 0, options))
			t.Cleanup(func() { _ = unix.Unmount(b.Dirs.Bosh(), unix.MNT_DETACH) })
			for _, onRecord := range []bool{true, false} { // the disk, which has grown since; otherwise another agent's record is there
				if onRecord {
					write(t, b.Dirs.DiskRecord(), before)
					dev.Grow(t, 700<<20)
				} else {
					b.ok(unix.Mount("", b.Dirs.Bosh(), "", unix.MS_REMOUNT, "size=1m"))
					b.ok(os.Remove(b.Dirs.DiskRecord()))
				}
				if name == "read-only" {
					b.ok(unix.Mount("", b.Dirs.Bosh(), "", unix.MS_REMOUNT|unix.MS_RDONLY, options))
				} else {
					fill(t, filepath.Join(b.Dirs.Bosh(), "filler"))
				}
				b.log.Reset()
				b.ok(boot(b.disks()))
				if got := read(t, filepath.Join(b.Dirs.Store(), "data")); got != "precious" {
					t.Errorf("on record %v: data is %q", onRecord, got)
				}
				if !strings.Contains(b.log.String(), "cannot write the disk record") {
					t.Errorf("on record %v: no warning in the log", onRecord)
				}
				b.unmounted("vol-1", "Unmounted partition of vol-1")
			}
		})
	}
}

// fill fills up a small file system.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
}
