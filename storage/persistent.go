package storage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sort"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"cambium/internal/blkdev"
	"cambium/platform/device"
	"cambium/platform/disk"
	"cambium/platform/filesystem"
	"cambium/platform/mount"
	"cambium/settings"
)

// Add records the hint of a disk that the CPI has attached.
func (d *Persistent) Add(ctx context.Context, cid string, hint settings.DiskHint) error {
	defer d.lock()()
	if err := d.Reload(ctx); err != nil {
		return err
	}
	return d.Records.PutHint(cid, hint)
}

// Remove forgets a disk. One that is not known is fine.
func (d *Persistent) Remove(ctx context.Context, cid string) error {
	defer d.lock()()
	if err := d.Reload(ctx); err != nil {
		return err
	}
	if d.Records.MountedCID() == cid {
		if err := d.Records.ClearMountedCID(); err != nil {
			return err
		}
	}
	all, err := d.intents()
	if err != nil {
		return err
	}
	keys := []string{cid}
	if all[migrationIntent].concerns(cid) {
		keys = append(keys, migrationIntent)
	}
	for _, key := range keys {
		if err := d.done(key); err != nil {
			return err
		}
	}
	return d.Records.RemoveHint(cid)
}

// Mount makes a persistent disk ready and mounts it on the store, or, where another disk is
// there, on the migration target.
func (d *Persistent) Mount(ctx context.Context, cid string) error {
	defer d.lock()()
	if err := d.Reload(ctx); err != nil {
		return err
	}
	p, err := d.known(cid)
	if err != nil {
		return err
	}
	dev, err := d.Resolver.Resolve(ctx, hintOf(cid, p.Hint))
	if err != nil {
		return fmt.Errorf("mount disk %s: %w", cid, err)
	}
	if err := d.mountPersistent(ctx, p, dev); err != nil {
		return fmt.Errorf("mount disk %s: %w", cid, err)
	}
	return nil
}

func (d *Persistent) known(cid string) (settings.PersistentDisk, error) {
	p, ok := d.Records.Disks()[cid]
	if !ok {
		return p, fmt.Errorf("persistent disk %q is not known", cid)
	}
	return p, nil
}

// part is the device that carries a persistent disk's file system.
func (d *Persistent) part(path string) string {
	if d.Options.UsePreformattedPersistentDisk {
		return path
	}
	return device.Partition(path, 1)
}

func (d *Persistent) mountPersistent(ctx context.Context, p settings.PersistentDisk, dev device.Device) error {
	if d.Options.BindMountPersistentDisk {
		return d.bindPersistent(ctx, p, dev.Path)
	}
	if dev.Directory {
		return fmt.Errorf("%s is no block device", dev.Path)
	}
	release, err := disk.Hold(ctx, dev.Path)
	if err != nil {
		return err
	}
	defer release()
	part := d.part(dev.Path)
	switch where, err := d.mountedAt(part); {
	case err != nil:
		return err
	case where == d.Dirs.Store() || where == d.Dirs.StoreMigrationTarget():
		return d.mountedBefore(ctx, p, dev.Path, where)
	case where != "":
		return fmt.Errorf("%s is mounted on %s", part, where)
	}
	content, err := d.content(ctx, p, dev)
	if err != nil {
		return err
	}
	target := d.Dirs.Store()
	_, occupied, err := mount.At(target)
	if err != nil {
		return err
	}
	if occupied {
		target = d.Dirs.StoreMigrationTarget()
	}
	if err := d.mayBeOn(target, p.CID); err != nil {
		return err
	}
	if err := ensureDir(target, 0o700); err != nil {
		return err
	}
	if err := d.mountData(ctx, part, content, target, p.MountOptions); err != nil {
		return err
	}
	d.Log.WithFields(logrus.Fields{"disk": p.CID, "device": part, "mount": target}).Info("persistent disk mounted")
	if occupied {
		return nil // the record still names the disk that is on the store
	}
	return d.onStore(p.CID)
}

// mayBeOn is asked before a disk counts as being on the store or on the migration target.
func (d *Persistent) mayBeOn(where, cid string) error {
	if where == d.Dirs.Store() {
		return d.whole(cid)
	}
	return d.done(migratedRecord) // what is about to be migrated has not been
}

// mountedBefore is mountPersistent for a disk that is where it may be.
func (d *Persistent) mountedBefore(ctx context.Context, p settings.PersistentDisk, path, where string) error {
	if err := d.mayBeOn(where, p.CID); err != nil {
		return err
	}
	if err := d.afterInterruption(ctx, p, where); err != nil {
		return err
	}
	where, err := d.mountedAt(d.part(path)) // the last step of a migration may have moved it
	if err != nil {
		return err
	}
	if err := d.growInUse(ctx, path, where); err != nil {
		return err
	}
	if where != d.Dirs.Store() {
		return nil
	}
	return d.onStore(p.CID)
}

// content is what a persistent disk carries, after it was prepared if that is ours to do.
func (d *Persistent) content(ctx context.Context, p settings.PersistentDisk, dev device.Device) (filesystem.Content, error) {
	if d.Options.UsePreformattedPersistentDisk {
		return filesystem.Probe(dev.Path)
	}
	return d.prepare(ctx, p, dev)
}

// onStore records the disk after it is on the store: a disk that is only the target of a
// migration must never come back as the store after a reboot.
func (d *Persistent) onStore(cid string) error {
	d.crashPoint("record mounted disk")
	if d.Records.MountedCID() == cid {
		return nil
	}
	return d.Records.SetMountedCID(cid)
}

// mountedAt tells where a device's file system is mounted; empty means nowhere. A device that
// is not there is mounted nowhere.
func (d *machine) mountedAt(part string) (string, error) {
	number, err := blkdev.NumberOf(part)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	all, err := mount.Of(number)
	if err != nil || len(all) == 0 {
		return "", err
	}
	return all[len(all)-1].Target, nil
}

// bindPersistent shows a directory as the store; containers get their disks so.
func (d *Persistent) bindPersistent(ctx context.Context, p settings.PersistentDisk, source string) error {
	for _, target := range []string{d.Dirs.Store(), d.Dirs.StoreMigrationTarget()} {
		if err := ensureDir(target, 0o700); err != nil {
			return err
		}
		_, occupied, err := mount.At(target)
		if err != nil {
			return err
		}
		same, err := sameDir(source, target)
		if err != nil {
			return err
		}
		if occupied && !same {
			continue
		}
		if err := d.mayBeOn(target, p.CID); err != nil {
			return err
		}
		if !occupied {
			if err := mount.Bind(ctx, source, target, 0); err != nil {
				return err
			}
			d.note(Change{Device: source, Proof: "persistent disk " + p.CID, What: "bind to " + target})
		}
		if occupied {
			if err := d.afterInterruption(ctx, p, target); err != nil {
				return err
			}
		}
		if target == d.Dirs.Store() {
			return d.onStore(p.CID)
		}
		return nil
	}
	return fmt.Errorf("store and migration target are both in use")
}

func sameDir(a, b string) (bool, error) {
	ia, err := os.Stat(a)
	if err != nil {
		return false, err
	}
	ib, err := os.Stat(b)
	if err != nil {
		return false, err
	}
	return os.SameFile(ia, ib), nil
}

// Unmount takes a persistent disk off the store, or the migration target, and says what it
// did in the words the Director knows.
func (d *Persistent) Unmount(ctx context.Context, cid string) (string, error) {
	defer d.lock()()
	p, err := d.known(cid)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, unmountLimit, errors.New("still busy after ten minutes"))
	defer cancel()
	targets, err := d.mountsOf(p)
	if err != nil {
		return "", fmt.Errorf("unmount disk %s: %w", cid, err)
	}
	if len(targets) == 0 {
		return fmt.Sprintf("Partition of %s is not mounted", cid), nil
	}
	for i := len(targets) - 1; i >= 0; i-- {
		d.crashPoint("unmount")
		if err := mount.UnmountReporting(ctx, targets[i], d.busy(targets[i])); err != nil {
			return "", fmt.Errorf("unmount disk %s: %w", cid, err)
		}
	}
	if err := d.release(p); err != nil {
		return "", fmt.Errorf("unmount disk %s: %w", cid, err)
	}
	return fmt.Sprintf("Unmounted partition of %s", cid), nil
}

// release makes sure that no private mount namespace keeps the file system alive: the IaaS
// takes the disk away next.
func (d *Persistent) release(p settings.PersistentDisk) error {
	dev, err := d.Resolver.Look(hintOf(p.CID, p.Hint))
	if notThere(err) || d.Options.BindMountPersistentDisk {
		return nil
	}
	if err != nil {
		return err
	}
	return d.releaseDevice(d.part(dev.Path))
}

func (d *Persistent) releaseDevice(part string) error {
	// Whoever can have it for himself knows that it is mounted nowhere, without asking every process.
	if f, err := os.OpenFile(part, os.O_RDONLY|unix.O_EXCL, 0); err == nil {
		return f.Close()
	}
	number, err := blkdev.NumberOf(part)
	if err != nil {
		return err
	}
	changed, err := mount.DetachElsewhere(number)
	if len(changed) > 0 {
		d.Log.WithFields(logrus.Fields{"device": part, "processes": fmt.Sprint(changed)}).Warn("mount detached from private namespaces")
	}
	return err
}

// mountsOf lists where anything of a persistent disk is mounted, binds included.
func (d *Persistent) mountsOf(p settings.PersistentDisk) ([]string, error) {
	dev, err := d.Resolver.Look(hintOf(p.CID, p.Hint))
	if notThere(err) {
		// Its links may be gone while it is still mounted; the record tells what is on the store.
		if _, occupied, err := mount.At(d.Dirs.Store()); err != nil || !occupied || d.Records.MountedCID() != p.CID {
			return nil, err
		}
		return []string{d.Dirs.Store()}, nil
	}
	if err != nil {
		return nil, err
	}
	if d.Options.BindMountPersistentDisk {
		return d.bindsOf(dev.Path)
	}
	number, err := blkdev.NumberOf(d.part(dev.Path))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	all, err := mount.Table()
	if err != nil {
		return nil, err
	}
	var targets []string
	for _, m := range all {
		if m.Number == number {
			targets = append(targets, m.Target)
		}
	}
	return targets, nil
}

func (d *Persistent) bindsOf(source string) (targets []string, err error) {
	for _, target := range []string{d.Dirs.Store(), d.Dirs.StoreMigrationTarget()} {
		_, occupied, err := mount.At(target)
		if err != nil {
			return nil, err
		}
		if !occupied {
			continue
		}
		same, err := sameDir(source, target)
		if err != nil {
			return nil, err
		}
		if same {
			targets = append(targets, target)
		}
	}
	return targets, nil
}

// List returns the CIDs of the persistent disks that are mounted, the one on the store first: the
// Director compares that with its own record. It only reads, and so does not wait for a migration to end.
func (d *Persistent) List(ctx context.Context) ([]string, error) {
	if err := d.Reload(ctx); err != nil {
		return nil, err
	}
	mounted := []string{}
	onStore := ""
	for cid, p := range d.Records.Disks() {
		targets, err := d.mountsOf(p)
		if err != nil {
			return nil, fmt.Errorf("list disks: %s: %w", cid, err)
		}
		if len(targets) > 0 {
			mounted = append(mounted, cid)
		}
		for _, target := range targets {
			if target == d.Dirs.Store() {
				onStore = cid
			}
		}
	}
	sort.Slice(mounted, func(i, j int) bool {
		if a, b := mounted[i] == onStore, mounted[j] == onStore; a != b {
			return a
		}
		return mounted[i] < mounted[j]
	})
	return mounted, nil
}

// MountLast brings the persistent disk back after a reboot. A known disk that is missing is an error, and
// so is a record of one that is not among those known. Where none is known at all, or the disk is
// blank, the Director may still have plans: that is a warning, and the store stays empty.
func (d *Persistent) MountLast(ctx context.Context) (changes []Change, warning string, err error) {
	defer d.lock()()
	warning, err = d.mountLast(ctx)
	return d.made, warning, err
}

func (d *Persistent) mountLast(ctx context.Context) (warning string, err error) {
	cid := d.Records.MountedCID()
	if cid == "" {
		return "", nil
	}
	known := d.Records.Disks()
	p, ok := known[cid]
	switch {
	case !ok && len(known) == 0:
		return fmt.Sprintf("persistent disk %s was mounted last and is no longer known: the store is empty", cid), nil
	case !ok:
		return "", fmt.Errorf("persistent disk %s was mounted last and is not among those known", cid)
	}
	dev, err := d.Resolver.Resolve(ctx, hintOf(cid, p.Hint))
	if err != nil {
		return "", fmt.Errorf("mount disk %s: %w", cid, err)
	}
	mountable, err := d.mountable(dev)
	if err != nil {
		return "", fmt.Errorf("mount disk %s: %w", cid, err)
	}
	if !mountable {
		return fmt.Sprintf("persistent disk %s was mounted last and %s is blank: it is left to the Director, the store is empty", cid, dev.Path), nil
	}
	if err := d.mountPersistent(ctx, p, dev); err != nil {
		return "", fmt.Errorf("mount disk %s: %w", cid, err)
	}
	return "", nil
}

func (d *Persistent) mountable(dev device.Device) (bool, error) {
	if dev.Directory || d.Options.BindMountPersistentDisk {
		return dev.Directory, nil
	}
	s, err := disk.Observe(dev.Path)
	if errors.Is(err, disk.ErrDamaged) {
		return true, nil // mounting it gives the better error
	}
	if d.Options.UsePreformattedPersistentDisk {
		return s.Content.Kind != filesystem.Blank, err
	}
	return s.Table.Label != disk.None || !s.Content.Blank(), err
}
