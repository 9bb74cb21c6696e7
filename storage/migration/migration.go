// Package migration copies the store to another persistent disk, verifies the copy, and then puts the new disk in place
// of the old one. Package decide makes the decisions. Package persistent contains the last steps, which a boot or
// mount_disk may have to complete.
package migration

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"cambium/internal/rootdir"
	"cambium/platform/copytree/worker"
	"cambium/platform/mount"
	"cambium/storage/decide"
	"cambium/storage/identity"
	"cambium/storage/internal/machine"
	"cambium/storage/persistent"
	"cambium/storage/record"
)

// Migration moves the store to another persistent disk.
type Migration struct {
	Machine *machine.Machine
	Disks   *persistent.Disks
	// Progress, if not nil, is called with the progress of a migration, and with the zero value at its end.
	Progress func(Progress)
	// Program is the path of the agent, which is started as the worker of package copytree/worker.
	Program string
}

// Migrate copies the store to the disk on the migration target, verifies the copy, and then puts that disk in place of
// the store. If a step before that fails, the old disk remains the store, writable. After a crash, the call can be
// repeated. If from or to is not empty, it must be the CID of the mounted disk.
func (m *Migration) Migrate(ctx context.Context, from, to string) error {
	if err := m.Machine.Lock(ctx); err != nil {
		return err
	}
	defer m.Machine.Unlock()
	if m.Progress != nil {
		defer m.Progress(Progress{})
	}
	if err := m.migrate(ctx, from, to); err != nil {
		return fmt.Errorf("migrate disk: %w", err)
	}
	return nil
}

func (m *Migration) migrate(ctx context.Context, wantFrom, wantTo string) error {
	o, old, err := m.observe()
	if err != nil {
		return err
	}
	o.WantFrom, o.WantTo = wantFrom, wantTo
	already, err := decide.Migrate(o)
	if err != nil || already {
		return err
	}
	mark, err := m.begin(o)
	if err != nil {
		return err
	}
	need, err := m.checkRoom(ctx, o, mark.Empty)
	if err != nil {
		return err
	}
	if err := m.prepare(ctx, o, mark); err != nil {
		return err
	}
	if err := m.copyStore(ctx, o, old, mark, need); err != nil {
		return err
	}
	m.Machine.Log.WithField("cid", o.To.CID).Info("disk migration done")
	return nil
}

// observe returns the mounted and recorded disks, and the mount of the store.
func (m *Migration) observe() (o decide.Migration, old mount.Entry, err error) {
	if o, err = m.Disks.ObserveMigration(); err != nil {
		return o, old, err
	}
	old, _, err = mount.At(o.Store)
	return o, old, err
}

// begin returns the statement with which to mark the migration target.
func (m *Migration) begin(o decide.Migration) (mark identity.Store, err error) {
	empty, err := m.Disks.TargetIsEmpty()
	if err != nil {
		return mark, err
	}
	if mark, err = decide.BeginCopy(o.From, o.To, empty); err == nil && !mark.Empty {
		m.Machine.Log.WithField("cid", o.To.CID).
			Warn("the new disk already holds files; they are kept unless the old disk has files of the same names")
	}
	return mark, err
}

// busyLimit bounds the wait for a disk that processes or mounts use.
func busyLimit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, machine.UnmountLimit, errors.New("still busy after ten minutes"))
}

// prepare waits until nothing uses the store, marks the new disk, and mounts it again, so that the mark is on the disk
// and no process has it open.
func (m *Migration) prepare(ctx context.Context, o decide.Migration, mark identity.Store) error {
	limited, cancel := busyLimit(ctx)
	defer cancel()
	if err := mount.AwaitUnused(limited, o.Store, m.Disks.LogBusy(o.Store)); err != nil {
		return err
	}
	m.Machine.CrashPoint("mark migration target")
	if err := m.Disks.MarkIncomplete(mark); err != nil {
		return err
	}
	if err := m.Disks.RenewTarget(limited, o.To.CID); err != nil {
		return err
	}
	now, err := m.Disks.ObserveMigration()
	if is := now.To.Statement; err != nil || now.To.CID != o.To.CID || !is.Incomplete || is.Origin != mark.Origin {
		return errors.Join(err, fmt.Errorf("%s changed while it was being prepared: run migrate_disk again", o.Target))
	}
	return nil
}

// checkRoom returns an error if the target is too small, otherwise the usage of the store.
func (m *Migration) checkRoom(ctx context.Context, o decide.Migration, exact bool) (need decide.Usage, err error) {
	if need, err = m.usage(ctx, o.Store); err != nil {
		return need, err
	}
	var to unix.Statfs_t
	if err := unix.Statfs(o.Target, &to); err != nil {
		return need, &os.PathError{Op: "statfs", Path: o.Target, Err: err}
	}
	free := decide.Usage{Bytes: int64(to.Bfree) * to.Bsize, Files: int64(to.Ffree)}
	var reusable decide.Usage
	if exact { // its files are from an earlier attempt
		if reusable, err = m.usage(ctx, o.Target); err != nil {
			return need, err
		}
	}
	return need, decide.CheckRoom(need, free, reusable, to.Files > 0)
}

// usage counts the bytes and files on the disk mounted on a directory. For a bind mount it counts only those in the
// tree, since the rest of the file system belongs to others.
func (m *Migration) usage(ctx context.Context, dir string) (u decide.Usage, err error) {
	if !m.Disks.BindMounted {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			return decide.Usage{}, &os.PathError{Op: "statfs", Path: dir, Err: err}
		}
		return decide.Usage{Bytes: int64(st.Blocks-st.Bfree) * st.Bsize, Files: int64(st.Files - st.Ffree)}, nil
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return decide.Usage{}, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	var bytes, files float64 // each hard link counts as a fraction of its file
	err = rootdir.Walk(ctx, root, func(dir *os.Root, _ string, entry fs.DirEntry, err error) error {
		var info fs.FileInfo
		if err == nil {
			info, err = dir.Lstat(entry.Name())
		}
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, rootdir.ErrTooDeep) {
			return nil // deleted meanwhile, or too deep: the copy finds it
		}
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		names := 1.0
		if !info.IsDir() {
			names = float64(max(st.Nlink, 1))
		}
		bytes += float64(st.Blocks*512) / names
		files += 1 / names
		return nil
	})
	return decide.Usage{Bytes: int64(bytes), Files: int64(files)}, err
}

// copyStore copies and verifies the store while it is read-only, and puts the new disk in its place. If that fails, the
// old store is mounted and writable again.
func (m *Migration) copyStore(ctx context.Context, o decide.Migration, old mount.Entry, mark identity.Store,
	total decide.Usage) error {
	if m.Progress != nil {
		// Report before the store is read-only, so that the status never shows that without its reason.
		m.Progress(Progress{Phase: worker.PhaseCopy, TotalBytes: total.Bytes})
	}
	m.Machine.CrashPoint("begin migration")
	if err := m.Machine.Record.Update(func(r *record.Record) { r.ReadOnly = true }); err != nil {
		return err
	}
	m.Machine.CrashPoint("store read-only")
	limited, cancel := busyLimit(ctx)
	defer cancel()
	if err := m.Disks.SetReadOnly(limited, true); err != nil {
		return err
	}
	a := &attempt{Migration: m, disks: o, old: old, mark: mark}
	if err := a.run(ctx, total); err != nil {
		return errors.Join(err, a.giveUp(context.WithoutCancel(ctx)))
	}
	return nil
}
