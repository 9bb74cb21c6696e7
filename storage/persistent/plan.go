package persistent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"cambium/platform/device"
	"cambium/settings"
	"cambium/storage/decide"
	"cambium/storage/internal/machine"
	"cambium/storage/record"
)

// PlanMount returns the changes that mount_disk would make to each known disk, except the one that a boot mounts and
// those that jobs find by names of their own. It does not wait or write.
func (d *Disks) PlanMount(ctx context.Context) (all []decide.Change, err error) {
	if err := d.Machine.Lock(ctx); err != nil {
		return nil, err
	}
	defer d.Machine.Unlock()
	v, err := d.observeForDecision()
	if err != nil {
		return nil, err
	}
	ofJobs := d.jobDevices(v)
	for _, cid := range v.Known {
		if cid == v.storeDisk() || slices.Contains(d.associatedCIDs(), cid) || ofJobs[v.resolved[cid].Number] {
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

func (d *Disks) planKnown(ctx context.Context, v surroundings, p settings.PersistentDisk) ([]decide.Change, error) {
	plan, err := d.plan(ctx, v, p, Asked)
	if r, refused := errors.AsType[*decide.Refusal](err); refused {
		return []decide.Change{{Op: decide.Reject, Device: r.Path, Proof: r.Found,
			What: "persistent disk " + p.CID + " will be refused. " + r.Remedy}}, nil
	}
	changes := plan.Changes
	for i := range changes {
		changes[i].What = "mount_disk will " + changes[i].What
	}
	if plan.NotGrown != "" {
		changes = append(changes, decide.Change{Op: decide.Reject, Device: v.resolved[p.CID].Path, Proof: plan.NotGrown,
			What: "partition of " + p.CID + " will not be grown"})
	}
	return changes, err
}

// plan returns the plan of mount without applying it.
func (d *Disks) plan(ctx context.Context, v surroundings, p settings.PersistentDisk,
	why Occasion) (decide.Plan, error) {
	l := v.resolved[p.CID]
	switch {
	case machine.Missing(l.err):
		return decide.MountDisk(decide.Observed{Persistent: decide.Persistent{CID: p.CID}, Absent: l.err})
	case l.err != nil:
		return decide.Plan{}, l.err
	}
	at, err := d.place(ctx, v, p, l.Device, why, false)
	if err == nil {
		err = at.predict()
	}
	return at.plan, err
}

// predict predicts the decision of admit, as far as possible without replaying a journal.
func (p *placing) predict() error {
	disk := decide.Disk{CID: p.o.CID, Path: p.o.Disk.Path, FileSystem: p.o.Volume.Content.UUID, Statement: p.o.Statement}
	switch {
	case !p.plan.Placed.Store:
		return decide.CheckTarget(disk, p.o.Surroundings, p.o.Elsewhere)
	case p.o.MountedOn == p.o.Store:
		return decide.CheckMounted(p.o.OnStoreIs, p.o.Surroundings, p.others)
	case !p.o.Unknown:
		return p.checkChoice(disk)
	}
	for i, c := range p.plan.Changes {
		if c.Op == decide.Mount {
			p.plan.Changes[i].Proof += ", unknown until mounted whether it is the store: its journal is used"
		}
	}
	return nil
}

// Describe returns a description of the disk attached under a CID, for an operator, and its fingerprint, for a request
// about it.
func (d *Disks) Describe(ctx context.Context, cid string, a record.Action) (text, shown string, err error) {
	p, err := d.findKnown(cid)
	if err != nil {
		return "", "", err
	}
	v, err := d.observeForDecision()
	if err != nil {
		return "", "", err
	}
	l := v.resolved[cid]
	if l.err != nil {
		return "", "", l.err
	}
	if a == record.Format && (d.BindMounted || d.Preformatted) {
		return "", "", fmt.Errorf(
			"the agent does not format disk %s: according to agent.json, disks come formatted", cid)
	}
	if shown, err = d.fingerprint(l.Device); err != nil || d.BindMounted {
		return "the directory " + l.Path, shown, err
	}
	o, err := d.observe(ctx, v, p, l.Device, false)
	if err != nil {
		return "", "", err
	}
	return decide.Describe(o), shown, nil
}

// fingerprint returns a text that differs between disks.
func (d *Disks) fingerprint(dev device.Device) (string, error) {
	if d.BindMounted || dev.Directory {
		return "directory " + dev.Path, nil
	}
	found, _ := d.identify(dev.Path)
	return machine.Fingerprint(dev.Path, found)
}
