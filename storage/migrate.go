package storage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"cambium/internal/blkdev"
	"cambium/platform/copytree"
	"cambium/platform/mount"
	"cambium/settings"
)

// Keys of the migration records. The first lasts from before the first byte is copied until
// the new disk is on the store; the second remembers which migration that was.
const (
	migrationIntent = ".migration"
	migratedRecord  = ".migrated"
)

// MigrationProgress is how far a migration has come.
type MigrationProgress struct {
	Phase string // "copy" or "verify"
	Files int64
	Bytes int64
	// TotalFiles and TotalBytes are what the source uses; Bytes may end a little below,
	// because directories are in the total.
	TotalFiles int64
	TotalBytes int64
	Elapsed    time.Duration
}

// Remaining estimates the time left in this phase, from the rate so far; 0 means unknown.
func (p MigrationProgress) Remaining() time.Duration {
	if p.Bytes <= 0 || p.TotalBytes <= p.Bytes {
		return 0
	}
	return time.Duration(float64(p.Elapsed) * float64(p.TotalBytes-p.Bytes) / float64(p.Bytes)).Round(time.Second)
}

// String is what an operator wants to know; the zero value, which ends a migration, is empty.
func (p MigrationProgress) String() string {
	if p.Phase == "" {
		return ""
	}
	text := fmt.Sprintf("%s: %d files, %d of %d MiB", p.Phase, p.Files, p.Bytes>>20, p.TotalBytes>>20)
	if rate := p.Rate(); rate > 0 {
		text += fmt.Sprintf(", %d MiB/s", rate>>20)
	}
	if left := p.Remaining(); left > 0 {
		text += fmt.Sprintf(", about %v left", left)
	}
	return text
}

// Rate is in bytes per second.
func (p MigrationProgress) Rate() int64 {
	if p.Elapsed <= 0 {
		return 0
	}
	return int64(float64(p.Bytes) / p.Elapsed.Seconds())
}

// A migration reports every second, and logs that every so many times.
const (
	progressEvery = time.Second
	progressLogs  = 10
)

// Migrate copies the store to the disk on the migration target, proves that nothing is
// missing, and only then puts that disk in the store's place. Whatever fails before leaves the
// old store where it was, writable; a crash at any moment resumes when it is called again.
func (d *Disks) Migrate(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.Progress != nil {
		defer d.Progress(MigrationProgress{})
	}
	if err := d.migrate(ctx); err != nil {
		return fmt.Errorf("migrate disk: %w", err)
	}
	return nil
}

func (d *Disks) migrate(ctx context.Context) error {
	store, target := d.Dirs.Store(), d.Dirs.StoreMigrationTarget()
	old, hasStore, err := mount.At(store)
	if err != nil {
		return err
	}
	fresh, hasTarget, err := mount.At(target)
	if err != nil {
		return err
	}
	if !hasTarget {
		return d.migratedBefore(ctx, hasStore)
	}
	to, err := d.diskAt(target, fresh)
	if err != nil {
		return err
	}
	if !hasStore {
		if d.Records.MountedCID() != to {
			return fmt.Errorf("nothing is mounted on %s", store)
		}
		return d.completeMove(ctx, to) // the last step of a migration that was interrupted
	}
	from, err := d.diskAt(store, old)
	if err != nil {
		return err
	}
	if from == to {
		return d.endMove(ctx, to) // interrupted when the new disk was on the store already
	}
	exact, err := d.beginMigration(from, to, target)
	if err != nil {
		return err
	}
	if err := roomFor(store, target, exact); err != nil {
		return err
	}
	if err := d.copyStore(ctx, exact); err != nil {
		return err
	}
	return d.switchStore(ctx, to, old)
}

// migratedBefore answers a repeated call after success as the first one, also when the first
// was interrupted behind its last change.
func (d *Disks) migratedBefore(ctx context.Context, hasStore bool) error {
	all, err := d.intents()
	if err != nil {
		return err
	}
	on := d.Records.MountedCID()
	if last, ok := all[migratedRecord]; ok && hasStore && last.Table == on {
		return nil
	}
	if open, ok := all[migrationIntent]; ok && hasStore && open.moves(on) {
		return d.endMove(ctx, on)
	}
	return fmt.Errorf("nothing is mounted on %s; mount_disk of the new disk comes first", d.Dirs.StoreMigrationTarget())
}

// migrationID names a migration in its record.
func migrationID(from, to string) string { return from + " to " + to }

// moves reports whether a migration's record has this disk as its target.
func (i intent) moves(to string) bool { return to != "" && strings.HasSuffix(i.Table, " to "+to) }

// concerns reports whether a migration's record names this disk on either side.
func (i intent) concerns(cid string) bool {
	return i.moves(cid) || strings.HasPrefix(i.Table, migrationID(cid, ""))
}

// diskAt returns the CID of the disk that is mounted on a directory.
func (d *Disks) diskAt(dir string, e mount.Entry) (string, error) {
	for cid, p := range d.Records.Disks() {
		dev, err := d.Resolver.Look(hintOf(cid, p.Hint))
		if err != nil {
			continue // the others decide
		}
		if d.Options.BindMountPersistentDisk {
			if same, err := sameDir(dev.Path, dir); err == nil && same {
				return cid, nil
			}
			continue
		}
		if n, err := blkdev.NumberOf(d.part(dev.Path)); err == nil && n == e.Number {
			return cid, nil
		}
	}
	return "", fmt.Errorf("%s on %s is none of the known persistent disks", e.Source, dir)
}

// beginMigration records what is about to be copied where. It reports whether the target was
// empty before the first attempt, so that leftovers of an attempt may be removed and a user's
// own files may not.
func (d *Disks) beginMigration(from, to, target string) (bool, error) {
	all, err := d.intents()
	if err != nil {
		return false, err
	}
	id := migrationID(from, to)
	if have, ok := all[migrationIntent]; ok && have.Table == id {
		return have.Exact, nil
	}
	entries, err := os.ReadDir(target)
	if err != nil {
		return false, err
	}
	exact := len(entries) == 0 || len(entries) == 1 && entries[0].Name() == "lost+found"
	if !exact {
		d.Log.WithField("disk", to).Warn("the new disk holds files already; they are kept where the old disk has none of that name")
	}
	d.step("begin migration")
	return exact, d.record(migrationIntent, &intent{Table: id, Exact: exact})
}

// roomFor refuses a target that is too small before the first byte is copied.
func roomFor(store, target string, exact bool) error {
	var from, to unix.Statfs_t
	if err := unix.Statfs(store, &from); err != nil {
		return &os.PathError{Op: "statfs", Path: store, Err: err}
	}
	if err := unix.Statfs(target, &to); err != nil {
		return &os.PathError{Op: "statfs", Path: target, Err: err}
	}
	need := int64(from.Blocks-from.Bfree) * from.Bsize
	have := int64(to.Bfree) * to.Bsize
	files, free := from.Files-from.Ffree, to.Ffree
	if exact {
		have, free = int64(to.Blocks)*to.Bsize, to.Files // what is there is of an earlier attempt
	}
	if need > have {
		return fmt.Errorf("the new disk is too small: %d MiB are used on the old one, %d MiB are free", need>>20, have>>20)
	}
	if to.Files > 0 && files > free {
		return fmt.Errorf("the new disk has too few inodes: %d are used on the old one, %d are free", files, free)
	}
	return nil
}

// copyStore copies and verifies while the store can be read but not changed. On failure it is
// made writable again.
func (d *Disks) copyStore(ctx context.Context, exact bool) (err error) {
	d.step("store read-only")
	limited, cancel := context.WithTimeoutCause(ctx, unmountLimit, errors.New("still written to after ten minutes"))
	defer cancel()
	if err := d.setReadOnly(limited, true); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.writable())
		}
	}()
	trees := d.trees(ctx)
	defer func() { err = errors.Join(err, trees.Close()) }() // before anybody may write to the store again
	for attempt := 0; ; attempt++ {
		d.step("copy")
		err := d.phase(ctx, "copy", exact, trees.Copy)
		if err == nil {
			d.step("verify")
			err = d.phase(ctx, "verify", exact, trees.Verify)
		}
		var differs *copytree.DifferenceError
		if !errors.As(err, &differs) || attempt > 0 {
			return err
		}
		// What an interrupted attempt left can look complete and not be, and a directory may be
		// changed past our mount of it; once is enough.
		d.Log.WithField("path", differs.Path).Warn("copied again: the copy differs")
		if err := d.discard(differs.Path, exact); err != nil {
			return err
		}
	}
}

// setReadOnly keeps the store from being changed, or allows it again. Of a bind-mounted store only the
// mount can be closed: the file system is somebody else's.
func (d *Disks) setReadOnly(ctx context.Context, on bool) error {
	store := d.Dirs.Store()
	if !d.Options.BindMountPersistentDisk {
		return mount.SetReadOnly(ctx, store, on, d.busy(store))
	}
	err := mount.SetBindReadOnly(ctx, store, on, d.busy(store))
	if errors.Is(err, unix.ENOSYS) {
		d.Log.WithField("mount", store).Warn("this kernel cannot close a single mount; the store can be changed while it is copied")
		return nil
	}
	return err
}

// discard removes what differs from a target that holds only our own copies.
func (d *Disks) discard(rel string, exact bool) error {
	if !exact {
		return fmt.Errorf("%q on the new disk differs from the old one", rel)
	}
	root, err := os.OpenRoot(d.Dirs.StoreMigrationTarget())
	if err != nil {
		return err
	}
	if rel != "." {
		err = root.RemoveAll(rel)
	}
	return errors.Join(err, root.Close())
}

func (d *Disks) phase(ctx context.Context, name string, exact bool, work func(context.Context, string, string, copytree.Options) error) error {
	var used unix.Statfs_t
	if err := unix.Statfs(d.Dirs.Store(), &used); err != nil {
		return err
	}
	p := MigrationProgress{Phase: name, TotalFiles: int64(used.Files - used.Ffree), TotalBytes: int64(used.Blocks-used.Bfree) * used.Bsize}
	counter := &copytree.Counter{}
	begin := time.Now()
	reports := 0
	report := func(last bool) {
		now := counter.Load()
		p.Files, p.Bytes, p.Elapsed = now.Files, now.Bytes, time.Since(begin)
		if d.Progress != nil {
			d.Progress(p)
		}
		if reports++; !last && reports%progressLogs != 1 {
			return
		}
		d.Log.WithFields(logrus.Fields{"phase": name, "files": p.Files, "bytes": p.Bytes, "of_bytes": p.TotalBytes,
			"rate": p.Rate(), "remaining": p.Remaining().String()}).Info("disk migration")
	}
	report(false)
	done := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				report(false)
			}
		}
	}()
	err := work(ctx, d.Dirs.Store(), d.Dirs.StoreMigrationTarget(), copytree.Options{Exact: exact, Progress: counter})
	close(done)
	<-stopped
	report(true)
	return err
}

// switchStore puts the new disk in the old one's place. The record changes while neither is on
// the store: before, a crash brings back the old disk, after, the new one, which is complete.
func (d *Disks) switchStore(ctx context.Context, to string, old mount.Entry) (err error) {
	store := d.Dirs.Store()
	limited, cancel := context.WithTimeoutCause(ctx, unmountLimit, errors.New("still busy after ten minutes"))
	defer cancel()
	d.step("unmount old store")
	if err := mount.UnmountReporting(limited, store, d.busy(store)); err != nil {
		return errors.Join(err, d.writable())
	}
	if !d.Options.BindMountPersistentDisk {
		if err := d.releaseDevice(old.Source); err != nil {
			d.Log.WithError(err).Warn("old disk is still held elsewhere")
		}
	}
	d.step("record new disk")
	if err := d.Records.SetMountedCID(to); err != nil {
		return err
	}
	return d.completeMove(ctx, to)
}

func (d *Disks) completeMove(ctx context.Context, to string) error {
	d.step("move mount")
	if err := mount.Move(ctx, d.Dirs.StoreMigrationTarget(), d.Dirs.Store()); err != nil {
		return err
	}
	return d.endMove(ctx, to)
}

// endMove is for when the new disk is on the store; it may still be on the target as well.
func (d *Disks) endMove(ctx context.Context, to string) error {
	if err := mount.Unmount(ctx, d.Dirs.StoreMigrationTarget()); err != nil {
		return err
	}
	d.step("end migration")
	if err := d.onStore(to); err != nil {
		return err
	}
	if err := d.record(migratedRecord, &intent{Table: to}); err != nil {
		return err
	}
	if err := d.done(migrationIntent); err != nil {
		return err
	}
	d.Log.WithField("disk", to).Info("disk migration done")
	return nil
}

// writable undoes the read-only phase of a migration.
func (d *Disks) writable() error {
	_, there, err := mount.At(d.Dirs.Store())
	if err != nil || !there {
		return err
	}
	return d.setReadOnly(context.Background(), false)
}

// afterInterruption puts a disk that is mounted already where its record says: the store is
// made writable when a migration was interrupted while it was read-only, and a new disk that
// had only to be moved is moved.
func (d *Disks) afterInterruption(ctx context.Context, p settings.PersistentDisk, where string) error {
	all, err := d.intents()
	if err != nil {
		return err
	}
	open, migrating := all[migrationIntent]
	if !migrating {
		return nil
	}
	store, hasStore, err := mount.At(d.Dirs.Store())
	if err != nil {
		return err
	}
	target, hasTarget, err := mount.At(d.Dirs.StoreMigrationTarget())
	if err != nil {
		return err
	}
	switch {
	case hasStore && hasTarget && store.Number == target.Number && store.Root == target.Root,
		where == d.Dirs.Store() && open.moves(p.CID):
		return d.endMove(ctx, p.CID)
	case where == d.Dirs.Store():
		d.step("store writable again")
		return d.writable()
	case hasTarget && !hasStore && d.Records.MountedCID() == p.CID:
		return d.completeMove(ctx, p.CID)
	}
	return nil
}

func (d *Disks) busy(target string) func([]mount.Process) {
	return func(users []mount.Process) {
		d.Log.WithFields(logrus.Fields{"mount": target, "users": fmt.Sprint(users)}).Warn("persistent disk is busy")
	}
}
