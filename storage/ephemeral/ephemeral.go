// Package ephemeral prepares disks whose content may be lost: the ephemeral disk, raw ephemeral disks, and the root
// disk, if that holds the ephemeral data. It observes, lets package decide make the decisions, and makes the changes.
// If acting is false, a function returns the changes that it would make, and neither waits nor writes.
package ephemeral

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"cambium/internal/blkdev"
	"cambium/platform/device"
	"cambium/platform/disk"
	"cambium/platform/disk/layout"
	"cambium/platform/filesystem"
	"cambium/platform/filesystem/probe"
	"cambium/platform/mount"
	"cambium/settings"
	"cambium/storage/decide"
	"cambium/storage/internal/machine"
	"cambium/storage/record"
)

// Resolver finds devices.
type Resolver interface {
	Resolve(ctx context.Context, h device.Hint) (device.Device, error)
	ResolveOnce(h device.Hint) (device.Device, error)
	InstanceStorage(ctx context.Context, count int) ([]device.Device, error)
}

// Disks manages the disks of a machine whose content may be lost.
type Disks struct {
	Machine  *machine.Machine
	Resolver Resolver
	// PersistentDisks returns the persistent disks in settings and hints.
	PersistentDisks func() map[string]settings.PersistentDisk

	// SkipSetup disables all changes to disks.
	SkipSetup bool
	// CreateOnRoot puts the data after the root partition if the CPI names no disk, and FallBackToRoot also if the
	// named disk is missing.
	CreateOnRoot, FallBackToRoot bool
	// Label is the type of new partition tables.
	Label layout.Label
	// ManagedVolumes is set if raw ephemeral NVMe disks are found by excluding other disks.
	ManagedVolumes bool
	// AfterBoot defers work for which no caller waits.
	AfterBoot func(func())
	// AgentID returns the agent id, which distinguishes this agent's ephemeral disk from those of earlier VMs.
	AgentID func() string
}

// planLimit bounds the wait of a plan for disks.
const planLimit = time.Second

// wanted holds the settings for the ephemeral disk.
type wanted struct {
	hint    *settings.DiskHint
	swapMiB *uint64
	agentID string
}

func (w wanted) named() bool { return w.hint != nil && !w.hint.Empty() }

// Setup prepares swap and data on the ephemeral disk and mounts the data. hint is nil or empty if the CPI named no
// disk. swapMiB is env.bosh.swap_size.
func (d *Disks) Setup(ctx context.Context, hint *settings.DiskHint, swapMiB *uint64, agentID string,
	acting bool) ([]decide.Change, error) {
	if err := d.Machine.Lock(ctx); err != nil {
		return nil, err
	}
	defer d.Machine.Unlock()
	if acting {
		if err := machine.EnsureDir(d.Machine.Dirs.Data(), 0o750); err != nil {
			return nil, fmt.Errorf("ephemeral disk: %w", err)
		}
	}
	plan, release, err := d.plan(ctx, wanted{hint, swapMiB, agentID}, acting)
	if err != nil || !acting {
		return plan.Changes, err
	}
	made, err := d.Machine.Apply(ctx, record.Ephemeral, plan)
	if err != nil {
		release()
		return made, fmt.Errorf("ephemeral disk: %w", err)
	}
	if err := d.answered(record.Ephemeral, plan.Asked); err != nil {
		release()
		return made, err
	}
	// The data is in use now, so release, after which udev reads the disk again, can wait.
	d.AfterBoot(release)
	return made, nil
}

// plan observes the disk for the ephemeral data and plans its changes. If acting is set, it waits for the disk,
// announces its partitions to the kernel, and holds it until release is called: otherwise udev would remove its
// partitions for a moment.
func (d *Disks) plan(ctx context.Context, w wanted, acting bool) (p decide.Plan, release func(), err error) {
	release = func() {}
	if d.SkipSetup {
		return p, release, nil
	}
	path, onRoot, missing, err := d.find(ctx, w, acting)
	switch {
	case err == nil && missing != nil && !acting:
		p.Changes = []decide.Change{await("ephemeral disk", missing)}
	case err == nil && missing != nil && onRoot:
		d.Machine.Log.WithError(missing).
			Warn("the named ephemeral disk is missing; using the root disk, as configured")
	case err == nil && missing != nil:
		err = fmt.Errorf("%s: %w", decide.NoEphemeral, missing)
	}
	if err != nil || missing != nil && !onRoot {
		return p, release, err
	}
	root, what := 0, "ephemeral disk"
	if onRoot {
		what = "ephemeral data on the root disk"
		if path, root, err = d.Machine.RootDisk(); err != nil {
			return p, release, decide.NoRootDisk(err)
		}
	} else if acting {
		if release, err = disk.Hold(ctx, path); err != nil {
			return p, nil, fmt.Errorf("%s: %w", what, err)
		}
	}
	o, err := d.observe(ctx, path, root, w, acting)
	var setup decide.Plan
	if err == nil {
		setup, err = decide.SetupEphemeral(o)
	}
	if err != nil {
		release()
		return p, nil, fmt.Errorf("%s: %w", what, err)
	}
	setup.Changes = append(p.Changes, setup.Changes...)
	return setup, release, nil
}

// await returns the change that a plan contains for a disk that has not appeared yet.
func await(what string, err error) decide.Change {
	return decide.Change{Op: decide.Await, Device: what, Proof: err.Error(), What: "wait for it"}
}

// findDisk resolves a hint. If acting is set, it waits for the disk.
func (d *Disks) findDisk(ctx context.Context, h settings.DiskHint, acting bool) (device.Device, error) {
	if acting {
		return d.Resolver.Resolve(ctx, machine.HintOf("", h))
	}
	return d.Resolver.ResolveOnce(machine.HintOf("", h))
}

// find returns the path of the ephemeral disk, or onRoot if the root disk is used. missing is the error if the disk in
// the settings was not found.
func (d *Disks) find(ctx context.Context, w wanted, acting bool) (path string, onRoot bool, missing, err error) {
	var dev device.Device
	if w.named() {
		if dev, missing = d.findDisk(ctx, *w.hint, acting); missing != nil && !machine.Missing(missing) {
			return "", false, nil, fmt.Errorf("%s: %w", decide.NoEphemeral, missing)
		}
	}
	onRoot, err = decide.UseRootDisk(decide.EphemeralConfig{Named: w.named(), Missing: missing != nil,
		CreateOnRoot: d.CreateOnRoot, FallBack: d.FallBackToRoot})
	if err == nil && !onRoot && dev.Directory {
		err = fmt.Errorf("%s: %s is not a block device", decide.NoEphemeral, dev.Path)
	}
	return dev.Path, onRoot, missing, err
}

// observe observes the disk for the ephemeral data: a separate disk if root is 0, otherwise the disk with that root
// partition.
func (d *Disks) observe(ctx context.Context, path string, root int, w wanted, acting bool) (o decide.Ephemeral,
	err error) {
	o = decide.Ephemeral{Label: d.Label, AgentID: w.agentID, SwapMiB: w.swapMiB, Target: d.Machine.Dirs.Data(),
		Root: root, Volumes: map[int]decide.Volume{}}
	if o.RAM, err = d.Machine.Memory(); err != nil {
		return o, err
	}
	var damaged error
	if o.Disk, damaged, err = inspect(path); root > 0 {
		err, damaged = errors.Join(err, damaged), nil
	}
	if err != nil {
		return o, err
	}
	r, err := d.Machine.ReadRecord()
	if err != nil {
		return o, err
	}
	l, kept := o.ExistingLayout()
	if kept {
		if acting {
			d.Machine.CrashPoint("announce ephemeral")
			if err := d.Machine.Announce(ctx, path); err != nil {
				return o, err
			}
		}
		o.Pending = o.Unfinished(r)
		if err := d.observeVolumes(ctx, &o, l.Partitions); err != nil {
			return o, err
		}
	}
	asked := false
	if root == 0 {
		if asked, err = d.asked(r, record.Ephemeral, o.Disk, acting); err != nil {
			return o, err
		}
	}
	if kept && o.Proven(l) && !asked {
		return o, nil
	}
	o.Replaced, err = d.replaced(ctx, o.Disk, damaged, l.Data, r, acting)
	o.Replaced.Asked = asked
	return o, err
}

// inspect reads the table of a disk. damaged is set if the table cannot be trusted.
func inspect(path string) (s layout.State, damaged, err error) {
	if s, err = disk.Inspect(path); errors.Is(err, layout.ErrDamaged) {
		damaged, err = err, nil
	}
	return s, damaged, err
}

func (d *Disks) observeVolumes(ctx context.Context, o *decide.Ephemeral, parts []layout.Partition) error {
	for _, p := range parts {
		v, err := d.Machine.Volume(o.Disk, p.Number)
		if err != nil {
			return err
		}
		// The mount table contains paths without symbolic links.
		if real, err := filepath.EvalSymlinks(o.Target); err == nil && v.MountedOn == real {
			v.MountedOn = o.Target
		}
		if o.Root > 0 && v.Content.Blank() && !o.Pending {
			if v.Residue, err = disk.SurveyPartition(ctx, o.Disk, p); err != nil {
				return err
			}
		}
		o.Volumes[p.Number] = v
	}
	return nil
}

// replaced observes the content of a disk that may be replaced. damaged is the error if its table cannot be trusted.
// data is the partition that may hold ephemeral data, or 0. With announce set, it announces the disk's partitions to
// the kernel.
func (d *Disks) replaced(ctx context.Context, s layout.State, damaged error, data int, r record.Record,
	announce bool) (o decide.Replaced, err error) {
	number, err := blkdev.NumberOf(s.Path)
	if err != nil {
		return o, err
	}
	o.Serial, o.Busy, o.Damaged = machine.Serial(number), d.Machine.ProveIdle(s.Path, number), damaged
	o.Persistent = d.persistentDisk(s, number)
	if data == 0 && (o.Busy != nil || o.Persistent != nil) {
		return o, nil
	}
	// A disk whose partition names show that it is ephemeral need not be searched, unless there are records that may
	// match it.
	if !decide.NamesEphemeral(s.Table) || len(r.Disks) > 0 {
		if o.Superblocks, err = disk.SearchSuperblocks(ctx, s); err != nil {
			return o, err
		}
		o.Recorded = onRecord(r, s, o.Superblocks)
	}
	return o, d.replacedVolume(ctx, s, data, announce, &o)
}

// replacedVolume observes the file system that may show that the disk is ephemeral.
func (d *Disks) replacedVolume(ctx context.Context, s layout.State, data int, announce bool,
	o *decide.Replaced) (err error) {
	node := s.Path
	o.Volume.Content = s.Content
	if data == 0 {
		data = decide.DataPartition(s.Table)
	}
	if part, ok := s.Table.Partition(data); ok {
		node, o.Start = layout.PartitionPath(s.Path, data), part.Start
		if announce {
			if err := d.Machine.Announce(ctx, s.Path); err != nil {
				return err
			}
		}
		if o.Volume, err = d.Machine.Volume(s, data); err != nil {
			return err
		}
	}
	if !decide.HasListing(o.Volume.Content) || o.Volume.InUse {
		return nil
	}
	kind := o.Volume.Content.Kind
	if kind != probe.XFS {
		kind = probe.Ext4 // its driver mounts older ones
	}
	if o.Names, o.Unlisted = filesystem.List(node, kind); o.Unlisted != nil {
		return nil
	}
	if o.Journal, err = filesystem.JournalUsed(node, kind); err != nil {
		return err
	}
	// The kernel releases a mount shortly after its descriptor is closed.
	return mount.AwaitIdle(ctx, node)
}

// onRecord returns an error if the table or a file system of the disk is on record as that of a store.
func onRecord(r record.Record, s layout.State, found []probe.Superblock) error {
	for _, f := range append(slices.Clone(found), probe.Superblock{}) {
		if of, _, known := r.Find("", f.UUID, s.Table.GUID); known {
			return fmt.Errorf("%s is on record as the store of %s", s.Path, of)
		}
	}
	return nil
}

// persistentDisk returns an error if a hint of a persistent disk leads to the disk.
func (d *Disks) persistentDisk(s layout.State, number blkdev.Number) error {
	for cid, p := range d.PersistentDisks() {
		dev, err := d.Resolver.ResolveOnce(machine.HintOf(cid, p.Hint))
		if err == nil && dev.Number == number {
			return fmt.Errorf("%s is the persistent disk %s", s.Path, cid)
		}
		if err != nil && !machine.Missing(err) {
			return fmt.Errorf("cannot determine whether %s is the persistent disk %s: %w", s.Path, cid, err)
		}
	}
	return nil
}

// SetupRaw creates a single named partition without a file system on each raw disk.
func (d *Disks) SetupRaw(ctx context.Context, hints []settings.DiskHint,
	acting bool) (all []decide.Change, err error) {
	if d.SkipSetup || len(hints) == 0 {
		return nil, nil
	}
	if err := d.Machine.Lock(ctx); err != nil {
		return nil, err
	}
	defer d.Machine.Unlock()
	devices, missing, err := d.rawDevices(ctx, hints, acting)
	if err != nil {
		return nil, fmt.Errorf("raw ephemeral disks: %w", err)
	}
	for i := range hints {
		if missing[i] != nil {
			all = append(all, await(decide.RawName(i), missing[i]))
			continue
		}
		changes, err := d.rawDisk(ctx, devices[i].Path, i, acting)
		all = append(all, changes...)
		if err != nil {
			return all, fmt.Errorf("raw ephemeral disk %d: %w", i, err)
		}
	}
	return all, nil
}

// rawDevices returns the raw disks. If acting is not set, it does not wait for them, and missing has an error, by the
// index of the hint, for each disk not found.
func (d *Disks) rawDevices(ctx context.Context, hints []settings.DiskHint, acting bool) (devices []device.Device,
	missing map[int]error, err error) {
	missing = map[int]error{}
	if !d.byExclusion(hints) {
		for i, h := range hints {
			dev, err := d.findDisk(ctx, h, acting)
			if err != nil && (acting || !machine.Missing(err)) {
				return nil, nil, err
			}
			devices, missing[i] = append(devices, dev), err
		}
		return devices, missing, nil
	}
	if acting {
		devices, err = d.Resolver.InstanceStorage(ctx, len(hints))
		return devices, missing, err
	}
	// InstanceStorage always waits, but returns at once if the disks exist.
	limited, cancel := context.WithTimeoutCause(ctx, planLimit, device.ErrTimedOut)
	defer cancel()
	devices, err = d.Resolver.InstanceStorage(limited, len(hints))
	for i := range hints {
		missing[i] = err
	}
	return devices, missing, nil
}

func (d *Disks) byExclusion(hints []settings.DiskHint) bool {
	for _, h := range hints {
		if d.ManagedVolumes && strings.HasPrefix(h.Path, "/dev/nvme") {
			return true
		}
	}
	return false
}

// rawDisk observes a raw disk and plans its changes. If acting is set, it makes them.
func (d *Disks) rawDisk(ctx context.Context, path string, i int, acting bool) ([]decide.Change, error) {
	o, err := d.observeRaw(ctx, path, i, acting)
	if err != nil {
		return nil, err
	}
	plan, err := decide.PartitionRaw(o)
	if err != nil || !acting {
		return plan.Changes, err
	}
	made, err := d.Machine.Apply(ctx, "", plan)
	if err == nil {
		d.Machine.CrashPoint("announce raw")
		err = d.Machine.Announce(ctx, path)
	}
	if err == nil {
		err = d.answered(rawKey(i), plan.Asked)
	}
	return made, err
}

func (d *Disks) observeRaw(ctx context.Context, path string, i int, acting bool) (o decide.Raw, err error) {
	o = decide.Raw{Index: i, AgentID: d.AgentID()}
	var damaged error
	if o.Disk, damaged, err = inspect(path); err != nil {
		return o, err
	}
	r, err := d.Machine.ReadRecord()
	if err != nil && !decide.IsRawDisk(o.Disk.Table) {
		return o, err
	}
	asked, err := d.asked(r, rawKey(i), o.Disk, acting)
	if err != nil || decide.IsRawDisk(o.Disk.Table) && !asked {
		return o, err
	}
	o.Replaced, err = d.replaced(ctx, o.Disk, damaged, 0, r, acting)
	o.Replaced.Asked = asked
	return o, err
}

// rawKey returns the key of a raw disk in the record. Like record.Ephemeral, it cannot be a CID.
func rawKey(i int) string { return "." + decide.RawName(i) }

// asked reports whether an operator requested to format the disk. It drops a request about another disk.
func (d *Disks) asked(r record.Record, key string, s layout.State, acting bool) (bool, error) {
	err := d.Machine.DropLapsedRequest(r, key, s.Path, acting, func() (string, error) { return fingerprint(s) })
	return r.Asked[key] == record.Format, err
}

// fingerprint returns a text that differs between disks.
func fingerprint(s layout.State) (string, error) {
	return machine.Fingerprint(s.Path, record.Disk{Table: s.Table.GUID, Bytes: s.Bytes})
}

// answered removes an operator's request that was carried out.
func (d *Disks) answered(key string, asked bool) error {
	if !asked {
		return nil
	}
	d.Machine.Log.WithField("disk", strings.TrimPrefix(key, ".")).Warn("formatted a disk as an operator asked")
	return d.Machine.Record.Update(func(r *record.Record) { r.EndRequest(key) })
}

// Shown describes a disk to an operator who is about to request that it be formatted.
type Shown struct {
	// Key is the key for the request, Text describes what would be lost, and Disk is the fingerprint of the disk.
	Key, Text, Disk string
}

// Describe shows what formatting the disk would destroy. which is "ephemeral" or the path of the ephemeral disk or of a
// raw disk; any other path is an error.
func (d *Disks) Describe(ctx context.Context, which string, ephemeral *settings.DiskHint,
	raw []settings.DiskHint) (shown Shown, err error) {
	if err := d.Machine.Lock(ctx); err != nil {
		return shown, err
	}
	defer d.Machine.Unlock()
	path, key, err := d.named(ctx, which, ephemeral, raw)
	if err != nil {
		return shown, err
	}
	s, damaged, err := inspect(path)
	if err != nil {
		return shown, err
	}
	r, err := d.Machine.ReadRecord()
	if err != nil {
		return shown, err
	}
	o, err := d.replaced(ctx, s, damaged, 0, r, false)
	if err != nil {
		return shown, err
	}
	shown.Key = key
	if shown.Text, err = decide.DescribeReplaced(o, s); err != nil {
		return shown, err
	}
	shown.Disk, err = fingerprint(s)
	return shown, err
}

// named resolves the name that an operator gave to a disk.
func (d *Disks) named(ctx context.Context, which string, ephemeral *settings.DiskHint,
	raw []settings.DiskHint) (path, key string, err error) {
	var number blkdev.Number
	byPath := which != decide.FormatEphemeral
	if byPath {
		if number, err = blkdev.NumberOf(which); err != nil {
			return "", "", err
		}
	}
	if w := (wanted{hint: ephemeral}); w.named() {
		dev, err := d.findDisk(ctx, *ephemeral, false)
		if err == nil && (!byPath || dev.Number == number) || err != nil && !byPath {
			return dev.Path, record.Ephemeral, err
		}
	}
	if !byPath {
		return "", "", errors.New("the CPI named no ephemeral disk")
	}
	devices, missing, err := d.rawDevices(ctx, raw, false)
	if err != nil {
		return "", "", err
	}
	for i, dev := range devices {
		if missing[i] == nil && dev.Number == number {
			return dev.Path, rawKey(i), nil
		}
	}
	return "", "", fmt.Errorf("%s is not an ephemeral or raw disk of this VM", which)
}

// GrowRoot grows the root partition and its file system to the end of the disk. It does nothing in a container, whose
// disk belongs to the host, or if the space is reserved for the ephemeral data. ephemeral is the CPI's hint for that
// disk.
func (d *Disks) GrowRoot(ctx context.Context, ephemeral *settings.DiskHint, acting bool) ([]decide.Change, error) {
	if err := d.Machine.Lock(ctx); err != nil {
		return nil, err
	}
	defer d.Machine.Unlock()
	plan, err := d.planGrowRoot(ctx, ephemeral)
	if err != nil || !acting {
		return plan.Changes, err
	}
	made, err := d.Machine.Apply(ctx, "", plan)
	if err != nil {
		err = fmt.Errorf("grow root: %w", err)
	}
	return made, err
}

func (d *Disks) planGrowRoot(ctx context.Context, ephemeral *settings.DiskHint) (decide.Plan, error) {
	if !decide.RootGrowth(d.SkipSetup, d.CreateOnRoot, wanted{hint: ephemeral}.named()) {
		return decide.Plan{}, nil
	}
	if _, onRoot, _, err := d.find(ctx, wanted{hint: ephemeral}, false); err == nil && onRoot {
		return decide.Plan{}, nil // the named disk is missing; its data needs the space
	}
	path, n, err := d.Machine.RootDisk()
	if errors.Is(err, machine.ErrNoRootDisk) {
		d.Machine.Log.WithError(err).Info("root disk is left unchanged")
		return decide.Plan{}, nil
	}
	if err != nil {
		return decide.Plan{}, err
	}
	o, err := d.observeRoot(path, n)
	if err != nil {
		return decide.Plan{}, fmt.Errorf("grow root: %w", err)
	}
	if kind := o.Volume.Content.Kind; !kind.Managed() {
		d.Machine.Log.WithField("filesystem", string(kind)).Info("root file systems of this type are not grown")
	}
	return decide.GrowRoot(o), nil
}

func (d *Disks) observeRoot(path string, n int) (o decide.Root, err error) {
	o.Partition = n
	if o.Disk, err = disk.Inspect(path); err != nil {
		return o, err
	}
	entry, _, err := d.Machine.RootMount()
	if err != nil {
		return o, err
	}
	o.Volume.MountedOn = entry.Target
	part := layout.PartitionPath(path, n)
	if o.Volume.Content, err = filesystem.Probe(part); err != nil {
		return o, err
	}
	o.Volume.Growable, err = filesystem.Growable(part, entry.Target, o.Volume.Content.Kind)
	return o, err
}
