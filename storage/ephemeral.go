package storage

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/sirupsen/logrus"

	"cambium/internal/blkdev"
	"cambium/plan"
	"cambium/platform/device"
	"cambium/platform/disk"
	"cambium/platform/filesystem"
	"cambium/platform/mount"
	"cambium/settings"
)

// noEphemeral begins the message that operators and test suites look for.
const noEphemeral = "No ephemeral disk found"

// Setup makes swap and data ready on the ephemeral disk and mounts the data. hint is
// nil or empty when the CPI named no disk; swapMiB is env.bosh.swap_size.
func (d *Ephemeral) Setup(ctx context.Context, hint *settings.DiskHint, swapMiB *uint64, agentID string) ([]Change, error) {
	defer d.lock()()
	err := d.setup(ctx, hint, swapMiB, agentID)
	return d.made, err
}

func (d *Ephemeral) setup(ctx context.Context, hint *settings.DiskHint, swapMiB *uint64, agentID string) error {
	if err := ensureDir(d.Dirs.Data(), 0o750); err != nil {
		return fmt.Errorf("ephemeral disk: %w", err)
	}
	if d.Options.SkipDiskSetup {
		return nil
	}
	path, err := d.findEphemeral(ctx, hint)
	if err != nil {
		return err
	}
	if path == "" {
		return d.ephemeralOnRoot(ctx, swapMiB, agentID)
	}
	return d.ephemeralOnDisk(ctx, path, swapMiB, agentID)
}

// findEphemeral returns an empty path when the root disk is to be used. A disk that was named
// and is not there is no reason for that, unless the stemcell says so.
func (d *Ephemeral) findEphemeral(ctx context.Context, hint *settings.DiskHint) (string, error) {
	if hint == nil || hint.Empty() {
		if d.Options.CreatePartitionIfNoEphemeralDisk {
			return "", nil
		}
		//lint:ignore ST1005 log searches look for these words
		return "", errors.New(noEphemeral + ": the CPI named none, and CreatePartitionIfNoEphemeralDisk is off")
	}
	dev, err := d.Resolver.Resolve(ctx, hintOf("", *hint))
	if notThere(err) && d.Options.CreatePartitionIfNoEphemeralDisk && d.Options.MissingEphemeralDisk == "root" {
		d.Log.WithError(err).Warn("the named ephemeral disk is missing; the root disk is used, as configured")
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", noEphemeral, err)
	}
	if dev.Directory {
		return "", fmt.Errorf("%s: %s is no block device", noEphemeral, dev.Path)
	}
	return dev.Path, nil
}

func (d *Ephemeral) ephemeralLabel() disk.Label {
	if d.Options.PartitionerType == "sfdisk" {
		return disk.MBR
	}
	return disk.GPT
}

func (d *Ephemeral) ephemeralOnDisk(ctx context.Context, path string, swapMiB *uint64, agentID string) error {
	release, err := disk.Hold(ctx, path)
	if err != nil {
		return fmt.Errorf("ephemeral disk: %w", err)
	}
	if err := d.ephemeralHeld(ctx, path, swapMiB, agentID); err != nil {
		release()
		return err
	}
	// What udev looks at then is in use, and nobody waits for it.
	d.AfterBoot(release)
	return nil
}

func (d *Ephemeral) ephemeralHeld(ctx context.Context, path string, swapMiB *uint64, agentID string) error {
	s, err := disk.Inspect(path)
	if err != nil && !errors.Is(err, disk.ErrDamaged) {
		return fmt.Errorf("ephemeral disk: %w", err)
	}
	if s.Number == 0 {
		return fmt.Errorf("ephemeral disk: %s: %w", path, blkdev.ErrNotBlock)
	}
	layout, kept := plan.KeptEphemeral(s, agentID, d.ephemeralLabel())
	if !kept {
		ram, err := d.memory()
		if err != nil {
			return fmt.Errorf("ephemeral disk: %w", err)
		}
		if layout, err = plan.NewEphemeral(s, agentID, ram, swapMiB, d.ephemeralLabel()); err != nil {
			return fmt.Errorf("ephemeral disk: %w", err)
		}
		if err := d.proveDisposable(s); err != nil {
			return fmt.Errorf("ephemeral disk: not touched: %w", err)
		}
		table, err := d.begin(ephemeralIntent, layout.Label)
		if err != nil {
			return fmt.Errorf("ephemeral disk: %w", err)
		}
		d.crashPoint("partition ephemeral")
		if err := disk.Create(ctx, path, layout.Label, table, layout.Partitions); err != nil {
			return fmt.Errorf("ephemeral disk: %w", err)
		}
		d.Log.WithFields(logrus.Fields{"disk": path, "before": before(s)}).Info("ephemeral disk partitioned")
		s.Table = disk.Table{Label: layout.Label, GUID: table, Partitions: layout.Partitions}
	}
	if s.Table.Recovered {
		d.crashPoint("repair ephemeral table")
		if err := disk.Repair(ctx, path); err != nil {
			return fmt.Errorf("ephemeral disk: %w", err)
		}
	}
	d.crashPoint("announce ephemeral")
	announce := func(ctx context.Context) error { return d.announce(ctx, path) }
	if kept {
		announce = func(ctx context.Context) error { return d.announceState(ctx, s) }
	}
	if err := announce(ctx); err != nil {
		return fmt.Errorf("ephemeral disk: %w", err)
	}
	fresh, err := d.pending(ephemeralIntent, s.Table)
	if err != nil {
		return err
	}
	return d.fillEphemeral(ctx, path, layout, fresh, swapMiB)
}

// before says for the log what a disk carried.
func before(s disk.State) string {
	if s.Table.Label == disk.None {
		return s.Content.String()
	}
	return fmt.Sprintf("%s table, partitions: %d", s.Table.Label, len(s.Table.Partitions))
}

// proveDisposable shows that replacing the content of an ephemeral disk costs nobody a byte.
// What is on it does not matter, whose disk it is does.
func (d *Ephemeral) proveDisposable(s disk.State) error {
	if err := d.proveIdle(s.Path, s.Number); err != nil {
		return err
	}
	if plan.CarriesPersistent(s.Table) {
		return fmt.Errorf("%s carries the partition of a persistent disk (%s)", s.Path, plan.PersistentName)
	}
	for cid, p := range d.Records.Disks() {
		dev, err := d.Resolver.Look(hintOf(cid, p.Hint))
		if err == nil && dev.Number == s.Number {
			return fmt.Errorf("%s is the persistent disk %s", s.Path, cid)
		}
		if err != nil && !notThere(err) {
			return fmt.Errorf("whether %s is the persistent disk %s cannot be told: %w", s.Path, cid, err)
		}
	}
	return nil
}

// fillEphemeral formats what is not formatted, switches swap on and mounts the data. With
// fresh set, whatever the partitions hold is of a preparation that was not finished.
func (d *Ephemeral) fillEphemeral(ctx context.Context, path string, l plan.Layout, fresh bool, swapMiB *uint64) error {
	data := device.Partition(path, l.Data)
	swap := ""
	if l.Swap > 0 {
		swap = device.Partition(path, l.Swap)
	}
	content, err := d.makeEphemeral(ctx, swap, data, fresh)
	if err != nil {
		return fmt.Errorf("ephemeral disk: %w", err)
	}
	if fresh {
		d.crashPoint("ephemeral made")
		if err := d.done(ephemeralIntent); err != nil {
			return fmt.Errorf("ephemeral disk: %w", err)
		}
	}
	if swap != "" && (swapMiB == nil || *swapMiB > 0) {
		d.crashPoint("swapon")
		if err := filesystem.SwapOn(swap); err != nil {
			return fmt.Errorf("ephemeral disk: %w", err)
		}
	}
	if err := d.mountData(ctx, data, content, d.Dirs.Data(), nil); err != nil {
		return fmt.Errorf("ephemeral disk: %w", err)
	}
	return nil
}

// makeEphemeral returns what is on the data partition then. What a fresh partition holds does not
// matter.
func (d *Ephemeral) makeEphemeral(ctx context.Context, swap, data string, fresh bool) (content filesystem.Content, err error) {
	if swap != "" {
		if !fresh {
			if content, err = filesystem.Probe(swap); err != nil {
				return content, err
			}
		}
		active, err := filesystem.SwapActive(swap)
		if err != nil {
			return content, err
		}
		if !active && content.Kind != filesystem.Swap {
			d.crashPoint("make swap")
			if err := filesystem.FormatSwap(swap); err != nil {
				return content, err
			}
		}
	}
	number, err := blkdev.NumberOf(data)
	if err != nil {
		return content, err
	}
	whole, err := mount.Of(number)
	if err != nil {
		return content, err
	}
	if len(whole) > 0 { // what is mounted has long been made, and the kernel knows what it is
		return filesystem.Content{Kind: filesystem.Kind(whole[0].Type)}, nil
	}
	mounted, err := mount.Uses(number)
	if err != nil {
		return content, err
	}
	if !fresh || mounted {
		if content, err = filesystem.Probe(data); err != nil || mounted || content.Data() {
			return content, err
		}
	}
	d.crashPoint("make ephemeral file system")
	return filesystem.Content{Kind: filesystem.Ext4}, d.makeFileSystem(ctx, data, filesystem.Ext4)
}

func (d *Ephemeral) ephemeralOnRoot(ctx context.Context, swapMiB *uint64, agentID string) error {
	path, root, err := d.rootDisk()
	if err != nil {
		return fmt.Errorf("%s: none named, and the root disk cannot be used: %w", noEphemeral, err)
	}
	s, err := disk.Inspect(path)
	if err != nil {
		return fmt.Errorf("ephemeral data on the root disk: %w", err)
	}
	ram, err := d.memory()
	if err != nil {
		return fmt.Errorf("ephemeral data on the root disk: %w", err)
	}
	if err := d.announce(ctx, path); err != nil {
		return fmt.Errorf("ephemeral data on the root disk: %w", err)
	}
	pending, err := d.pendingOnRoot(s)
	if err != nil {
		return err
	}
	layout, made, err := plan.OnRoot(s, root, agentID, ram, swapMiB, func(n int) (filesystem.Content, error) {
		if pending {
			return filesystem.Content{Kind: filesystem.Blank}, nil
		}
		return filesystem.Probe(device.Partition(path, n))
	})
	if err != nil {
		return fmt.Errorf("ephemeral data on the root disk: %w", err)
	}
	if len(made) > 0 {
		if err := d.beginFormat(ephemeralIntent, rootIntent(made)); err != nil {
			return fmt.Errorf("ephemeral data on the root disk: %w", err)
		}
		d.crashPoint("append to root disk")
		if err := disk.Append(ctx, path, made); err != nil {
			return fmt.Errorf("ephemeral data on the root disk: %w", err)
		}
		d.crashPoint("announce root disk")
		if err := d.announce(ctx, path); err != nil {
			return fmt.Errorf("ephemeral data on the root disk: %w", err)
		}
		pending = true
	}
	return d.fillEphemeral(ctx, path, layout, pending, swapMiB)
}

// rootIntent names appended partitions by their places, since the table's own identifier was
// there before and says nothing about them.
func rootIntent(parts []disk.Partition) string {
	var b strings.Builder
	for _, p := range parts {
		fmt.Fprintf(&b, "%d:%d+%d ", p.Number, p.Start, p.Size)
	}
	return strings.TrimSpace(b.String())
}

func (d *Ephemeral) pendingOnRoot(s disk.State) (bool, error) {
	all, err := d.intents()
	if err != nil {
		return false, err
	}
	want, ok := all[ephemeralIntent]
	if !ok {
		return false, nil
	}
	for i := range s.Table.Partitions {
		if rootIntent(s.Table.Partitions[i:]) == want.Table {
			return true, nil
		}
	}
	return false, nil
}

// SetupRaw gives each raw disk one named partition and no file system.
func (d *Ephemeral) SetupRaw(ctx context.Context, hints []settings.DiskHint) ([]Change, error) {
	if d.Options.SkipDiskSetup || len(hints) == 0 {
		return nil, nil
	}
	defer d.lock()()
	devices, err := d.rawDevices(ctx, hints)
	if err != nil {
		return nil, fmt.Errorf("raw ephemeral disks: %w", err)
	}
	for i, dev := range devices {
		if err := d.setupRaw(ctx, dev.Path, i); err != nil {
			return d.made, fmt.Errorf("raw ephemeral disk %d: %w", i, err)
		}
	}
	return d.made, nil
}

func (d *Ephemeral) rawDevices(ctx context.Context, hints []settings.DiskHint) ([]device.Device, error) {
	for _, h := range hints {
		if d.Options.ManagedVolumes && strings.HasPrefix(h.Path, "/dev/nvme") {
			return d.Resolver.InstanceStorage(ctx, len(hints))
		}
	}
	var devices []device.Device
	for _, h := range hints {
		dev, err := d.Resolver.Resolve(ctx, hintOf("", h))
		if err != nil {
			return nil, err
		}
		devices = append(devices, dev)
	}
	return devices, nil
}

func (d *Ephemeral) setupRaw(ctx context.Context, path string, i int) error {
	s, err := disk.Inspect(path)
	if err != nil && !errors.Is(err, disk.ErrDamaged) {
		return err
	}
	if !plan.KeptRaw(s.Table) {
		if err := d.proveDisposable(s); err != nil {
			return fmt.Errorf("not touched: %w", err)
		}
		d.crashPoint("partition raw")
		if err := disk.Create(ctx, path, disk.GPT, "", plan.NewRaw(s, i)); err != nil {
			return err
		}
		d.Log.WithFields(logrus.Fields{"disk": path, "before": before(s)}).Info("raw ephemeral disk partitioned")
		d.note(rawChange(s, i))
	}
	if s.Table.Recovered && plan.KeptRaw(s.Table) {
		if err := disk.Repair(ctx, path); err != nil {
			return err
		}
	}
	d.crashPoint("announce raw")
	return d.announce(ctx, path)
}
