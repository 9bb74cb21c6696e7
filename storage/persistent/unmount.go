package persistent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/sirupsen/logrus"

	"cambium/internal/blkdev"
	"cambium/platform/mount"
	"cambium/settings"
	"cambium/storage/internal/machine"
)

// Unmount takes a persistent disk off the store, or the migration target, and says what it did in the words the Director
// knows. The IaaS takes the disk away next, so it also waits until nothing holds it, in any mount namespace.
func (d *Disks) Unmount(ctx context.Context, cid string) (string, error) {
	d.Machine.Lock()
	defer d.Machine.Unlock()
	v, err := d.around()
	if err != nil {
		return "", err
	}
	p, err := d.known(cid)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, machine.UnmountLimit, errors.New("still busy after ten minutes"))
	defer cancel()
	unmounted, err := d.unmount(ctx, v, p)
	if err != nil {
		return "", fmt.Errorf("unmount disk %s: %w", cid, err)
	}
	if !unmounted {
		return fmt.Sprintf("Partition of %s is not mounted", cid), nil
	}
	return fmt.Sprintf("Unmounted partition of %s", cid), nil
}

func (d *Disks) unmount(ctx context.Context, v view, p settings.PersistentDisk) (unmounted bool, err error) {
	mounts, err := d.mountsOf(v, p)
	if err != nil {
		return false, err
	}
	// The last one first: what is mounted on top of the disk, or inside it, came later.
	for _, m := range slices.Backward(mounts) {
		d.Machine.CrashPoint("unmount")
		if err := d.unmountFrom(ctx, m); err != nil {
			return false, err
		}
	}
	return len(mounts) > 0, d.release(ctx, v, p, mounts)
}

// unmountFrom unmounts one mount of a disk, and before it what is mounted on top, as umount does. Another disk on top
// stays.
func (d *Disks) unmountFrom(ctx context.Context, m mount.Entry) error {
	for {
		all, err := mount.AllAt(m.Target)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(all, func(e mount.Entry) bool { return e.ID == m.ID }) {
			return nil
		}
		top := all[len(all)-1]
		if _, err := blkdev.Lookup("/sys", top.Number); err == nil && top.Number != m.Number {
			return fmt.Errorf("%s is mounted over it on %s: unmount that first", top.Source, m.Target)
		}
		if err := mount.UnmountReporting(ctx, m.Target, d.Busy(m.Target)); err != nil {
			return err
		}
	}
}

// Busy logs which processes use a mount that is waited for.
func (d *Disks) Busy(target string) func([]mount.Process) {
	return func(users []mount.Process) {
		d.Machine.Log.WithFields(logrus.Fields{"mount": target, "processes": fmt.Sprint(users)}).Warn("persistent disk is busy")
	}
}

// release waits until nothing holds a disk that has been unmounted here.
func (d *Disks) release(ctx context.Context, v view, p settings.PersistentDisk, mounts []mount.Entry) error {
	for _, m := range mounts {
		if m.Root == "/" || d.BindMounted {
			return d.awaitReleased(ctx, m)
		}
	}
	if d.BindMounted {
		return nil
	}
	// It is not mounted here; a private namespace may still have it.
	numbers, err := d.numbersOf(v, p)
	for number := range numbers {
		err = errors.Join(err, d.awaitReleased(ctx, mount.Entry{Source: d.part(v.leads[p.CID].Path), Number: number,
			Root: "/"}))
	}
	return err
}

// awaitReleased detaches what was mounted here from private mount namespaces, and waits until nothing holds it.
func (d *Disks) awaitReleased(ctx context.Context, m mount.Entry) error {
	// What cannot be detached is named if it is still there when the time is over.
	if err := d.Detach(m); err != nil {
		d.Machine.Log.WithError(err).Warn("mount cannot be detached from a private namespace")
	}
	return mount.AwaitReleased(ctx, m, d.BindMounted, d.Busy(m.Source))
}

// Detach detaches what was mounted here from private mount namespaces.
func (d *Disks) Detach(m mount.Entry) error {
	if released, err := mount.Released(m, d.BindMounted); released || err != nil {
		return err
	}
	changed, err := mount.DetachElsewhere(m)
	if len(changed) > 0 {
		d.Machine.Log.WithFields(logrus.Fields{"device": m.Source, "processes": fmt.Sprint(changed)}).Warn("mount detached from private namespaces")
	}
	return err
}

// mountsOf lists where anything of a persistent disk is mounted, binds included, in the order in which that was done.
func (d *Disks) mountsOf(v view, p settings.PersistentDisk) ([]mount.Entry, error) {
	if d.BindMounted {
		return d.bindsOf(v, p)
	}
	numbers, err := d.numbersOf(v, p)
	if err != nil {
		return nil, err
	}
	all, err := mount.Table()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(m mount.Entry) bool { return !numbers[m.Number] }), nil
}

// numbersOf are the devices with the file system of a persistent disk: the one that its hint leads to, unless that is another disk,
// and those on the store and the migration target. Its links may be gone while it is mounted.
func (d *Disks) numbersOf(v view, p settings.PersistentDisk) (map[blkdev.Number]bool, error) {
	numbers := map[blkdev.Number]bool{}
	for _, dir := range []string{d.Machine.Dirs.Store(), d.Machine.Dirs.StoreMigrationTarget()} {
		for _, m := range mountsAt(dir) {
			if d.owner(v, dir, m) == p.CID {
				numbers[m.Number] = true
			}
		}
	}
	if len(numbers) > 0 {
		return numbers, nil
	}
	l := v.leads[p.CID]
	if machine.Missing(l.err) {
		return numbers, nil
	}
	if l.err != nil {
		return nil, l.err
	}
	found, unread := d.identify(l.Path)
	if d.claims(v, l.Path, l.Number, false, found, unread).IsOther(p.CID) {
		return numbers, nil
	}
	number, err := blkdev.NumberOf(d.part(l.Path))
	if errors.Is(err, os.ErrNotExist) {
		return numbers, nil
	}
	numbers[number] = true
	return numbers, err
}

// mountsAt are all mounts at a directory that come from a device, also those that something is mounted on top of. Without the
// mount table there are none; reading it fails elsewhere.
func mountsAt(dir string) (found []mount.Entry) {
	all, err := mount.AllAt(dir)
	if err != nil {
		return nil
	}
	for _, m := range all {
		if _, err := blkdev.Lookup("/sys", m.Number); err == nil {
			found = append(found, m)
		}
	}
	return found
}

func (d *Disks) bindsOf(v view, p settings.PersistentDisk) (found []mount.Entry, err error) {
	for _, dir := range []string{d.Machine.Dirs.Store(), d.Machine.Dirs.StoreMigrationTarget()} {
		e, occupied, err := mount.At(dir)
		if err != nil {
			return nil, err
		}
		if occupied && d.owner(v, dir, e) == p.CID {
			found = append(found, e)
		}
	}
	return found, nil
}

// List returns the CIDs of the persistent disks that are mounted, the one on the store first: the Director compares that
// with its own record. It only reads, and so does not wait for a migration to end. It never fails: a Director that gets
// no answer, or an empty one, takes a disk in use for one that is gone.
func (d *Disks) List(ctx context.Context) ([]string, error) {
	if err := d.Reload(ctx); err != nil {
		d.Machine.Log.WithError(err).Warn("disks are listed without asking for the settings again")
	}
	v, err := d.around()
	if err != nil {
		d.Machine.Log.WithError(err).Warn("what is mounted is not known")
	}
	working, _, _ := d.Working() // is about to be mounted
	found := []string{v.OnStore, v.OnTarget, working}
	for _, cid := range v.Known {
		// What cannot be looked at is not mounted, unless nothing else explains what is.
		only := v.leads[cid].err != nil && v.unnamed && len(v.Known) == 1
		if mounts, err := d.mountsOf(v, v.known[cid]); only || err == nil && len(mounts) > 0 {
			found = append(found, cid)
		}
	}
	mounted := []string{}
	for _, cid := range found {
		if cid != "" && !slices.Contains(mounted, cid) {
			mounted = append(mounted, cid)
		}
	}
	return mounted, nil
}
