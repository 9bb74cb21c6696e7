//go:build root

package storage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cambium/internal/looptest"
	"cambium/platform/mount"
	"cambium/settings"
)

func init() {
	flows["boot"] = func(d Disks, _ job) error { return boot(d) }
	flows["migrate"] = func(d Disks, j job) error {
		if err := boot(d); err != nil {
			return err
		}
		// The Director asks which disk is there before it goes on.
		if on, err := d.Persistent.Known.ManagedCID(); err != nil || on != "new" {
			if err := errors.Join(d.Persistent.Mount(ctx, "old"), d.Persistent.Mount(ctx, "new")); err != nil {
				return err
			}
		}
		return d.Migration.Migrate(ctx, "old", "new")
	}
}

// migrating returns a machine with a filled disk on the store and a blank one on the migration target, each with mount
// options.
func migrating(t *testing.T, size int64) (*bench, *looptest.Device, *looptest.Device) {
	t.Helper()
	b := newBench(t, Options{})
	old, fresh := b.disk(64<<20, "old"), b.disk(size, "new")
	for cid, option := range map[string]string{"old": "nodev", "new": "noatime"} {
		p := b.records.disks[cid]
		p.MountOptions = []string{option}
		b.records.disks[cid] = p
	}
	b.ok(b.Mount(ctx, "old"))
	for _, name := range []string{"one", "two", "three"} {
		write(t, filepath.Join(b.Dirs.Store(), name), strings.Repeat(name, 1000))
	}
	b.ok(b.Mount(ctx, "new"))
	return b, old, fresh
}

func TestRootMigrate(t *testing.T) {
	b, _, fresh := migrating(t, 128<<20)
	sum := treeSum(t, b.Dirs.Store())
	var progress []string
	var readOnly []bool
	b.Migration.Progress = func(p MigrationProgress) {
		var st unix.Statfs_t
		b.ok(unix.Statfs(b.Dirs.Store(), &st))
		progress, readOnly = append(progress, p.String()), append(readOnly, st.Flags&unix.ST_RDONLY != 0)
	}
	modes := map[string]os.FileMode{}
	b.CrashPoint = func(name string) {
		if info, err := os.Stat(b.Dirs.StoreMigrationTarget()); err == nil {
			modes[name] = info.Mode().Perm()
		}
	}
	b.ok(b.Migrate(ctx, "", ""))
	// While it is a target, only root gets into a disk.
	if modes["copy"] != 0o700 || modes["verify"] != 0o700 {
		t.Errorf("the migration target has the modes %v, want 0700", modes)
	}
	// A store that is read-only without a migration is a problem to agent status.
	if n := len(readOnly); n < 2 || readOnly[0] || !readOnly[1] || readOnly[n-1] {
		t.Errorf("the store is read-only at %v of %q", readOnly, progress)
	}
	if n := len(progress); n < 6 || !strings.HasPrefix(progress[2], "copy: 5 files") ||
		!strings.HasPrefix(progress[n-2], "verify: 5 files") || progress[n-1] != "" {
		t.Errorf("progress %q", progress)
	}
	if !strings.Contains(b.log.String(), "the copy, read back from the new disk, is what was read from the old one") {
		t.Error("the log does not say what was compared")
	}
	e, ok, err := mount.At(b.Dirs.Store())
	if err != nil || !ok || e.Source != fresh.Path+"p1" {
		t.Errorf("store is %+v, %v; want the new disk", e, err)
	}
	if got := treeSum(t, b.Dirs.Store()); got != sum {
		t.Error("the files are not the same")
	}
	if got := mountedSource(t, b.Dirs.StoreMigrationTarget()); got != "" {
		t.Errorf("migration target is still %q", got)
	}
	if b.records.mounted != "new" {
		t.Errorf("recorded %q, want new", b.records.mounted)
	}
	write(t, filepath.Join(b.Dirs.Store(), "after"), "x")
	// The Director may repeat it, and then goes on with the old disk.
	b.ok(b.Migrate(ctx, "", ""))
	b.unmounted("old", "Partition of old is not mounted")
	b.ok(b.Remove(ctx, "old"))
	if b.records.mounted != "new" {
		t.Errorf("removing the old disk changed the record to %q", b.records.mounted)
	}
	b.unmounted("new", "Unmounted partition of new")
	tool(t, fresh.Path, "e2fsck", "-nf", fresh.Path+"p1")
}

// TestRootReaderDuringMigration: a process that begins to read during the copy does not prevent its end.
func TestRootReaderDuringMigration(t *testing.T) {
	b, old, _ := migrating(t, 128<<20)
	limited, cancel := context.WithCancel(ctx)
	b.CrashPoint = func(name string) {
		if name == "unmount old store" {
			f, err := os.Open(filepath.Join(b.Dirs.Store(), "one"))
			b.ok(err)
			t.Cleanup(func() { _ = f.Close() })
			time.AfterFunc(50*time.Millisecond, cancel)
		}
	}
	b.fails(b.Migrate(limited, "", ""), "is busy")
	cancel()
	b.onStoreIs(old, "old")
}

// TestRootD03UnreadableFilesEndAMigration: an unreadable file fails the migration, and nothing has changed. Once the
// file is readable, the migration succeeds.
func TestRootD03UnreadableFilesEndAMigration(t *testing.T) {
	b, old, fresh := migrating(t, 128<<20)
	// A file whose blocks lie after the end of the image cannot be read.
	big := filepath.Join(b.Dirs.Store(), "big")
	b.ok(os.WriteFile(big, make([]byte, 20<<20), 0o600))
	b.ok(exec.Command("sync").Run())
	b.ok(os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0))
	info, err := os.Stat(old.Image)
	b.ok(err)
	b.ok(os.Truncate(old.Image, 30<<20))
	err = b.Migrate(ctx, "", "")
	b.ok(os.Truncate(old.Image, info.Size()))
	b.fails(err, "migrate disk", `"big"`, "read")
	if !errors.Is(err, unix.EIO) {
		t.Errorf("error %v, want that of the disk", err)
	}
	b.onStoreIs(old, "old")
	sum := treeSum(t, b.Dirs.Store())
	b.ok(b.Migrate(ctx, "", ""))
	if got := treeSum(t, b.Dirs.Store()); got != sum {
		t.Error("the files are not the same")
	}
	b.onStoreIs(fresh, "new")
}

// TestRootD08MountOptionsSurviveAMigration: mount options are in effect in all phases: the old disk's while it is
// read-only and after a failure, the new disk's once it has replaced the old one.
func TestRootD08MountOptionsSurviveAMigration(t *testing.T) {
	b, old, fresh := migrating(t, 128<<20)
	want := func(when string, dev *looptest.Device, options string) {
		t.Helper()
		e, _, err := mount.At(b.Dirs.Store())
		b.ok(err)
		readOnly := strings.Contains(","+e.Options+","+e.Super+",", ",ro,")
		for _, option := range strings.Split(options, ",") {
			if has := strings.Contains(","+e.Options+",", ","+option+",") || option == "ro" && readOnly ||
				option == "rw" && !readOnly; !has || e.Source != dev.Path+"p1" {
				t.Errorf("%s: store is %+v, want %s with %s", when, e, dev.Path, options)
			}
		}
	}
	stop, cancel := context.WithCancel(ctx)
	defer cancel()
	b.CrashPoint = func(name string) {
		if name == "copy" {
			want("while it is copied", old, "nodev,ro")
			cancel()
		}
	}
	b.fails(b.Migrate(stop, "", ""), "canceled")
	want("after a failure", old, "nodev,rw")
	b.CrashPoint = func(string) {}
	b.ok(b.Migrate(ctx, "", ""))
	want("afterwards", fresh, "noatime,rw")
}

// TestRootD09PrivateNamespacesDoNotPin: a service with a private mount namespace has its own copy of the store's mount.
// It neither blocks the migration nor keeps the old disk in use.
func TestRootD09PrivateNamespacesDoNotPin(t *testing.T) {
	b, old, fresh := migrating(t, 128<<20)
	service := exec.Command("sleep", "1000")
	service.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	b.ok(service.Start())
	t.Cleanup(func() { _ = service.Process.Kill(); _ = service.Wait() })
	b.CrashPoint = func(name string) {
		if name != "record new disk" && name != "copy" {
			return
		}
		// The copy in the service's namespace must not be written to while it is read, nor keep the old disk.
		table := read(t, fmt.Sprintf("/proc/%d/mountinfo", service.Process.Pid))
		for _, line := range strings.Split(table, "\n") {
			if strings.Contains(line, old.Path+"p1 ") &&
				(name != "copy" || !strings.HasPrefix(line[strings.Index(line, " - "):], " - ext4 "+old.Path+"p1 ro")) {
				t.Errorf("before %q the service has %s", name, line)
			}
		}
	}
	b.ok(b.Migrate(ctx, "", ""))
	if got := mountedSource(t, b.Dirs.Store()); got != fresh.Path+"p1" {
		t.Errorf("store is %q, want the new disk", got)
	}
	b.ok(mount.AwaitIdle(ctx, old.Path+"p1"))
}

// binding is like migrating, for directories. It returns the old one.
func binding(t *testing.T) (*bench, string) {
	t.Helper()
	b := newBench(t, Options{BindMountPersistentDisk: true, UsePreformattedPersistentDisk: true})
	old, fresh := t.TempDir(), t.TempDir()
	b.records.disks["old"] = settings.PersistentDisk{CID: "old", Hint: settings.DiskHint{Path: old}}
	b.records.disks["new"] = settings.PersistentDisk{CID: "new", Hint: settings.DiskHint{Path: fresh}}
	t.Cleanup(func() {
		_ = unix.Unmount(b.Dirs.StoreMigrationTarget(), unix.MNT_DETACH)
		_ = unix.Unmount(b.Dirs.Store(), unix.MNT_DETACH)
	})
	write(t, filepath.Join(old, "one"), strings.Repeat("one", 1000))
	b.ok(b.Mount(ctx, "old"))
	b.ok(b.Mount(ctx, "new"))
	return b, old
}

// TestRootMigrateChangingSource: the store cannot be changed during the copy. A bind-mounted one can be changed through
// other mounts, which is detected.
func TestRootMigrateChangingSource(t *testing.T) {
	closed := func(t *testing.T, b *bench) {
		t.Helper()
		tried := 0
		b.CrashPoint = func(name string) {
			if name != "copy" && name != "verify" && name != "unmount old store" {
				return
			}
			tried++
			for what, err := range map[string]error{
				"add":    os.WriteFile(filepath.Join(b.Dirs.Store(), "added"), nil, 0o600),
				"change": os.WriteFile(filepath.Join(b.Dirs.Store(), "one"), []byte("x"), 0o600),
				"delete": os.Remove(filepath.Join(b.Dirs.Store(), "one")),
			} {
				if !errors.Is(err, unix.EROFS) {
					t.Errorf("before %q: %s: %v, want a read-only file system", name, what, err)
				}
			}
		}
		sum := treeSum(t, b.Dirs.Store())
		b.ok(b.Migrate(ctx, "", ""))
		if tried != 3 {
			t.Errorf("tried %d times to write, want 3", tried)
		}
		if got := treeSum(t, b.Dirs.Store()); got != sum || b.records.mounted != "new" {
			t.Errorf("recorded %q, the files are the same: %v", b.records.mounted, got == sum)
		}
		write(t, filepath.Join(b.Dirs.Store(), "after"), "x")
	}
	t.Run("disk", func(t *testing.T) {
		b, _, _ := migrating(t, 128<<20)
		closed(t, b)
	})
	t.Run("directory", func(t *testing.T) {
		b, _ := binding(t)
		closed(t, b)
	})
	t.Run("directory, with a writer", func(t *testing.T) {
		b, _ := binding(t)
		f, err := os.OpenFile(filepath.Join(b.Dirs.Store(), "one"), os.O_RDWR, 0)
		b.ok(err)
		defer f.Close()
		limited, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		b.fails(b.Migrate(limited, "", ""), "is busy", fmt.Sprintf("pid %d", os.Getpid()))
		write(t, filepath.Join(b.Dirs.Store(), "two"), "still writable")
	})
	large := strings.Repeat("0123456789abcdef", 6<<16)
	for _, c := range []struct {
		name   string
		change func(dir string) error
	}{
		{"another content of the same size and time in a large file", func(dir string) error {
			return rewrite(filepath.Join(dir, "large"), 5<<20, 'A')
		}},
		{"deleted", func(dir string) error { return os.Remove(filepath.Join(dir, "sub", "file")) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, old := binding(t)
			b.ok(os.Mkdir(filepath.Join(old, "sub"), 0o750))
			write(t, filepath.Join(old, "sub", "file"), "x")
			write(t, filepath.Join(old, "large"), large)
			changed := false
			b.CrashPoint = func(name string) {
				if name == "verify" && !changed {
					b.ok(c.change(old))
					changed = true
				}
			}
			b.fails(b.Migrate(ctx, "", ""), "differs in")
			if same, err := sameDir(old, b.Dirs.Store()); err != nil || !same || b.records.mounted != "old" {
				t.Errorf("recorded %q, the store is the old directory: %v (%v)", b.records.mounted, same, err)
			}
			write(t, filepath.Join(b.Dirs.Store(), "writable"), "x")
			b.ok(b.Migrate(ctx, "", "")) // it keeps still
			if got, want := treeSum(t, b.Dirs.Store()), treeSum(t, old); got != want {
				t.Error("the new store is not what the old one was in the end")
			}
			if same, err := sameDir(old, b.Dirs.Store()); err != nil || same || b.records.mounted != "new" {
				t.Errorf("recorded %q, the store is still the old directory: %v (%v)", b.records.mounted, same, err)
			}
		})
	}
}

// rewrite changes one byte of a file and restores its time.
func rewrite(path string, at int64, to byte) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte{to}, at)
	return errors.Join(err, f.Close(), os.Chtimes(path, info.ModTime(), info.ModTime()))
}

// TestRootMigrateBindMountedInterrupted: after a crash, the store is writable again.
func TestRootMigrateBindMountedInterrupted(t *testing.T) {
	b, _ := binding(t)
	b.killedAt("verify", func() { _ = b.Migrate(ctx, "", "") })
	if err := os.WriteFile(filepath.Join(b.Dirs.Store(), "x"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("in the middle: %v, want a read-only store", err)
	}
	b.ok(boot(b.disks()))
	write(t, filepath.Join(b.Dirs.Store(), "writable"), "x")
	b.ok(b.Migrate(ctx, "", ""))
	if read(t, filepath.Join(b.Dirs.Store(), "writable")) != "x" || b.records.mounted != "new" {
		t.Errorf("recorded %q", b.records.mounted)
	}
}

// checkMigrated checks the disks after crashes and one complete run.
func (w *world) checkMigrated() {
	w.t.Helper()
	if got := mountedSource(w.t, w.dirs().Store()); got != w.new.Path+"p1" {
		w.t.Errorf("store is %q, want %s", got, w.new.Path+"p1")
	}
	if got := treeSum(w.t, w.dirs().Store()); got != w.sum {
		w.t.Error("the user's files are not what they were")
	}
	if got := read(w.t, filepath.Join(w.job.Base, "bosh", "mounted")); got != "new" {
		w.t.Errorf("recorded %q, want new", got)
	}
	if err := os.WriteFile(filepath.Join(w.dirs().Store(), "writable"), nil, 0o600); err != nil {
		w.t.Error(err)
	}
	w.unmount()
	for _, part := range []string{w.old.Path + "p1", w.new.Path + "p1"} {
		tool(w.t, part, "e2fsck", "-nf", part)
	}
}

func TestRootCrashMigrate(t *testing.T) {
	crashes(t, "migrate", 4, func(*world) {}, (*world).checkMigrated)
}

// TestRootD04RebootDuringMigration: after a reboot during a migration, the store is the complete old disk, and never
// the incomplete new one.
func TestRootD04RebootDuringMigration(t *testing.T) {
	w := newWorld(t, "migrate")
	steps := w.run()
	for i, name := range steps {
		if i < slices.Index(steps, from["migrate"]) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "migrate")
			if err := w.start(i).Run(); err == nil {
				t.Fatal("the child was not killed")
			}
			w.unmount() // all that a reboot does to mounts
			w.job.Flow = "boot"
			w.run()
			if record := w.recorded(); record != "" {
				if got := treeSum(t, w.dirs().Store()); got != w.sum {
					t.Errorf("with %q on record, the store is not whole", record)
				}
			}
		})
	}
}

func (w *world) recorded() string {
	data, err := os.ReadFile(filepath.Join(w.job.Base, "bosh", "mounted"))
	if err != nil {
		return ""
	}
	return string(data)
}
