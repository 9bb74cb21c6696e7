package director

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// The sequences below are those in which a Director moves persistent disks outside of an ordinary update, and
// those of the resolutions that `bosh cloud-check` offers. What a resolution does in the IaaS alone is not here.

// Detach takes a disk from a machine that may have it mounted.
func (a *Agent) Detach(p *Plan, cpi CPI, cid string) {
	mounted := false
	p.Add("list_disk", func(ctx context.Context) error {
		var cids []string
		err := a.Into(ctx, &cids, "list_disk")
		mounted = slices.Contains(cids, cid)
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

// ChangeDisk is the sequence of a Director whose CPI changes a disk itself, by resize_disk or update_disk: the disk
// is detached, changed and attached again. The CID that change returns may be another.
func (a *Agent) ChangeDisk(p *Plan, cpi CPI, d Deployment, cid string, change func(ctx context.Context) (string, error)) {
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

// ReplaceDisk is `bosh attach-disk` on a stopped instance: the disk that it has, if any, is replaced by another.
func (a *Agent) ReplaceDisk(p *Plan, cpi CPI, old, cid string) {
	if old != "" {
		a.Detach(p, cpi, old)
	}
	a.addDisk(p, cpi, cid)
}

// scanTimeout is how long a cloud check waits for an answer; a timeout means an unresponsive agent.
const scanTimeout = 10 * time.Second

// Scan is the part of a cloud check that asks an agent: it returns the disks that are mounted.
func (a *Agent) Scan(ctx context.Context) (mounted []string, err error) {
	hasty := *a
	hasty.Timeout = scanTimeout
	if _, err := hasty.once(ctx, scanTimeout, "get_state", []any{}); err != nil {
		return nil, err
	}
	err = hasty.Into(ctx, &mounted, "list_disk")
	return mounted, err
}

// Reattach is the resolution of a disk that is not mounted where it should be. With reboot the agent mounts the
// disk at its start.
func (a *Agent) Reattach(p *Plan, cpi CPI, cid string, reboot func(ctx context.Context) error) {
	if reboot == nil {
		a.addDisk(p, cpi, cid)
		return
	}
	var hint any
	p.Add("attach_disk", func(ctx context.Context) (err error) {
		hint, err = cpi.AttachDisk(ctx, cid)
		return err
	})
	p.Add("add_persistent_disk", func(ctx context.Context) error {
		if hint == nil {
			return nil
		}
		return a.optional(a.expect("", "add_persistent_disk", cid, hint))(ctx)
	})
	p.Add("reboot_vm", reboot)
	p.Add("ping", a.WaitReady)
}

// DropReference is the resolution of a disk that the IaaS has lost: what is left of it is unmounted.
func (a *Agent) DropReference(p *Plan, cid string) {
	p.Add("list_disk", func(ctx context.Context) error {
		var cids []string
		if err := a.Into(ctx, &cids, "list_disk"); err != nil {
			return err
		}
		if !slices.Contains(cids, cid) {
			return nil
		}
		return a.expect("", "unmount_disk", cid)(ctx)
	})
}

// RecreateVM is the resolution of a VM that is gone or unresponsive, once the CPI has made another: the same disk, the
// same spec, and the jobs run.
func (a *Agent) RecreateVM(p *Plan, cpi CPI, d Deployment, upload func(context.Context) error) {
	a.NewVM(p, cpi, d)
	p.Add("upload_blob", upload)
	a.Start(p, d)
	p.Add("list_disk", func(ctx context.Context) error {
		mounted, err := a.Scan(ctx)
		if err == nil && d.Disk != "" && !slices.Equal(mounted, []string{d.Disk}) {
			err = fmt.Errorf("cloud check finds %v mounted, want %s", mounted, d.Disk)
		}
		return err
	})
}
