//go:build root

package storage

import (
	"context"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"cambium/internal/looptest"
	"cambium/platform/device"
	"cambium/platform/mount"
)

// hanging is a resolver that hangs for one disk.
type hanging struct{ Resolver }

func (hanging) ResolveOnce(device.Hint) (device.Device, error) { select {} }

// TestRootListWaitsForNothing: list_disk answers while an attached, unmounted disk hangs and while mount_disk waits,
// even after the agent was restarted.
func TestRootListWaitsForNothing(t *testing.T) {
	b := newBench(t, Options{})
	b.disk(64<<20, "vol-1")
	b.disk(64<<20, "vol-2")
	b.ok(b.Mount(ctx, "vol-1"))
	b.ok(b.Mount(ctx, "vol-2"))
	find := b.Persistent.Resolver
	stop := func() {
		b.Persistent.Resolver = hanging{}
		b.Reload = func(context.Context) error { select {} }
		b.ok(b.Machine.Lock(ctx)) // as a mount_disk that waits
	}
	resume := func() {
		b.Machine.Unlock()
		b.Persistent.Resolver, b.Reload = find, func(context.Context) error { return nil }
	}
	stop()
	b.lists("vol-1", "vol-2")
	b.ok(mount.Unmount(ctx, b.Dirs.StoreMigrationTarget()))
	b.lists("vol-1")
	resume()
	b.ok(b.Mount(ctx, "vol-2"))

	// A new process: boot has not looked yet, and the record names the store.
	b.restart()
	find = b.Persistent.Resolver
	stop()
	b.lists("vol-1")
	resume()
	b.ok(boot(b.disks()))
	stop()
	b.lists("vol-1", "vol-2")
	resume()
	b.unmounted("vol-1", "Unmounted partition of vol-1")
	b.lists("vol-2")
	b.unmounted("vol-2", "Unmounted partition of vol-2")
	b.lists()
}

// restart returns a new agent with the same directories.
func (b *bench) restart() {
	former := b.Persistent
	d := New(Config{Dirs: b.Dirs, Resolver: former.Resolver.(Resolver), Known: b.records, Program: "/proc/self/exe",
		Log: b.Machine.Log, Options: Options{BindMountPersistentDisk: former.BindMounted,
			UsePreformattedPersistentDisk: former.Preformatted}})
	d.Persistent.Machine.Memory, d.Persistent.Machine.InContainer = b.Memory, b.InContainer
	b.Machine, b.Ephemeral, b.Persistent, b.Migration = d.Persistent.Machine, d.Ephemeral, d.Persistent, d.Migration
}

// TestRootListNamesWhatIsMounted: other mounts on the store are not disks, and a bind-mounted directory counts only
// where it was mounted.
func TestRootListNamesWhatIsMounted(t *testing.T) {
	b := newBench(t, Options{BindMountPersistentDisk: true})
	one, two := t.TempDir(), t.TempDir()
	b.attach("vol-1", one)
	b.attach("vol-2", two)
	b.ok(b.Mount(ctx, "vol-1"))
	b.lists("vol-1")
	b.ok(b.Mount(ctx, "vol-2"))
	b.lists("vol-1", "vol-2")
	b.unmounted("vol-1", "Unmounted partition of vol-1")
	b.lists("vol-2")
	b.unmounted("vol-2", "Unmounted partition of vol-2")

	b = newBench(t, Options{})
	b.disk(64<<20, "vol-1")
	b.ok(b.Mount(ctx, "vol-1"))
	b.ok(mount.Unmount(ctx, b.Dirs.Store()))
	b.ok(unix.Mount("tmpfs", b.Dirs.Store(), "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { _ = unix.Unmount(b.Dirs.Store(), unix.MNT_DETACH) })
	b.lists()
	b.restart()
	b.lists()
	if err := boot(b.disks()); err == nil {
		t.Error("the boot takes a tmpfs for the store")
	}
	b.lists()
}

// TestRootPluggedInAgainWhileMounted: a disk that was unplugged while mounted and plugged in again is another device.
// unmount_disk removes the remains of the first one, even after the agent was restarted.
func TestRootPluggedInAgainWhileMounted(t *testing.T) {
	for name, restarts := range map[string]bool{"the same agent": false, "a new agent": true} {
		for dir, fill := range map[string]bool{"store": false, "migration target": true} {
			if restarts && fill {
				continue // whether a device is gone only a VM shows
			}
			t.Run(name+", "+dir, func(t *testing.T) {
				b := newBench(t, Options{})
				if fill {
					b.disk(64<<20, "vol-0")
					b.ok(b.Mount(ctx, "vol-0"))
				}
				first := b.disk(64<<20, "vol-1")
				b.ok(b.Mount(ctx, "vol-1"))
				at := mountedOn(t, first.Path+"p1")
				write(t, filepath.Join(at, "file"), "precious")
				again := looptest.Attach(t, first.Image)
				b.attach("vol-1", again.Path)
				if restarts {
					b.restart()
					_ = boot(b.disks())
				}
				b.fails(b.Mount(ctx, "vol-1"), "it is mounted on "+at, "run unmount_disk vol-1 first")
				b.unmounted("vol-1", "Unmounted partition of vol-1")
				if where := mountedOn(t, first.Path+"p1"); where != "" {
					t.Errorf("the first device is still mounted on %s", where)
				}
				b.ok(b.Mount(ctx, "vol-1"))
				if got := read(t, filepath.Join(mountedOn(t, again.Path+"p1"), "file")); got != "precious" {
					t.Errorf("the file holds %q", got)
				}
			})
		}
	}
}

// mountedOn returns the mount point of a device, or "".
func mountedOn(t *testing.T, path string) string {
	t.Helper()
	all, err := mount.Of(numberOf(t, path))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		return e.Target
	}
	return ""
}
