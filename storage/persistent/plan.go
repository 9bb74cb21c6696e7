package persistent

import (
	"context"
	"errors"
	"fmt"

	"cambium/settings"
	"cambium/storage/decide"
	"cambium/storage/internal/machine"
)

// PlanMountLast says what MountLast would change, without waiting and without writing.
func (d *Disks) PlanMountLast(ctx context.Context) (changes []decide.Change, warning string, err error) {
	if err := d.Machine.Lock(ctx); err != nil {
		return nil, "", err
	}
	defer d.Machine.Unlock()
	v, err := d.usable()
	if err != nil {
		return nil, "", err
	}
	cid, warning, err := decide.StoreDisk(v.Around)
	if cid == "" || err != nil {
		return nil, warning, err
	}
	plan, err := d.plan(ctx, v, v.known[cid], true)
	return plan.Changes, "", mountError(cid, err)
}

// PlanMount says what mount_disk would do with each disk that is known and that boot does not mount, without waiting and
// without writing.
func (d *Disks) PlanMount(ctx context.Context) (all []decide.Change, err error) {
	if err := d.Machine.Lock(ctx); err != nil {
		return nil, err
	}
	defer d.Machine.Unlock()
	v, err := d.usable()
	if err != nil {
		return nil, err
	}
	for _, cid := range v.Known {
		if cid == v.storeDisk() {
			continue
		}
		changes, err := d.planKnown(ctx, v, v.known[cid])
		if err != nil {
			return all, fmt.Errorf("mount disk %s: %w", cid, err)
		}
		all = append(all, changes...)
	}
	return all, nil
}

func (d *Disks) planKnown(ctx context.Context, v view, p settings.PersistentDisk) ([]decide.Change, error) {
	plan, err := d.plan(ctx, v, p, false)
	if r, refused := errors.AsType[*decide.Refusal](err); refused {
		return []decide.Change{{Op: decide.Reject, Device: r.Path, Proof: r.Found,
			What: "persistent disk " + p.CID + " will be refused. " + r.Remedy}}, nil
	}
	changes := plan.Changes
	for i := range changes {
		changes[i].What = "mount_disk will " + changes[i].What
	}
	if plan.NotGrown != "" {
		changes = append(changes, decide.Change{Op: decide.Reject, Device: v.leads[p.CID].Path, Proof: plan.NotGrown,
			What: "partition of " + p.CID + " will not be grown"})
	}
	return changes, err
}

// plan is mount without doing anything.
func (d *Disks) plan(ctx context.Context, v view, p settings.PersistentDisk, atBoot bool) (decide.Plan, error) {
	l := v.leads[p.CID]
	switch {
	case machine.Missing(l.err):
		return decide.MountDisk(decide.Observed{Persistent: decide.Persistent{CID: p.CID}, Absent: l.err})
	case l.err != nil:
		return decide.Plan{}, l.err
	}
	o, err := d.observe(ctx, v, p, l.Device, false)
	if err != nil {
		return decide.Plan{}, err
	}
	o.Boot = atBoot
	return decide.MountDisk(o)
}

// Describe says what is on the disk that is attached under a CID.
func (d *Disks) Describe(ctx context.Context, cid string) (string, error) {
	p, err := d.known(cid)
	if err != nil {
		return "", err
	}
	v, err := d.usable()
	if err != nil {
		return "", err
	}
	l := v.leads[cid]
	if l.err != nil {
		return "", l.err
	}
	if d.BindMounted || d.Preformatted {
		return "", fmt.Errorf("the agent does not format disk %s: according to agent.json, disks come formatted", cid)
	}
	o, err := d.observe(ctx, v, p, l.Device, false)
	if err != nil {
		return "", err
	}
	return decide.Describe(o), nil
}
