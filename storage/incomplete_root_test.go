//go:build root

package storage

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cambium/internal/looptest"
	"cambium/platform/mount"
	"cambium/storage/persistent"
	"cambium/storage/record"
)

// halfCopied leaves both disks like cloudfoundry/bosh-agent during its copy: the new one is on record and contains a
// part. This agent had mounted both before.
func halfCopied(t *testing.T) (b *bench, old, fresh *looptest.Device) {
	t.Helper()
	b, old, fresh = migrating(t, 128<<20)
	write(t, filepath.Join(b.Dirs.StoreMigrationTarget(), "one"), "a part")
	b.records.mounted = "new"
	return b, old, fresh
}

func (b *bench) unmountAll() {
	b.t.Helper()
	for _, dir := range []string{b.Dirs.StoreMigrationTarget(), b.Dirs.Store()} {
		b.ok(mount.Unmount(ctx, dir))
	}
}

// nothingOnStore checks that no disk has become the store.
func (b *bench) nothingOnStore() {
	b.t.Helper()
	if got := mountedSource(b.t, b.Dirs.Store()); got != "" {
		b.t.Fatalf("store is %q, want nothing", got)
	}
}

// TestRootHalfCopyOfAnotherAgentIsNoStore: a disk mounted on the migration target does not become one that has been a
// store.
func TestRootHalfCopyOfAnotherAgentIsNoStore(t *testing.T) {
	accepts := []string{"'agent disk accept old --yes'", "'agent disk accept new --yes'"}
	for name, mounted := range map[string]bool{"after a reboot": false,
		"with the new disk on the migration target": true} {
		t.Run(name, func(t *testing.T) {
			b, old, fresh := halfCopied(t)
			if mounted {
				b.ok(mount.Unmount(ctx, b.Dirs.Store()))
			} else {
				b.unmountAll()
			}
			_, _, err := b.MountStore(ctx, false)
			b.fails(err, accepts...)
			b.fails(boot(b.disks()), accepts...)
			b.fails(b.Mount(ctx, "new"), accepts...)
			if mounted {
				b.fails(b.Migrate(ctx, "old", "new"), "mount_disk old")
			}
			b.nothingOnStore()
			b.ok(b.Record.Ask(record.Accept, "old", ""))
			b.ok(boot(b.disks()))
			b.onStoreIs(old, "old")
			b.ok(b.Mount(ctx, "new"))
			b.ok(b.Migrate(ctx, "old", "new"))
			b.onStoreIs(fresh, "new")
			if got := read(t, filepath.Join(b.Dirs.Store(), "one")); got != strings.Repeat("one", 1000) {
				t.Errorf("a file of the store is %.20q", got)
			}
		})
	}
	t.Run("the old disk is gone", func(t *testing.T) {
		b, _, fresh := halfCopied(t)
		b.ok(mount.Unmount(ctx, b.Dirs.Store()))
		delete(b.records.disks, "old")
		b.ok(boot(b.disks()))
		b.onStoreIs(fresh, "new")
		if got := mountedSource(t, b.Dirs.StoreMigrationTarget()); got != "" {
			t.Errorf("migration target is still %q", got)
		}
	})
	t.Run("accepted", func(t *testing.T) {
		b, _, fresh := halfCopied(t)
		b.unmountAll()
		b.ok(b.Record.Ask(record.Accept, "new", ""))
		b.ok(boot(b.disks()))
		b.onStoreIs(fresh, "new")
	})
}

// TestRootMarkedDiskIsNoStore: an interrupted copy identifies itself on any machine, whatever is on record there.
func TestRootMarkedDiskIsNoStore(t *testing.T) {
	for _, kind := range []string{"disk", "directory"} {
		t.Run(kind, func(t *testing.T) {
			var b *bench
			if kind == "disk" {
				b, _, _ = migrating(t, 128<<20)
			} else {
				b, _ = binding(t)
			}
			b.killedAt("verify", func() { _ = b.Migrate(ctx, "old", "new") })
			b.unmountAll()
			b.ok(os.Remove(b.Dirs.DiskRecord()))
			b.records.mounted = "new"
			for _, known := range []bool{true, false} {
				if !known {
					delete(b.records.disks, "old")
				}
				if known && kind == "disk" {
					b.fails(boot(b.disks()), "'agent disk accept new --yes'") // which of the two is not known
				} else {
					_, _, err := b.MountStore(ctx, false)
					b.fails(err, "incomplete copy of old", "'agent disk accept new --yes'")
					b.fails(boot(b.disks()), "incomplete copy of old", "Run mount_disk old", "'agent disk accept new --yes'")
				}
				b.nothingOnStore()
			}
			b.records.mounted = ""
			b.fails(b.Mount(ctx, "new"), "incomplete copy of old")
			b.nothingOnStore()
			b.ok(b.Record.Ask(record.Accept, "new", ""))
			b.ok(b.Mount(ctx, "new"))
			b.unmountAll()
			b.ok(boot(b.disks()))
			if got := read(t, filepath.Join(b.Dirs.Store(), "one")); got != strings.Repeat("one", 1000) ||
				b.records.mounted != "new" {
				t.Errorf("recorded %q, a file that was copied is %.20q", b.records.mounted, got)
			}
			if info, err := os.Stat(b.Dirs.Store()); err != nil || info.Mode().Perm() != 0o755 {
				t.Errorf("the store is %v, %v; want 0755", info.Mode(), err)
			}
		})
	}
}

// TestRootBusyDisksAreNamedBeforeTheCopy: processes that use the store or the new disk are reported and waited for
// while jobs can still write.
func TestRootBusyDisksAreNamedBeforeTheCopy(t *testing.T) {
	for name, c := range map[string]struct {
		keep func(t *testing.T, b *bench) (release func())
		want string
	}{
		"a mount inside the store": {func(t *testing.T, b *bench) func() {
			inner := filepath.Join(b.Dirs.Store(), "inner")
			b.ok(errors.Join(os.Mkdir(inner, 0o755), unix.Mount("tmpfs", inner, "tmpfs", 0, "")))
			return func() { b.ok(unix.Unmount(inner, 0)) }
		}, "store/inner"},
		"a process in the store": {func(t *testing.T, b *bench) func() {
			return startIn(t, b.Dirs.Store(), "sleep", "1000")
		}, "sleep (pid"},
		"a lock on the new disk": {func(t *testing.T, b *bench) func() {
			return startIn(t, "/", "flock", b.Dirs.StoreMigrationTarget(), "sh", "-c", "echo locked; sleep 1000")
		}, "flock (pid"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, _, fresh := migrating(t, 128<<20)
			release := c.keep(t, b)
			copied := false
			b.CrashPoint = func(name string) { copied = copied || name == "copy" }
			limited, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			ended := make(chan error, 1)
			go func() { ended <- b.Migrate(limited, "old", "new") }()
			for waiting := true; waiting; {
				select {
				case err := <-ended:
					b.fails(err, "is busy", c.want)
					waiting = false
				case <-time.After(50 * time.Millisecond):
					write(t, filepath.Join(b.Dirs.Store(), "writable"), "x")
				}
			}
			if copied {
				t.Error("the copy had begun")
			}
			write(t, filepath.Join(b.Dirs.Store(), "writable"), "x")
			release()
			b.ok(b.Migrate(ctx, "old", "new"))
			b.onStoreIs(fresh, "new")
		})
	}
}

// startIn starts a process of another user that prints a line or sleeps, and returns a function that ends it.
func startIn(t *testing.T, dir, name string, args ...string) (end func()) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	end = func() { _ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL); _ = cmd.Wait() }
	t.Cleanup(end)
	if name != "sleep" {
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	return end
}

// TestRootMigrateToADiskWithCoarseTimes: a timestamp that the new disk cannot store exactly is stored as well as
// possible, and reported.
func TestRootMigrateToADiskWithCoarseTimes(t *testing.T) {
	b := newBench(t, Options{})
	b.disk(64<<20, "old")
	b.ok(b.Mount(ctx, "old"))
	fresh := b.disk(64<<20, "new")
	part := partitioned(t, fresh, "label: gpt\nstart=2048, name=\"bosh-partition-0\"\n")
	tool(t, part, "mkfs.ext4", "-qF", "-I", "128", part)
	b.ok(b.Mount(ctx, "new"))
	dir, late := filepath.Join(b.Dirs.Store(), "dir"), filepath.Join(b.Dirs.Store(), "dir", "late")
	b.ok(os.Mkdir(dir, 0o755))
	write(t, late, "x")
	when := time.Date(2040, 1, 2, 3, 4, 5, 678, time.UTC)
	b.ok(errors.Join(os.Chtimes(late, when, when), os.Chtimes(dir, when, time.Unix(1e9, 1))))
	b.ok(b.Migrate(ctx, "old", "new"))
	b.onStoreIs(fresh, "new")
	for path, want := range map[string]time.Time{late: time.Unix(1<<31-1, 0), dir: time.Unix(1e9, 0)} {
		if info, err := os.Stat(path); err != nil || !info.ModTime().Equal(want) {
			t.Errorf("%s has time %v, %v; want %v", path, info.ModTime(), err, want)
		}
	}
	if !strings.Contains(b.log.String(), "the new disk cannot store some file times") ||
		!strings.Contains(b.log.String(), "dir") {
		t.Error("the log does not mention the changed times")
	}
}

// TestRootUnmountLeavesOtherDisks: unmount_disk unmounts its own disk, and never another one mounted over a bind mount
// of it.
func TestRootUnmountLeavesOtherDisks(t *testing.T) {
	b := newBench(t, Options{})
	b.disk(64<<20, "vol-1")
	other := b.disk(64<<20, "")
	tool(t, other.Path, "mkfs.ext4", "-qF", other.Path)
	b.ok(b.Mount(ctx, "vol-1"))
	dir := t.TempDir()
	b.ok(unix.Mount(b.Dirs.Store(), dir, "", unix.MS_BIND, ""))
	b.ok(unix.Mount(other.Path, dir, "ext4", 0, ""))
	t.Cleanup(func() { _, _ = unix.Unmount(dir, unix.MNT_DETACH), unix.Unmount(dir, unix.MNT_DETACH) })
	write(t, filepath.Join(dir, "open"), "x")
	later := t.TempDir()
	b.ok(unix.Mount(b.Dirs.Store(), later, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(later, unix.MNT_DETACH) })
	_, err := b.Unmount(ctx, "vol-1")
	b.fails(err, other.Path+" is mounted over it on "+dir)
	if got := mountedSource(t, dir); got != other.Path {
		t.Fatalf("%s is %q, want the other disk", dir, got)
	}
	if mountedSource(t, later) == "" || mountedSource(t, b.Dirs.Store()) == "" {
		t.Error("a call that was refused has unmounted something")
	}
	b.ok(unix.Unmount(dir, 0))
	b.unmounted("vol-1", "Unmounted partition of vol-1")
}

// TestRootMarkOfAJobIsNone: a job that creates a file with the name of the mark does not lose its store.
func TestRootMarkOfAJobIsNone(t *testing.T) {
	b, _, fresh := migrating(t, 128<<20)
	forged := filepath.Join(b.Dirs.Store(), persistent.MarkName)
	write(t, forged, `{"from":"other","to":"old"}`)
	b.ok(os.Chown(forged, 1234, 1234))
	b.reboot()
	b.ok(b.Mount(ctx, "new"))
	b.fails(b.Migrate(ctx, "old", "new"), persistent.MarkName, "rename that file")
	write(t, filepath.Join(b.Dirs.Store(), "writable"), "x")
	b.ok(os.Remove(forged))
	b.ok(b.Migrate(ctx, "old", "new"))
	b.onStoreIs(fresh, "new")
}

// TestRootMarkOfAnotherCopy: a disk with the mark of another copy is not taken for the beginning of this one.
func TestRootMarkOfAnotherCopy(t *testing.T) {
	b, _, _ := migrating(t, 128<<20)
	b.killedAt("verify", func() { _ = b.Migrate(ctx, "old", "new") })
	b.ok(boot(b.disks()))
	b.unmountAll()
	delete(b.records.disks, "old")
	other := b.disk(64<<20, "third")
	b.ok(b.Mount(ctx, "third"))
	b.ok(b.Mount(ctx, "new"))
	b.fails(b.Migrate(ctx, "third", "new"), "an incomplete copy of old, not of this third",
		"'agent disk accept new --yes'")
	b.onStoreIs(other, "third")
	b.ok(b.Record.Ask(record.Accept, "new", ""))
	b.ok(b.Mount(ctx, "new"))
	b.ok(b.Migrate(ctx, "third", "new"))
	if got := read(t, filepath.Join(b.Dirs.Store(), "one")); got != strings.Repeat("one", 1000) {
		t.Errorf("what was accepted is %.20q", got)
	}
}

// TestRootMigratesATopWithFlags: a store whose top directory is immutable or append-only can be migrated, even if an
// interrupted copy has already set that flag.
func TestRootMigratesATopWithFlags(t *testing.T) {
	for _, flag := range []string{"i", "a"} {
		t.Run(flag, func(t *testing.T) {
			b, _, _ := migrating(t, 128<<20)
			write(t, filepath.Join(b.Dirs.Store(), "file"), "precious")
			top := func(change, dir string) { tool(t, mountedSource(t, dir), "chattr", change+flag, dir) }
			top("+", b.Dirs.Store())
			b.killedAt("record new disk", func() { _ = b.Migrate(ctx, "old", "new") })
			b.unmountAll()
			b.ok(boot(b.disks()))
			b.ok(b.Mount(ctx, "new"))
			b.ok(b.Migrate(ctx, "old", "new"))
			b.lists("new")
			b.wantFile(b.Dirs.Store(), "precious")
			out := tool(t, mountedSource(t, b.Dirs.Store()), "lsattr", "-d", b.Dirs.Store())
			if flags, _, _ := strings.Cut(out, " "); !strings.Contains(flags, flag) {
				t.Errorf("the flags are %s, want %s among them", flags, flag)
			}
			top("-", b.Dirs.Store())
		})
	}
}
