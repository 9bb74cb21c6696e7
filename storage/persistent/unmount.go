package persistent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/sirupsen/logrus"

	"cambium/internal/blkdev"
	"cambium/platform/mount"
	"cambium/storage/decide"
	"cambium/storage/internal/machine"
)

// Unmount unmounts a persistent disk from the store or the migration target. Since the IaaS detaches the disk next, it
// also waits until no mount namespace uses it. It returns the text that Directors expect.
func (d *Disks) Unmount(ctx context.Context, cid string) (string, error) {
	if err := d.Machine.Lock(ctx); err != nil {
		return "", err
	}
	defer d.Machine.Unlock()
	v, err := d.observeSurroundings()
	if err != nil {
		return "", err
	}
	if _, err := d.findKnown(cid); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, machine.UnmountLimit, errors.New("still busy after ten minutes"))
	defer cancel()
	unmounted, err := d.unmount(ctx, v, cid)
	if err != nil {
		return "", fmt.Errorf("unmount disk %s: %w", cid, err)
	}
	if !unmounted {
		return fmt.Sprintf("Partition of %s is not mounted", cid), nil
	}
	return fmt.Sprintf("Unmounted partition of %s", cid), nil
}

func (d *Disks) unmount(ctx context.Context, v surroundings, cid string) (unmounted bool, err error) {
	o, table, err := d.observeMounts(v, cid)
	if err != nil {
		return false, err
	}
	order, held, err := decide.UnmountDisk(o, cid)
	if err != nil {
		return false, err
	}
	for _, m := range order {
		if e := table[m.ID]; isUnplugged(e) {
			d.Machine.Log.WithFields(logrus.Fields{"cid": cid, "device": e.Source, "mount": e.Target}).
				Warn("the device of the disk is gone; unmounting what is left of it")
		}
		d.Machine.CrashPoint("unmount")
		if err := d.unmountFrom(ctx, m); err != nil {
			return false, err
		}
	}
	for _, m := range held {
		e := mount.Entry{Source: m.Source, Number: blkdev.Number(m.Device), Root: "/"}
		if d.BindMounted {
			e = table[m.ID]
		}
		err = errors.Join(err, d.awaitReleased(ctx, e))
	}
	if err == nil {
		d.forget(func(n decide.Noted) bool { return n.Owner == cid })
	}
	return len(order) > 0, err
}

// unmountFrom unmounts m, which must be the visible mount at its directory. It may already be gone because a bind mount
// was unmounted.
func (d *Disks) unmountFrom(ctx context.Context, m decide.Mounted) error {
	all, err := mount.AllAt(m.Target)
	if err != nil || !slices.ContainsFunc(all, func(e mount.Entry) bool { return e.ID == m.ID }) {
		return err
	}
	if top := all[len(all)-1]; top.ID != m.ID {
		return fmt.Errorf("%s was mounted on %s in the meantime: unmount that first", top.Source, m.Target)
	}
	return mount.UnmountReporting(ctx, m.Target, d.LogBusy(m.Target))
}

// LogBusy returns a function that logs the processes which keep a mount busy.
func (d *Disks) LogBusy(target string) func([]mount.Process) {
	return func(users []mount.Process) {
		d.Machine.Log.WithFields(logrus.Fields{"mount": target, "processes": fmt.Sprint(users)}).
			Warn("persistent disk is busy")
	}
}

// awaitReleased detaches a mount's file system from private mount namespaces, and waits until nothing uses it.
func (d *Disks) awaitReleased(ctx context.Context, m mount.Entry) error {
	// If it remains in use, AwaitReleased names the processes.
	if err := d.Detach(m); err != nil {
		d.Machine.Log.WithError(err).Warn("cannot detach a mount from a private namespace")
	}
	return mount.AwaitReleased(ctx, m, d.BindMounted, d.LogBusy(m.Source))
}

// Detach detaches a mount's file system from private mount namespaces.
func (d *Disks) Detach(m mount.Entry) error {
	if released, err := mount.Released(m, d.BindMounted); released || err != nil {
		return err
	}
	changed, err := mount.DetachElsewhere(m)
	if len(changed) > 0 {
		d.Machine.Log.WithFields(logrus.Fields{"device": m.Source, "processes": fmt.Sprint(changed)}).
			Warn("mount detached from private namespaces")
	}
	return err
}

// observeMounts observes the mount table and, if none of the mounts belongs to the disk, resolves its hint. It also
// returns the mounts by ID.
func (d *Disks) observeMounts(v surroundings, cid string) (o decide.Mounts, table map[int]mount.Entry, err error) {
	o, table = decide.Mounts{Surroundings: v.Surroundings}, map[int]mount.Entry{}
	all, err := mount.Table()
	if err != nil {
		return o, nil, err
	}
	for _, e := range all {
		table[e.ID] = e
		o.All = append(o.All, mounted(e, v.owners[e.ID]))
	}
	if !slices.Contains(slices.Collect(maps.Values(v.owners)), cid) {
		o.Resolved = d.resolveHint(v, cid)
	}
	return o, table, nil
}

// resolveHint returns the device to which the hint of a disk leads.
func (d *Disks) resolveHint(v surroundings, cid string) decide.Resolved {
	l := v.resolved[cid]
	if l.err != nil || d.BindMounted {
		return decide.Resolved{Err: l.err, Missing: machine.Missing(l.err)}
	}
	r := decide.Resolved{Source: d.part(l.Path)}
	number, err := blkdev.NumberOf(r.Source)
	if !errors.Is(err, os.ErrNotExist) {
		r.Device, r.Err = uint64(number), err
	}
	return r
}
