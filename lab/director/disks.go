package director

import (
	"context"
	"slices"
)

// The sequences below are those in which a Director moves persistent disks outside of an ordinary update.

// hasMounted reports whether the agent has mounted a disk.
func (a *Agent) hasMounted(ctx context.Context, cid string) (bool, error) {
	var cids []string
	err := a.Into(ctx, &cids, "list_disk")
	return slices.Contains(cids, cid), err
}

// Detach adds the steps to detach a disk that may be mounted.
func (a *Agent) Detach(p *Plan, cpi CPI, cid string) {
	mounted := false
	p.Add("list_disk", func(ctx context.Context) (err error) {
		mounted, err = a.hasMounted(ctx, cid)
		return err
	})
	p.Add("unmount_disk "+cid, func(ctx context.Context) error {
		if !mounted {
			return nil
		}
		return a.expect("", "unmount_disk", cid)(ctx)
	})
	p.Add("remove_persistent_disk "+cid, a.optional(a.expect("", "remove_persistent_disk", cid)))
	p.Add("detach_disk "+cid, func(ctx context.Context) error { return cpi.DetachDisk(ctx, cid) })
}

// ChangeDisk adds the steps of a Director whose CPI changes disks, with resize_disk or update_disk: the disk is
// detached, changed and attached again. change may return another CID.
func (a *Agent) ChangeDisk(p *Plan, cpi CPI, d Deployment, cid string,
	change func(ctx context.Context) (string, error)) {
	a.Stop(p, d, true)
	a.Detach(p, cpi, cid)
	changed := cid
	p.Add("resize_disk or update_disk", func(ctx context.Context) (err error) {
		changed, err = change(ctx)
		return err
	})
	var back Plan
	p.Add("attach the disk again", func(ctx context.Context) error {
		a.addDisk(&back, cpi, changed)
		return back.Run(ctx, nil)
	})
	a.Start(p, d)
}

// ReplaceDisk adds the steps of `bosh attach-disk` on a stopped instance, which replaces its disk, if it has one.
func (a *Agent) ReplaceDisk(p *Plan, cpi CPI, old, cid string) {
	if old != "" {
		a.Detach(p, cpi, old)
	}
	a.addDisk(p, cpi, cid)
}
