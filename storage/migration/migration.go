// Package migration copies the store from one persistent disk to another, proves that nothing is missing, and only then puts
// the new disk in the old one's place. What is to be done is decided by package decide; the end of a migration, which boot and
// mount_disk may have to complete, is in package persistent.
package migration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"cambium/internal/rootdir"
	"cambium/platform/copytree/apart"
	"cambium/platform/mount"
	"cambium/storage/decide"
	"cambium/storage/internal/intent"
	"cambium/storage/internal/machine"
	"cambium/storage/persistent"
)

// Migration moves the store to another disk.
type Migration struct {
	Machine *machine.Machine
	Disks   *persistent.Disks
	// Progress, if set, is called with the progress of a migration, and with the zero value at its
	// end.
	Progress func(Progress)
	// Program is the agent's own, which copies trees when package apart calls it.
	Program string
}

// Migrate copies the store to the disk on the migration target, proves that nothing is
// missing, and only then puts that disk in the store's place. Whatever fails before leaves the
// old store where it was, writable; a crash at any moment resumes when it is called again.
// A caller that names the disks gets an error where others are mounted; empty names are any.
func (m *Migration) Migrate(ctx context.Context, from, to string) error {
	m.Machine.Lock()
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
	action, err := decide.Migrate(o)
	if err != nil {
		return err
	}
	switch action {
	case decide.SwitchStore:
		return m.Disks.CompleteSwitch(ctx, o.To)
	case decide.EndMigration:
		return m.Disks.EndMigration(ctx, o.From)
	case decide.AlreadyMigrated:
		return nil
	}
	exact, err := m.begin(ctx, o)
	if err != nil {
		return err
	}
	need, err := m.checkRoom(ctx, o, exact)
	if err != nil {
		return err
	}
	if err := m.copyStore(ctx, need, exact); err != nil {
		return err
	}
	return m.switchStore(ctx, o, old)
}

// observe returns what is mounted and on record, and the mount of the store.
func (m *Migration) observe() (o decide.Migration, old mount.Entry, err error) {
	o.Store, o.Target = m.Machine.Dirs.Store(), m.Machine.Dirs.StoreMigrationTarget()
	if o.Recorded, err = m.Disks.Records.MountedCID(); err != nil {
		return o, old, err
	}
	if old, o.From, err = m.Disks.DiskOn(o.Store); err != nil {
		return o, old, err
	}
	if _, o.To, err = m.Disks.DiskOn(o.Target); err != nil {
		return o, old, err
	}
	all, err := m.Machine.Intents.All()
	o.Open, o.Done = all[intent.Migration], all[intent.Migrated]
	return o, old, err
}

// begin records what is about to be copied where. It reports whether the target was
// empty before the first attempt and nothing else has written to it since, so that leftovers of an attempt may be removed and
// files of others may not.
func (m *Migration) begin(ctx context.Context, o decide.Migration) (exact bool, err error) {
	mark, err := m.Machine.MigrationMark(m.Disks.BindMounted)
	if err != nil {
		return false, err
	}
	id := intent.MigrationID(o.From, o.To)
	if o.Open.Table == id {
		if o.Open.Exact && !decide.MayRemove(o.Open, mark) {
			return false, refuseOthersFiles(ctx, o)
		}
		return o.Open.Exact, nil
	}
	if exact, err = empty(o.Target); err != nil {
		return false, err
	}
	if !exact {
		m.Machine.Log.WithField("cid", o.To).Warn("the new disk holds files already; they are kept where the old disk has none of that name")
	}
	m.Machine.CrashPoint("begin migration")
	if err := m.Machine.Intents.Clear(intent.Migrated); err != nil {
		return false, err
	}
	return exact, m.Machine.Intents.Set(intent.Migration, intent.Intent{Table: id, Exact: exact, Mark: mark})
}

// refuseOthersFiles refuses a target that was mounted elsewhere since an attempt was interrupted, if it holds a file that the store does
// not have: another machine may have written it. Files that both have are overwritten, as on any target.
func refuseOthersFiles(ctx context.Context, o decide.Migration) (err error) {
	store, err := os.OpenRoot(o.Store)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	target, err := os.OpenRoot(o.Target)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, target.Close()) }()
	return rootdir.Walk(ctx, target, func(name string, entry fs.DirEntry, err error) error {
		if errors.Is(err, rootdir.ErrTooDeep) || name == "lost+found" && entry.IsDir() {
			return nil // it stays, like all that is only there
		}
		if err != nil {
			return err
		}
		if _, err := store.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return fmt.Errorf("%s has an incomplete copy of %s and was mounted elsewhere since, and %q is only there: "+
			"save or delete it in %s, and run migrate_disk again", o.To, o.From, name, o.Target)
	})
}

// empty reports whether a directory holds nothing but what a new file system has.
func empty(dir string) (result bool, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	names, err := someNames(root, ".")
	if err == nil && len(names) == 1 && names[0] == "lost+found" {
		if info, statErr := root.Lstat("lost+found"); statErr == nil && info.IsDir() {
			names, err = someNames(root, "lost+found")
		}
	}
	return len(names) == 0, err
}

// someNames are up to two names in a directory; a job may have filled it.
func someNames(root *os.Root, name string) (names []string, err error) {
	dir, err := rootdir.File(root, name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	if names, err = dir.Readdirnames(2); errors.Is(err, io.EOF) {
		err = nil
	}
	return names, err
}

// checkRoom refuses a target that is too small before the first byte is copied, and returns what the store holds.
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
	if exact { // what is there is of an earlier attempt
		if reusable, err = m.usage(ctx, o.Target); err != nil {
			return need, err
		}
	}
	return need, decide.CheckRoom(need, free, reusable, to.Files > 0)
}

// usage returns what is on the disk that is mounted on a directory. Of a bind-mounted one only the tree counts: the rest
// of the file system belongs to others.
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
	var bytes, files float64 // a file with several names is a part at each
	err = rootdir.Walk(ctx, root, func(name string, _ fs.DirEntry, err error) error {
		var info fs.FileInfo
		if err == nil {
			info, err = root.Lstat(name)
		}
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, rootdir.ErrTooDeep) {
			return nil // gone meanwhile, or so deep that only the copy finds it
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

// copyStore copies and verifies while the store can be read but not changed. On failure it is
// made writable again.
func (m *Migration) copyStore(ctx context.Context, total decide.Usage, exact bool) (err error) {
	if m.Progress != nil {
		// From before the store is read-only, so that the status never shows that without its reason.
		m.Progress(Progress{Phase: apart.PhaseCopy, TotalFiles: total.Files, TotalBytes: total.Bytes})
	}
	m.Machine.CrashPoint("store read-only")
	limited, cancel := context.WithTimeoutCause(ctx, machine.UnmountLimit, errors.New("still written to after ten minutes"))
	defer cancel()
	if err := m.Disks.SetReadOnly(limited, true); err != nil {
		return err
	}
	if err := m.copyAndVerify(ctx, total, exact); err != nil {
		return errors.Join(err, m.Disks.MakeWritable(ctx))
	}
	return nil
}

// switchStore puts the new disk in the old one's place. The record changes while neither is on
// the store: before, a crash brings back the old disk, after, the new one, which is complete.
func (m *Migration) switchStore(ctx context.Context, o decide.Migration, old mount.Entry) error {
	limited, cancel := context.WithTimeoutCause(ctx, machine.UnmountLimit, errors.New("still busy after ten minutes"))
	defer cancel()
	m.Machine.CrashPoint("unmount old store")
	if err := mount.UnmountReporting(limited, o.Store, m.Disks.Busy(o.Store)); err != nil {
		return errors.Join(err, m.Disks.MakeWritable(ctx))
	}
	// Its content is complete on the new disk: what still holds it is waited for by unmount_disk.
	if err := m.Disks.Detach(old); err != nil {
		m.Machine.Log.WithError(err).Warn("old disk is still in use")
	}
	m.Machine.CrashPoint("record new disk")
	if err := m.Disks.Records.SetMountedCID(o.To); err != nil {
		return errors.Join(err, m.Disks.PutBack(context.WithoutCancel(ctx), o.From))
	}
	return m.Disks.CompleteSwitch(ctx, o.To)
}
