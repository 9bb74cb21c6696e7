package director

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// The sequences below are those of the resolutions that `bosh cloud-check` offers.

// scanTimeout bounds the wait of a cloud check for an answer; an agent that exceeds it counts as unresponsive.
const scanTimeout = 10 * time.Second

// Scan is the part of a cloud check that asks an agent: it returns the disks that are mounted.
func (a *Agent) Scan(ctx context.Context) (mounted []string, err error) {
	checked := a.checked()
	if _, err := checked.once(ctx, checked.Timeout, "get_state", []any{}); err != nil {
		return nil, err
	}
	err = checked.Into(ctx, &mounted, "list_disk")
	return mounted, err
}

// checked is the agent with the timeout of a cloud check.
func (a *Agent) checked() *Agent {
	checked := *a
	checked.Timeout = scanTimeout
	return &checked
}

// unresponsive is the first step of each resolution for an unresponsive agent: one that answers a ping is left alone.
func (a *Agent) unresponsive(ctx context.Context) error {
	checked := a.checked()
	if a.Ping != 0 {
		checked.Timeout = a.Ping
	}
	_, err := checked.Call(ctx, "ping")
	switch {
	case err == nil:
		return errors.New("the agent is responding now")
	case errors.Is(err, ErrTimeout):
		return nil
	}
	return err
}

// DeleteVM is the resolution delete_vm of an unresponsive agent. No request follows the ping: the CPI deletes the VM,
// which has its disks attached.
func (a *Agent) DeleteVM(p *Plan, deleteVM func(ctx context.Context) error) {
	p.Add("ping", a.unresponsive)
	p.Add("delete_vm", deleteVM)
}

// DropVMReference is the resolution delete_vm_reference of an unresponsive agent: the Director forgets the VM, which
// stays as it is.
func (a *Agent) DropVMReference(p *Plan) { p.Add("ping", a.unresponsive) }

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
		mounted, err := a.checked().hasMounted(ctx, cid)
		if err != nil || !mounted {
			return err
		}
		return a.expect("", "unmount_disk", cid)(ctx)
	})
}

// DeleteInactiveDisk is the resolution delete_disk of an inactive disk. A mounted one is in use; of another the agent
// is told nothing, and errors of the CPI are ignored.
func (a *Agent) DeleteInactiveDisk(p *Plan, cpi CPI, cid string) {
	p.Add("list_disk", func(ctx context.Context) error {
		mounted, err := a.checked().hasMounted(ctx, cid)
		if err == nil && mounted {
			err = fmt.Errorf("disk %s is in use", cid)
		}
		return err
	})
	p.Add("detach_disk "+cid, func(ctx context.Context) error {
		_ = cpi.DetachDisk(ctx, cid)
		return nil
	})
}

// ActivateDisk is the resolution activate_disk of an inactive disk: a mounted one becomes the disk of the instance.
func (a *Agent) ActivateDisk(p *Plan, cid string) {
	p.Add("list_disk", func(ctx context.Context) error {
		mounted, err := a.checked().hasMounted(ctx, cid)
		if err == nil && !mounted {
			err = fmt.Errorf("disk %s is not mounted", cid)
		}
		return err
	})
}

// RecreateVM is the resolution of a VM that is gone or unresponsive, once the CPI has made another: the same disk, the
// same spec, and the jobs run.
func (a *Agent) RecreateVM(p *Plan, cpi CPI, d Deployment, upload func(context.Context) error) {
	a.RecreateVMWithoutWait(p, cpi, d, upload)
	a.awaitRunning(p, d)
	p.Add("list_disk", func(ctx context.Context) error {
		mounted, err := a.Scan(ctx)
		if err == nil && d.Disk != "" && !slices.Equal(mounted, []string{d.Disk}) {
			err = fmt.Errorf("cloud check finds %v mounted, want %s", mounted, d.Disk)
		}
		return err
	})
}

// RecreateVMWithoutWait is the resolution recreate_vm_without_wait, which is the automatic one of a missing
// VM: it ends when start has been answered.
func (a *Agent) RecreateVMWithoutWait(p *Plan, cpi CPI, d Deployment, upload func(context.Context) error) {
	a.NewVM(p, cpi, d)
	p.Add("upload_blob", upload)
	a.applyAndStart(p, d)
}
