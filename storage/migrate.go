package storage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

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

// copyRounds is how often is copied what differs, each time something else; a source that never keeps still is an error then.
const copyRounds = 4

// Migrate copies the store to the disk on the migration target, proves that nothing is
// missing, and only then puts that disk in the store's place. Whatever fails before leaves the
// old store where it was, writable; a crash at any moment resumes when it is called again.
// A caller that names the disks gets an error where others are mounted; empty names are any.
func (d *Migration) Migrate(ctx context.Context, from, to string) error {
	defer d.lock()()
	if d.Progress != nil {
		defer d.Progress(MigrationProgress{})
	}
	if err := d.migrate(ctx, from, to); err != nil {
		return fmt.Errorf("migrate disk: %w", err)
	}
	return nil
}

func (d *Migration) migrate(ctx context.Context, wantFrom, wantTo string) error {
	store, target := d.Dirs.Store(), d.Dirs.StoreMigrationTarget()
	old, from, err := d.disks.diskOn(store)
	if err != nil {
		return err
	}
	_, to, err := d.disks.diskOn(target)
	if err != nil {
		return err
	}
	recorded := d.Records.MountedCID()
	switch {
	case to == "" && from != "":
		return d.migratedBefore(ctx, from, wantTo)
	case to != "" && wantTo != "" && wantTo != to:
		return fmt.Errorf("%s is on %s, not %s; unmount_disk of it comes first", to, target, wantTo)
	case to != "" && recorded == to && (from == "" || from == to):
		return d.disks.completeMove(ctx, to) // the last steps of a migration that was interrupted
	case from == "" && recorded != "":
		return fmt.Errorf("nothing is mounted on %s; mount_disk of %s comes first", store, recorded)
	case from == "":
		return fmt.Errorf("nothing is mounted on %s", store)
	case recorded == to:
		return fmt.Errorf("%s is on record as the store and %s is mounted there; mount_disk of %s comes first", to, from, from)
	case from == to:
		return fmt.Errorf("%s is on the store and is its own migration target", to)
	case wantFrom != "" && wantFrom != from:
		return fmt.Errorf("%s is on %s, not %s", from, store, wantFrom)
	}
	exact, err := d.beginMigration(from, to, target)
	if err != nil {
		return err
	}
	need, err := d.holds(store)
	if err != nil {
		return err
	}
	if err := d.roomFor(need, target, exact); err != nil {
		return err
	}
	if err := d.copyStore(ctx, need, exact); err != nil {
		return err
	}
	return d.switchStore(ctx, from, to, old)
}

// migratedBefore answers a repeated call after success as the first one, also when the first
// was interrupted behind its last change. The disk on the store must be the one that was asked
// for: the success of an earlier migration says nothing of a later one.
func (d *Migration) migratedBefore(ctx context.Context, on, wantTo string) error {
	all, err := d.intents()
	if err != nil {
		return err
	}
	open, migrating := all[migrationIntent]
	if on == d.Records.MountedCID() && (wantTo == "" || wantTo == on) {
		if open.moves(on) {
			return d.disks.endMove(ctx, on)
		}
		if !migrating && all[migratedRecord].Table == on {
			return nil
		}
	}
	what := "the new disk"
	if wantTo != "" {
		what = wantTo
	}
	err = fmt.Errorf("nothing is mounted on %s; mount_disk of %s comes first", d.Dirs.StoreMigrationTarget(), what)
	if migrating {
		err = fmt.Errorf("%w (the copy from %s is not complete)", err, open.Table)
	}
	return err
}

// migrationID names a migration in its record.
func migrationID(from, to string) string { return from + " to " + to }

// moves reports whether a migration's record has this disk as its target.
func (i intent) moves(to string) bool { return to != "" && strings.HasSuffix(i.Table, " to "+to) }

// concerns reports whether a migration's record names this disk on either side.
func (i intent) concerns(cid string) bool {
	return i.moves(cid) || strings.HasPrefix(i.Table, migrationID(cid, ""))
}

// whole refuses the store to a disk that a migration was copying to and did not complete.
func (d *Persistent) whole(cid string) error {
	all, err := d.intents()
	open := all[migrationIntent]
	if err != nil || !open.moves(cid) || d.Records.MountedCID() == cid {
		return err
	}
	source := strings.TrimSuffix(open.Table, migrationID("", cid))
	return fmt.Errorf("it holds an incomplete copy of %s: mount_disk of %s comes first, or remove_persistent_disk of it if it is no more", source, source)
}

// diskOn returns the CID of the disk that is mounted on a directory; it is empty where none is.
func (d *Persistent) diskOn(dir string) (mount.Entry, string, error) {
	e, there, err := mount.At(dir)
	if err != nil || !there {
		return e, "", err
	}
	for cid, p := range d.Records.Disks() {
		dev, err := d.Resolver.Look(hintOf(cid, p.Hint))
		if err != nil {
			continue // the others decide
		}
		if d.Options.BindMountPersistentDisk {
			if same, err := sameDir(dev.Path, dir); err == nil && same {
				return e, cid, nil
			}
			continue
		}
		if n, err := blkdev.NumberOf(d.part(dev.Path)); err == nil && n == e.Number {
			return e, cid, nil
		}
	}
	return e, "", fmt.Errorf("%s on %s is none of the known persistent disks", e.Source, dir)
}

// beginMigration records what is about to be copied where. It reports whether the target was
// empty before the first attempt, so that leftovers of an attempt may be removed and a user's
// own files may not.
func (d *Migration) beginMigration(from, to, target string) (bool, error) {
	all, err := d.intents()
	if err != nil {
		return false, err
	}
	id := migrationID(from, to)
	if have, ok := all[migrationIntent]; ok && have.Table == id {
		return have.Exact, nil
	}
	exact, err := empty(target)
	if err != nil {
		return false, err
	}
	if !exact {
		d.Log.WithField("disk", to).Warn("the new disk holds files already; they are kept where the old disk has none of that name")
	}
	d.crashPoint("begin migration")
	if err := d.done(migratedRecord); err != nil {
		return false, err
	}
	return exact, d.record(migrationIntent, &intent{Table: id, Exact: exact})
}

// empty reports whether a directory holds nothing but what a new file system has.
func empty(dir string) (bool, error) {
	entries, err := os.ReadDir(dir)
	if len(entries) == 1 && entries[0].IsDir() && entries[0].Name() == "lost+found" {
		entries, err = os.ReadDir(filepath.Join(dir, "lost+found"))
	}
	return len(entries) == 0, err
}

// copyStore copies and verifies while the store can be read but not changed. On failure it is
// made writable again.
func (d *Migration) copyStore(ctx context.Context, total holding, exact bool) (err error) {
	d.crashPoint("store read-only")
	limited, cancel := context.WithTimeoutCause(ctx, unmountLimit, errors.New("still written to after ten minutes"))
	defer cancel()
	if err := d.disks.setReadOnly(limited, true); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.disks.writable())
		}
	}()
	trees := d.trees(ctx)
	defer func() { err = errors.Join(err, trees.Close()) }() // before anybody may write to the store again
	for round := 1; ; round++ {
		d.crashPoint("copy")
		err := d.phase(ctx, "copy", total, exact, trees.Copy)
		if err == nil {
			d.crashPoint("verify")
			err = d.phase(ctx, "verify", total, exact, trees.Verify)
		}
		var differs *copytree.DifferenceError
		if !errors.As(err, &differs) || differs.Again || round == copyRounds {
			return err
		}
		// What an interrupted attempt left can look complete and not be, and a directory may be
		// changed past our mount of it.
		d.Log.WithFields(logrus.Fields{"path": differs.Path, "what": differs.What, "others": differs.Others}).Warn("copied again: the copy differs")
	}
}

// setReadOnly keeps the store from being changed, or allows it again. Of a bind-mounted store only the
// mount can be closed: the file system is somebody else's.
func (d *Persistent) setReadOnly(ctx context.Context, on bool) error {
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

// switchStore puts the new disk in the old one's place. The record changes while neither is on
// the store: before, a crash brings back the old disk, after, the new one, which is complete.
func (d *Migration) switchStore(ctx context.Context, from, to string, old mount.Entry) (err error) {
	store := d.Dirs.Store()
	limited, cancel := context.WithTimeoutCause(ctx, unmountLimit, errors.New("still busy after ten minutes"))
	defer cancel()
	d.crashPoint("unmount old store")
	if err := mount.UnmountReporting(limited, store, d.disks.busy(store)); err != nil {
		return errors.Join(err, d.disks.writable())
	}
	if !d.Options.BindMountPersistentDisk {
		if err := d.disks.releaseDevice(old.Source); err != nil {
			d.Log.WithError(err).Warn("old disk is still held elsewhere")
		}
	}
	d.crashPoint("record new disk")
	if err := d.Records.SetMountedCID(to); err != nil {
		return errors.Join(err, d.putBack(context.WithoutCancel(ctx), from))
	}
	return d.disks.completeMove(ctx, to)
}

// putBack mounts the disk on the store again that was taken off.
func (d *Migration) putBack(ctx context.Context, cid string) error {
	p, err := d.disks.known(cid)
	if err != nil {
		return err
	}
	dev, err := d.disks.Resolver.Resolve(ctx, hintOf(cid, p.Hint))
	if err != nil {
		return err
	}
	return d.disks.mountPersistent(ctx, p, dev)
}

// completeMove is for when the new disk is whole and on record; it may be on the store already.
func (d *Persistent) completeMove(ctx context.Context, to string) error {
	_, there, err := mount.At(d.Dirs.Store())
	if err != nil {
		return err
	}
	if !there {
		d.crashPoint("move mount")
		if err := mount.Show(d.Dirs.StoreMigrationTarget(), d.Dirs.Store()); err != nil {
			return err
		}
	}
	return d.endMove(ctx, to)
}

// endMove is for when the new disk is on the store; it may still be on the target as well. Whoever
// uses it there cannot hold up the end: it is the same file system.
func (d *Persistent) endMove(ctx context.Context, to string) error {
	target := d.Dirs.StoreMigrationTarget()
	if err := mount.Detach(target, d.busy(target)); err != nil {
		return err
	}
	d.crashPoint("end migration")
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
	if path, _ := d.storeDevice(); path != "" {
		// It may have become larger meanwhile.
		if err := d.growInUse(ctx, path, d.Dirs.Store()); err != nil {
			d.Log.WithError(err).Warn("disk on the store could not be grown")
		}
	}
	return nil
}

// writable undoes the read-only phase of a migration.
func (d *Persistent) writable() error {
	_, there, err := mount.At(d.Dirs.Store())
	if err != nil || !there {
		return err
	}
	return d.setReadOnly(context.Background(), false)
}

// afterInterruption puts a disk that is mounted already where its record says: the store is
// made writable when a migration was interrupted while it was read-only, and a new disk that
// had only to be moved is moved.
func (d *Persistent) afterInterruption(ctx context.Context, p settings.PersistentDisk, where string) error {
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
	here, _, err := mount.At(where)
	if err != nil {
		return err
	}
	onStore := hasStore && store.Number == here.Number && store.Root == here.Root
	switch {
	case d.Records.MountedCID() == p.CID && open.moves(p.CID) && (onStore || !hasStore):
		return d.completeMove(ctx, p.CID)
	case where == d.Dirs.Store():
		d.crashPoint("store writable again")
		return d.writable()
	}
	return nil
}

func (d *Persistent) busy(target string) func([]mount.Process) {
	return func(users []mount.Process) {
		d.Log.WithFields(logrus.Fields{"mount": target, "users": fmt.Sprint(users)}).Warn("persistent disk is busy")
	}
}
