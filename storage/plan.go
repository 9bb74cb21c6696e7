package storage

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"

	"cambium/internal/blkdev"
	"cambium/plan"
	"cambium/platform/device"
	"cambium/platform/disk"
	"cambium/platform/filesystem"
	"cambium/settings"
)

// Change is one thing that boot or mount_disk would do to a disk, for `agent plan`.
type Change struct {
	Device string
	What   string
	// Proof is why it may be done, or, for a refusal, why not.
	Proof       string
	Destructive bool
}

func (c Change) String() string { return fmt.Sprintf("%s: %s: %s", c.Device, c.Proof, c.What) }

func mountChange(part, target string, c filesystem.Content) Change {
	return Change{Device: part, Proof: string(c.Kind), What: "mount on " + target}
}

func linkChange(device, link, cid string) Change {
	return Change{Device: device, Proof: "persistent disk " + cid, What: "link as " + link}
}

func rawChange(s disk.State, i int) Change {
	return Change{Device: s.Path, Proof: fmt.Sprintf("%s, %s%s, not in use, no persistent disk", s.Content, plan.Size(s.Bytes), serial(s.Number)),
		What: "create GPT with partition " + plan.RawName(i), Destructive: true}
}

// PlanRaw says what SetupRaw would change, without waiting and without writing.
func (d *Ephemeral) PlanRaw(_ context.Context, hints []settings.DiskHint) ([]Change, error) {
	if d.Options.SkipDiskSetup {
		return nil, nil
	}
	defer d.lock()()
	var all []Change
	for i, h := range hints {
		changes, err := d.planRaw(h, i)
		if err != nil {
			return all, err
		}
		all = append(all, changes...)
	}
	return all, nil
}

// Plan says what Setup would change, without waiting and without writing.
func (d *Ephemeral) Plan(_ context.Context, hint *settings.DiskHint, swapMiB *uint64, agentID string) ([]Change, error) {
	if d.Options.SkipDiskSetup {
		return nil, nil
	}
	defer d.lock()()
	return d.planEphemeral(hint, swapMiB, agentID)
}

// PlanMountLast says what MountLast would change, without waiting and without writing.
func (d *Persistent) PlanMountLast(ctx context.Context) ([]Change, error) {
	defer d.lock()()
	p, known := d.Records.Disks()[d.Records.MountedCID()]
	if !known {
		return nil, nil
	}
	return d.planPersistent(ctx, p)
}

// PlanMount says what mount_disk would do with each known disk, without waiting and without writing.
func (d *Persistent) PlanMount(ctx context.Context) ([]Change, error) {
	defer d.lock()()
	var cids []string
	for cid := range d.Records.Disks() {
		cids = append(cids, cid)
	}
	sort.Strings(cids)
	var all []Change
	for _, cid := range cids {
		changes, err := d.planPersistent(ctx, d.Records.Disks()[cid])
		if err != nil {
			return all, err
		}
		all = append(all, changes...)
	}
	return all, nil
}

func (d *Ephemeral) planEphemeral(hint *settings.DiskHint, swapMiB *uint64, agentID string) ([]Change, error) {
	ram, err := d.memory()
	if err != nil {
		return nil, err
	}
	if hint == nil || hint.Empty() {
		if !d.Options.CreatePartitionIfNoEphemeralDisk {
			return []Change{{Device: "ephemeral disk", Proof: "the CPI named none", What: "boot will fail: " + noEphemeral}}, nil
		}
		return d.planOnRoot(swapMiB, agentID, ram)
	}
	dev, err := d.Resolver.Look(hintOf("", *hint))
	if err != nil {
		return []Change{{Device: "ephemeral disk", Proof: err.Error(), What: "boot will wait for it"}}, nil
	}
	s, err := disk.Observe(dev.Path)
	if err != nil && !errors.Is(err, disk.ErrDamaged) {
		return nil, err
	}
	if _, kept := plan.KeptEphemeral(s, agentID, d.ephemeralLabel()); kept {
		return nil, nil
	}
	if err := d.proveDisposable(s); err != nil {
		return []Change{{Device: dev.Path, Proof: err.Error(), What: "will not be touched, boot will fail"}}, nil
	}
	layout, err := plan.NewEphemeral(s, agentID, ram, swapMiB, d.ephemeralLabel())
	if err != nil {
		return nil, err
	}
	proof := fmt.Sprintf("%s, %s%s, not in use, no persistent disk", s.Content, plan.Size(s.Bytes), serial(s.Number))
	return []Change{{Device: dev.Path, Proof: proof, What: "create " + describe(layout.Label, layout.Partitions, layout), Destructive: true}}, nil
}

func (d *Ephemeral) planOnRoot(swapMiB *uint64, agentID string, ram int64) ([]Change, error) {
	path, n, err := d.rootDisk()
	if err != nil {
		return []Change{{Device: "root disk", Proof: err.Error(), What: "boot will fail: " + noEphemeral}}, nil
	}
	s, err := disk.Observe(path)
	if err != nil {
		return nil, err
	}
	layout, made, err := plan.OnRoot(s, n, agentID, ram, swapMiB, func(n int) (filesystem.Content, error) {
		return filesystem.Probe(device.Partition(path, n))
	})
	if err != nil {
		return []Change{{Device: path, Proof: err.Error(), What: "will not be touched, boot will fail"}}, nil
	}
	if len(made) == 0 {
		return nil, nil
	}
	return []Change{{Device: path, Proof: fmt.Sprintf("nothing behind root partition %d", n), What: "append " + describe(layout.Label, made, layout)}}, nil
}

func (d *Ephemeral) planRaw(h settings.DiskHint, i int) ([]Change, error) {
	dev, err := d.Resolver.Look(hintOf("", h))
	if err != nil {
		return []Change{{Device: plan.RawName(i), Proof: err.Error(), What: "boot will wait for it"}}, nil
	}
	s, err := disk.Observe(dev.Path)
	if err != nil && !errors.Is(err, disk.ErrDamaged) {
		return nil, err
	}
	if plan.KeptRaw(s.Table) {
		return nil, nil
	}
	if err := d.proveDisposable(s); err != nil {
		return []Change{{Device: dev.Path, Proof: err.Error(), What: "will not be touched, boot will fail"}}, nil
	}
	return []Change{rawChange(s, i)}, nil
}

func (d *Persistent) planPersistent(ctx context.Context, p settings.PersistentDisk) ([]Change, error) {
	dev, err := d.Resolver.Look(hintOf(p.CID, p.Hint))
	if notThere(err) {
		return []Change{{Device: p.CID, Proof: err.Error(), What: "mount_disk will wait for it"}}, nil
	}
	if err != nil || dev.Directory || d.Options.UsePreformattedPersistentDisk {
		return nil, err
	}
	j, err := d.judge(ctx, p, dev.Path)
	if err != nil {
		return nil, err
	}
	kind := p.FileSystem
	if kind == "" {
		kind = string(filesystem.Ext4)
	}
	switch j.verdict {
	case plan.Refuse:
		return []Change{{Device: dev.Path, Proof: j.proof, What: "persistent disk " + p.CID + " will be refused"}}, nil
	case plan.Create:
		layout := describe(j.label, plan.NewPersistent(j.state, j.label), plan.Layout{Data: 1})
		return []Change{{Device: dev.Path, Proof: j.proof + serial(dev.Number), What: fmt.Sprintf("mount_disk %s will create %s, %s", p.CID, layout, kind), Destructive: true}}, nil
	case plan.Format:
		return []Change{{Device: dev.Path, Proof: j.proof + serial(dev.Number), What: fmt.Sprintf("mount_disk %s will make %s", p.CID, kind), Destructive: true}}, nil
	}
	end, why := growTo(j.state, j.state.Table.Partitions[0].Number)
	switch {
	case why != "":
		return []Change{{Device: dev.Path, Proof: why, What: "partition of " + p.CID + " will not be grown"}}, nil
	case end-j.state.Table.Partitions[0].End() >= growSlack:
		return []Change{{Device: dev.Path, Proof: j.proof + ", the disk is larger than its partition", What: "partition and file system of " + p.CID + " will be grown to " + plan.Size(end)}}, nil
	}
	return nil, nil
}

// serial tells disks of one size apart, where they have a serial number.
func serial(number blkdev.Number) string {
	info, err := blkdev.Lookup("/sys", number)
	if err != nil || info.Serial == "" {
		return ""
	}
	return ", serial " + info.Serial
}

func describe(label disk.Label, parts []disk.Partition, l plan.Layout) string {
	names := []string{strings.ToUpper(string(label))}
	for _, p := range parts {
		what := "data"
		if p.Number == l.Swap {
			what = "swap"
		}
		names = append(names, what+" "+plan.Size(p.Size))
	}
	return strings.Join(names, ", ")
}
