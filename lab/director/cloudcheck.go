package director

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// The sequences below are those of the resolutions that `bosh cloud-check` offers.

// scanTimeout bounds the wait of a cloud check for an answer. An agent that takes longer counts as unresponsive.
const scanTimeout = 10 * time.Second

// Scan returns the mounted disks, as a cloud check asks for them.
func (a *Agent) Scan(ctx context.Context) (mounted []string, err error) {
	checked := a.checked()
	if _, err := checked.once(ctx, checked.Timeout, "get_state", []any{}); err != nil {
		return nil, err
	}
	err = checked.Into(ctx, &mounted, "list_disk")
	return mounted, err
}

// checked returns the agent with the timeout of a cloud check.
func (a *Agent) checked() *Agent {
	checked := *a
	checked.Timeout = scanTimeout
	return &checked
}

// unresponsive fails if the agent answers a ping. It is the first step of all resolutions for an unresponsive agent.
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

// DeleteVM adds the steps of the resolution delete_vm for an unresponsive agent. After the ping there is no request:
// the CPI deletes the VM with its disks attached.
func (a *Agent) DeleteVM(p *Plan, deleteVM func(ctx context.Context) error) {
	p.Add("ping", a.unresponsive)
	p.Add("delete_vm", deleteVM)
}

// DropVMReference adds the steps of the resolution delete_vm_reference for an unresponsive agent: the Director forgets
// the VM, which is not changed.
func (a *Agent) DropVMReference(p *Plan) { p.Add("ping", a.unresponsive) }

// Reattach adds the steps of the resolution for a disk that is not mounted where it should be. If reboot is set, the
// agent mounts the disk when it starts.
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

// DropReference adds the steps of the resolution for a disk that the IaaS has lost: if it is still mounted, it is
// unmounted.
func (a *Agent) DropReference(p *Plan, cid string) {
	p.Add("list_disk", func(ctx context.Context) error {
		mounted, err := a.checked().hasMounted(ctx, cid)
		if err != nil || !mounted {
			return err
		}
		return a.expect("", "unmount_disk", cid)(ctx)
	})
}

// DeleteInactiveDisk adds the steps of the resolution delete_disk for an inactive disk. A mounted disk is in use. For
// another disk, the agent gets no request, and errors of the CPI are ignored.
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

// ActivateDisk adds the steps of the resolution activate_disk for an inactive disk: if it is mounted, it becomes the
// disk of the instance.
func (a *Agent) ActivateDisk(p *Plan, cid string) {
	p.Add("list_disk", func(ctx context.Context) error {
		mounted, err := a.checked().hasMounted(ctx, cid)
		if err == nil && !mounted {
			err = fmt.Errorf("disk %s is not mounted", cid)
		}
		return err
	})
}

// RecreateVM adds the steps of the resolution for a missing or unresponsive VM, after the CPI has created another: the
// same disk and spec, and the jobs run.
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

// RecreateVMWithoutWait adds the steps of the resolution recreate_vm_without_wait, which is automatic for a missing VM.
// It ends when start has returned.
func (a *Agent) RecreateVMWithoutWait(p *Plan, cpi CPI, d Deployment, upload func(context.Context) error) {
	a.NewVM(p, cpi, d)
	p.Add("upload_blob", upload)
	a.applyAndStart(p, d)
}
