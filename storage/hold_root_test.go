//go:build root

package storage

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"cambium/settings"
)

// lockable reports whether another process, such as udev, could lock the disk now.
func lockable(t *testing.T, path string) bool {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
}

// TestRootDisksAreLockedUntilTheyAreMounted: between writing a table and mounting its partitions, udev must not make
// the kernel read it again, which removes the partitions for a moment.
func TestRootDisksAreLockedUntilTheyAreMounted(t *testing.T) {
	b := newBench(t, Options{})
	ephemeral, persistent := b.disk(512<<20, ""), b.disk(512<<20, "")
	watched, steps := ephemeral.Path, 0
	b.CrashPoint = func(name string) {
		steps++
		if lockable(t, watched) {
			t.Errorf("%s is not locked before %q", watched, name)
		}
	}
	b.ok(b.setupEphemeral(ephemeral.Path, nil))
	watched = persistent.Path
	b.records.disks["cid"] = settings.PersistentDisk{CID: "cid", Hint: settings.DiskHint{Path: persistent.Path}}
	b.ok(b.Mount(t.Context(), "cid"))
	if steps < 8 {
		t.Errorf("saw %d steps, want those of both disks", steps)
	}
	for _, path := range []string{ephemeral.Path, persistent.Path} {
		if !lockable(t, path) {
			t.Errorf("%s is still locked", path)
		}
	}
}

// TestRootEphemeralDiskIsReleasedAfterBoot: a boot may release the lock later, so that udev probes the ephemeral disk
// then, but only after success, since the next attempt needs the lock.
func TestRootEphemeralDiskIsReleasedAfterBoot(t *testing.T) {
	b := newBench(t, Options{})
	var later []func()
	b.AfterBoot = func(f func()) { later = append(later, f) }
	other := b.disk(512<<20, "persistent")
	if err := b.setupEphemeral(other.Path, nil); err == nil {
		t.Error("a persistent disk was taken")
	}
	if !lockable(t, other.Path) || len(later) != 0 {
		t.Errorf("a disk that was refused is locked, %d things are left for later", len(later))
	}
	good := b.disk(512<<20, "")
	b.ok(b.setupEphemeral(good.Path, nil))
	if lockable(t, good.Path) || len(later) != 1 {
		t.Fatalf("the disk is not locked, or %d things are left for later, want 1", len(later))
	}
	later[0]()
	if !lockable(t, good.Path) {
		t.Error("the disk is still locked")
	}
}
