package persistent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sort"

	"cambium/platform/device"
	"cambium/settings"
	"cambium/storage/decide"
	"cambium/storage/internal/machine"
)

// PlanMountLast says what MountLast would change, without waiting and without writing.
func (d *Disks) PlanMountLast(ctx context.Context) (changes []decide.Change, warning string, err error) {
	d.Machine.Lock()
	defer d.Machine.Unlock()
	p, mounts, warning, err := d.lastMounted()
	if err != nil || !mounts {
		return nil, warning, err
	}
	dev, err := d.Resolver.Look(d.hint(p))
	if machine.Missing(err) {
		return []decide.Change{await(p.CID, err, "wait for it")}, "", nil
	}
	if err != nil {
		return nil, "", mountError(p.CID, err)
	}
	blank, err := d.blank(p, dev)
	if err != nil {
		return nil, "", mountError(p.CID, err)
	}
	if blank {
		return nil, "", blankError(p.CID, dev.Path)
	}
	changes, _, err = d.plan(ctx, p, dev)
	if err == nil {
		err = checkUnformatted(p.CID, changes)
	}
	if err != nil {
		return nil, "", mountError(p.CID, err)
	}
	return changes, "", nil
}

func await(cid string, err error, what string) decide.Change {
	return decide.Change{Op: decide.Await, Device: "persistent disk " + cid, Proof: err.Error(), What: what}
}

// PlanMount says what mount_disk would do with each disk that is known and that boot does not mount, without waiting and
// without writing.
func (d *Disks) PlanMount(ctx context.Context) ([]decide.Change, error) {
	d.Machine.Lock()
	defer d.Machine.Unlock()
	known, last := d.Records.Disks(), d.recorded()
	var cids []string
	for cid := range known {
		if cid != last {
			cids = append(cids, cid)
		}
	}
	sort.Strings(cids)
	var all []decide.Change
	for _, cid := range cids {
		changes, err := d.planKnown(ctx, known[cid])
		if err != nil {
			return all, fmt.Errorf("mount disk %s: %w", cid, err)
		}
		all = append(all, changes...)
	}
	return all, nil
}

func (d *Disks) planKnown(ctx context.Context, p settings.PersistentDisk) ([]decide.Change, error) {
	dev, err := d.Resolver.Look(d.hint(p))
	if machine.Missing(err) {
		return []decide.Change{await(p.CID, err, "mount_disk will wait for it")}, nil
	}
	if err != nil {
		return nil, err
	}
	changes, notGrown, err := d.plan(ctx, p, dev)
	var refused decide.Refusal
	if errors.As(err, &refused) {
		path, found := refused.Refused()
		return []decide.Change{{Op: decide.Reject, Device: path, Proof: found, What: "persistent disk " + p.CID + " will be refused"}}, nil
	}
	for i := range changes {
		changes[i].What = "mount_disk will " + changes[i].What
	}
	if notGrown != "" {
		changes = append(changes, decide.Change{Op: decide.Reject, Device: dev.Path, Proof: notGrown, What: "partition of " + p.CID + " will not be grown"})
	}
	return changes, err
}

// plan is mount without doing anything.
func (d *Disks) plan(ctx context.Context, p settings.PersistentDisk, dev device.Device) (changes []decide.Change, notGrown string, err error) {
	if d.BindMounted {
		at, err := d.placeBind(p.CID, dev.Path)
		if err == nil {
			err = d.checkLooked(p.CID, at, func() (*decide.Mark, error) { return d.Mark(dev.Path) })
		}
		if err != nil || at.Mounted {
			return nil, "", err
		}
		return []decide.Change{bindChange(p.CID, dev.Path, at)}, "", nil
	}
	if dev.Directory {
		return nil, "", fmt.Errorf("%s is no block device", dev.Path)
	}
	if err := d.checkClaims(p.CID, dev); err != nil {
		return nil, "", err
	}
	at, err := d.place(p.CID, dev.Path)
	if err != nil {
		return nil, "", err
	}
	err = d.checkLooked(p.CID, at, func() (*decide.Mark, error) {
		if dir := cmp.Or(at.Leaves, at.Directory); at.Mounted || at.Leaves != "" {
			return d.Mark(dir)
		}
		return lookForMark(d.part(dev.Path)), nil
	})
	if err != nil {
		return nil, "", err
	}
	if at.Mounted {
		o, err := d.observeMounted(ctx, dev.Path, false)
		if err != nil {
			return nil, "", err
		}
		plan, notGrown := decide.GrowMounted(o, at.Directory)
		return plan.Changes, notGrown, nil
	}
	o, err := d.observe(ctx, p, dev, false)
	if err != nil {
		return nil, "", err
	}
	plan, notGrown, err := decide.MountPersistent(o, at.Directory)
	return plan.Changes, notGrown, err
}

// checkLooked is checkMark without doing anything.
func (d *Disks) checkLooked(cid string, at decide.Placement, look func() (*decide.Mark, error)) error {
	if !at.RecordAsStore {
		return nil
	}
	records, err := d.Machine.Identities.All()
	if err != nil || records[cid].Accepted {
		return err
	}
	m, err := look()
	if err != nil {
		return err
	}
	return decide.CheckCopy(cid, m)
}
