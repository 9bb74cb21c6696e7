//go:build machine

package machine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/lab"
	"cambium/lab/director"
	"cambium/lab/release"
)

// flows is an instance whose disk a Director changes in every way it has.
type flows struct {
	t    *testing.T
	l    *lab.Lab
	m    release.Manifest
	i    *lab.Instance
	disk string // the CID that the Director has on record
}

// sequence adds the steps of a Director to a plan.
type sequence func(p *director.Plan, d director.Deployment, upload func(context.Context) error)

// play takes the steps of a sequence.
func (f *flows) play(ctx context.Context, fill sequence, report director.Report) error {
	spec, upload, err := f.l.Spec(f.i, f.m, f.m.Groups[0], 0)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	var p director.Plan
	fill(&p, director.Deployment{Spec: spec, Disk: f.disk, Settings: map[string]any{}}, upload)
	return p.Run(ctx, report)
}

// do is play, where nothing may fail.
func (f *flows) do(what string, fill sequence) {
	f.t.Helper()
	if err := f.play(f.t.Context(), fill, func(step string, took time.Duration, err error) {
		f.t.Logf("%s: %s %v %v", what, step, took.Round(time.Millisecond), err)
	}); err != nil {
		f.t.Fatalf("%s: %v", what, err)
	}
}

// want compares what the Director and the jobs see with what they should.
func (f *flows) want(what, kept string) {
	f.t.Helper()
	mounted, err := f.i.Agent.Scan(f.t.Context())
	if err != nil || !slices.Equal(mounted, []string{f.disk}) {
		f.t.Errorf("%s: cloud check finds %v mounted, %v; want %s", what, mounted, err, f.disk)
	}
	if got := run(f.t, f.i, "sh", "-c", "mountpoint -q /var/vcap/store && cat /var/vcap/store/kept"); got != kept {
		f.t.Errorf("%s: the store holds %q, want %q", what, got, kept)
	}
	eventually.True(f.t, what+": running jobs", func() bool { return stateOf(f.t, f.i).JobState == "running" })
}

func (f *flows) appendToStore(text string) {
	f.t.Helper()
	run(f.t, f.i, "sh", "-c", "echo "+text+" >>/var/vcap/store/kept; sync")
}

// TestMachineDirectorFlows plays the message sequences in which a Director, its CPI and `bosh cloud-check` move a
// persistent disk, on one machine after the other.
func TestMachineDirectorFlows(t *testing.T) {
	t.Parallel()
	directorFlows(t, "systemd")
}

func directorFlows(t *testing.T, supervisor string) {
	l := supervisedLab(t, supervisor)
	m := manifest([]release.Job{forker()}, tool("1"))
	m.Groups[0].PersistentDisk = 512
	f := &flows{t: t, l: l, m: m, i: mustDeploy(t, l, m)}
	mounted, err := f.i.Agent.Scan(t.Context())
	if err != nil || len(mounted) != 1 {
		t.Fatalf("a cloud check after the deploy: %v, %v", mounted, err)
	}
	f.disk = mounted[0]
	f.appendToStore("first")

	f.do("native resize", func(p *director.Plan, d director.Deployment, upload func(context.Context) error) {
		p.Add("upload_blob", upload)
		f.i.Agent.ChangeDisk(p, f.i, d, f.disk, func(context.Context) (string, error) {
			return f.disk,
				f.i.GrowDisk(f.disk, lab.GiB)
		})
	})
	f.want("native resize", "first\n")
	if size, err := strconv.ParseInt(strings.TrimSpace(run(t, f.i, "sh", "-c",
		"df -B1 --output=size /var/vcap/store | tail -1")), 10, 64); err != nil || size < lab.GiB*9/10 {
		t.Errorf("after a native resize to 1 GiB the file system has %d bytes, %v", size, err)
	}

	f.do("update_disk", func(p *director.Plan, d director.Deployment, upload func(context.Context) error) {
		p.Add("upload_blob", upload)
		old := f.disk
		f.disk = "disk-updated"
		f.i.Agent.ChangeDisk(p, f.i, d, old, func(context.Context) (string, error) {
			return f.disk,
				f.i.CloneDisk(old, f.disk)
		})
	})
	f.want("update_disk with a new CID", "first\n")

	// A soft-stopped instance gets the snapshot of its disk as a disk of its own.
	f.do("stop", func(p *director.Plan, d director.Deployment, _ func(context.Context) error) {
		f.i.Agent.Stop(p, d, true)
	})
	run(t, f.i, "sync")
	if err := f.i.CloneDisk(f.disk, "disk-snapshot"); err != nil {
		t.Fatal(err)
	}
	f.appendToStore("after the snapshot")
	f.do("attach-disk", func(p *director.Plan, d director.Deployment, upload func(context.Context) error) {
		p.Add("upload_blob", upload)
		old := f.disk
		f.disk = "disk-snapshot"
		f.i.Agent.ReplaceDisk(p, f.i, old, f.disk)
		f.i.Agent.Start(p, d)
	})
	f.want("attach-disk of a snapshot", "first\n")

	f.do("--recreate-persistent-disks", func(p *director.Plan, d director.Deployment, upload func(context.Context) error) {
		p.Add("upload_blob", upload)
		d.Disk = "disk-recreated"
		if err := f.i.NewDisk(d.Disk, lab.GiB); err != nil {
			t.Fatal(err)
		}
		f.i.Agent.Update(p, f.i, d, f.disk)
		f.disk = d.Disk
	})
	f.want("--recreate-persistent-disks", "first\n")
	f.cloudCheck()
}

// cloudCheck makes each problem that a cloud check finds, and resolves it.
func (f *flows) cloudCheck() {
	t := f.t
	t.Helper()
	vanish := func() {
		t.Helper()
		run(t, f.i, "sh", "-c", "systemctl stop monit; pkill sleeper; umount /var/vcap/store; systemctl start monit")
		if err := f.i.DetachDisk(t.Context(), f.disk); err != nil {
			t.Fatal(err)
		}
		if mounted, err := f.i.Agent.Scan(t.Context()); err != nil || len(mounted) != 0 {
			t.Errorf("a cloud check without the disk finds %v, %v", mounted, err)
		}
	}
	vanish()
	f.do("reattach_disk", func(p *director.Plan, _ director.Deployment, _ func(context.Context) error) {
		f.i.Agent.Reattach(p, f.i, f.disk, nil)
	})
	f.want("reattach_disk", "first\n")
	vanish()
	f.do("reattach_disk_and_reboot", func(p *director.Plan, _ director.Deployment, _ func(context.Context) error) {
		f.i.Agent.Reattach(p, f.i, f.disk, f.i.Reboot)
	})
	f.want("reattach_disk_and_reboot", "first\n")

	// An agent that does not answer: the VM is rebooted, or made anew with the disk of the old one.
	run(t, f.i, "systemctl", "kill", "--signal=STOP", "bosh-agent")
	if _, err := f.i.Agent.Scan(t.Context()); !errors.Is(err, director.ErrTimeout) {
		t.Errorf("a cloud check of an agent that does not answer: %v, want a timeout", err)
	}
	f.do("reboot_vm", func(p *director.Plan, _ director.Deployment, _ func(context.Context) error) {
		p.Add("reboot_vm", func(ctx context.Context) error { return errors.Join(f.i.Kill(ctx), f.i.Start(ctx)) })
		p.Add("ping", f.i.Agent.WaitReady)
	})
	f.want("reboot_vm", "first\n")

	old := f.i
	if err := errors.Join(old.Kill(t.Context()), old.DetachDisk(t.Context(), f.disk)); err != nil {
		t.Fatal(err)
	}
	f.i = create(t, f.l, lab.VM{Name: "app-again", Ephemeral: 4 * lab.GiB})
	if err := errors.Join(old.MoveDisk(f.disk, f.i), f.i.Start(t.Context())); err != nil {
		t.Fatal(err)
	}
	f.do("recreate_vm", func(p *director.Plan, d director.Deployment, upload func(context.Context) error) {
		f.i.Agent.RecreateVM(p, f.i, d, upload)
	})
	f.want("recreate_vm", "first\n")
	if err := old.Delete(t.Context()); err != nil { // delete_vm
		t.Error(err)
	}
	f.lostDisk()
	f.deleteVM()
	f.inactiveDisk()
}

// lostDisk resolves a disk that the IaaS has lost: its reference is deleted, and the instance goes on without.
func (f *flows) lostDisk() {
	t := f.t
	t.Helper()
	run(t, f.i, "sh", "-c", "systemctl stop monit; pkill sleeper; umount /var/vcap/store; systemctl start monit")
	if err := f.i.LoseDisk(t.Context(), f.disk); err != nil {
		t.Fatal(err)
	}
	f.do("delete_disk_reference", func(p *director.Plan, _ director.Deployment, _ func(context.Context) error) {
		f.i.Agent.DropReference(p, f.disk)
	})
	if mounted, err := f.i.Agent.Scan(t.Context()); err != nil || len(mounted) != 0 {
		t.Errorf("after delete_disk_reference: %v, %v", mounted, err)
	}
	f.do("the next update", func(p *director.Plan, d director.Deployment, upload func(context.Context) error) {
		p.Add("upload_blob", upload)
		d.Disk = fmt.Sprintf("disk-next-%d", time.Now().Unix())
		if err := f.i.NewDisk(d.Disk, 512<<20); err != nil {
			t.Fatal(err)
		}
		f.i.Agent.Update(p, f.i, d, "")
		f.disk = d.Disk
	})
	f.appendToStore("second")
	f.want("the next update", "second\n")
}

// deleteVM resolves unresponsive agents without a reboot: the VM is forgotten, then it is deleted, and the one that is
// missing then is made anew.
func (f *flows) deleteVM() {
	t := f.t
	t.Helper()
	agent := *f.i.Agent
	agent.Ping = 2 * time.Second
	if err := f.play(t.Context(), func(p *director.Plan, _ director.Deployment,
		_ func(context.Context) error) {
		agent.DropVMReference(p)
	}, nil); err == nil {
		t.Error("delete_vm_reference of an agent that answers: no error")
	}
	run(t, f.i, "systemctl", "kill", "--signal=STOP", "bosh-agent")
	f.do("delete_vm_reference", func(p *director.Plan, _ director.Deployment,
		_ func(context.Context) error) {
		agent.DropVMReference(p)
	})
	// The VM that the Director has forgotten goes on with its disk.
	run(t, f.i, "systemctl", "kill", "--signal=CONT", "bosh-agent")
	f.want("delete_vm_reference", "second\n")

	run(t, f.i, "systemctl", "kill", "--signal=STOP", "bosh-agent")
	f.do("delete_vm", func(p *director.Plan, _ director.Deployment, _ func(context.Context) error) {
		agent.DeleteVM(p, f.i.RemoveKeepingDisks)
	})
	if kept := f.l.KeptDisks(); kept[f.disk] == "" {
		t.Fatalf("after delete_vm the IaaS has the disks %v, want %s", kept, f.disk)
	}
	f.i = start(t, f.l, lab.VM{Name: "app-anew", Ephemeral: 4 * lab.GiB})
	f.do("recreate_vm_without_wait", func(p *director.Plan, d director.Deployment, upload func(context.Context) error) {
		f.i.Agent.RecreateVMWithoutWait(p, f.i, d, upload)
	})
	f.want("recreate_vm_without_wait", "second\n")
}

// inactiveDisk resolves a second disk that a failed update has left mounted, and a disk of the instance that is on
// record as inactive.
func (f *flows) inactiveDisk() {
	t := f.t
	t.Helper()
	const inactive = "disk-inactive"
	if err := f.i.NewDisk(inactive, 512<<20); err != nil {
		t.Fatal(err)
	}
	f.do("a failed update", func(p *director.Plan, _ director.Deployment, _ func(context.Context) error) {
		f.i.Agent.ReplaceDisk(p, f.i, "", inactive)
	})
	deleteDisk := func(p *director.Plan, _ director.Deployment, _ func(context.Context) error) {
		f.i.Agent.DeleteInactiveDisk(p, f.i, inactive)
	}
	if err := f.play(t.Context(), deleteDisk, nil); err == nil {
		t.Error("delete_disk of a mounted disk: no error")
	}
	if mounted, err := f.i.Agent.Scan(t.Context()); err != nil || len(mounted) != 2 {
		t.Errorf("after delete_disk of a mounted disk: %v, %v, want both disks", mounted, err)
	}
	if _, err := f.i.Agent.Do(t.Context(), "unmount_disk", inactive); err != nil {
		t.Fatal(err)
	}
	f.do("delete_disk", deleteDisk)
	for _, a := range f.i.Disks() {
		if a.Disk.ID == inactive {
			t.Errorf("after delete_disk the machine still has %s", inactive)
		}
	}
	f.want("delete_disk", "second\n")
	// No request has told the agent that the disk is gone.
	run(t, f.i, "systemctl", "restart", "bosh-agent")
	ready(t, f.i)
	f.want("a restart after delete_disk", "second\n")

	f.do("activate_disk", func(p *director.Plan, _ director.Deployment, _ func(context.Context) error) {
		f.i.Agent.ActivateDisk(p, f.disk)
	})
	if err := f.play(t.Context(), func(p *director.Plan, _ director.Deployment, _ func(context.Context) error) {
		f.i.Agent.ActivateDisk(p, inactive)
	}, nil); err == nil {
		t.Error("activate_disk of a disk that is not mounted: no error")
	}
	f.want("activate_disk", "second\n")
}
