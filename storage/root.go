package storage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/sirupsen/logrus"

	"cambium/internal/blkdev"
	"cambium/platform/device"
	"cambium/platform/disk"
	"cambium/platform/filesystem"
	"cambium/settings"
)

// errNoRootDisk means that "/" is not on a partition that could be grown or accompanied.
var errNoRootDisk = errors.New("the root file system is not on a partition of a disk")

// rootDisk finds the disk and the partition of "/": by path first, because the node in /dev
// may have been given another meaning, and by number where the path is only a placeholder.
func (d *machine) rootDisk() (path string, partition int, err error) {
	if d.container() {
		return "", 0, fmt.Errorf("%w: this is a container", errNoRootDisk)
	}
	entry, ok, err := d.rootMount()
	if err != nil {
		return "", 0, err
	}
	if !ok || !strings.HasPrefix(entry.Source, "/dev/") || entry.Root != "/" {
		return "", 0, fmt.Errorf("%w: it is %s", errNoRootDisk, entry.Source)
	}
	source, err := device.Canonical(entry.Source)
	if err != nil {
		info, lookupErr := blkdev.Lookup("/sys", entry.Number)
		if lookupErr != nil {
			return "", 0, fmt.Errorf("%w: %w", errNoRootDisk, err)
		}
		source = "/dev/" + info.Name
	}
	number, err := blkdev.NumberOf(source)
	if err != nil {
		return "", 0, fmt.Errorf("%w: %w", errNoRootDisk, err)
	}
	info, err := blkdev.Lookup("/sys", number)
	if err == nil && info.Partition > 0 && info.Name == strings.TrimPrefix(source, "/dev/") {
		return filepath.Join("/dev", info.Disk), info.Partition, nil
	}
	path, partition, ok = device.SplitPartition(source)
	if !ok {
		return "", 0, fmt.Errorf("%w: %s is no partition", errNoRootDisk, source)
	}
	if _, err := blkdev.NumberOf(path); err != nil {
		return "", 0, fmt.Errorf("%w: %w", errNoRootDisk, err)
	}
	return path, partition, nil
}

// rootNumbers are the devices that hold "/": its disk and the partition, by path and by
// number. Nothing else may ever be done to them than growing and appending.
func (d *machine) rootNumbers() (map[blkdev.Number]bool, error) {
	numbers := map[blkdev.Number]bool{}
	add := func(n blkdev.Number) {
		numbers[n] = true
		info, err := blkdev.Lookup("/sys", n)
		if err != nil {
			return // not a device of this kernel, such as an overlay
		}
		if info.Partition > 0 {
			if disk, err := numberIn(filepath.Dir(info.Dir)); err == nil {
				numbers[disk] = true
			}
		}
		// Below LVM or RAID, the disks underneath.
		slaves, _ := os.ReadDir(filepath.Join(info.Dir, "slaves"))
		for _, s := range slaves {
			dir, err := filepath.EvalSymlinks(filepath.Join(info.Dir, "slaves", s.Name()))
			if err != nil {
				continue
			}
			for _, dir := range []string{dir, filepath.Dir(dir)} {
				if n, err := numberIn(dir); err == nil {
					numbers[n] = true
				}
			}
		}
	}
	entry, ok, err := d.rootMount()
	if err != nil {
		return nil, err
	}
	if ok {
		add(entry.Number)
		if n, err := blkdev.NumberOf(entry.Source); err == nil {
			add(n)
		}
	}
	if path, _, err := d.rootDisk(); err == nil {
		if n, err := blkdev.NumberOf(path); err == nil {
			add(n)
		}
	}
	return numbers, nil
}

// GrowRoot extends the root partition and its file system over the rest of the disk. It does
// nothing in a container, where the disk belongs to the host, and nothing where the space is
// meant for the ephemeral data: ephemeral is the CPI's hint for that disk.
func (d *Ephemeral) GrowRoot(ctx context.Context, ephemeral *settings.DiskHint) ([]Change, error) {
	defer d.lock()()
	err := d.growRoot(ctx, ephemeral)
	return d.made, err
}

// PlanGrowRoot says what GrowRoot would change.
func (d *Ephemeral) PlanGrowRoot(_ context.Context, ephemeral *settings.DiskHint) ([]Change, error) {
	if d.Options.SkipDiskSetup || d.Options.CreatePartitionIfNoEphemeralDisk && (ephemeral == nil || ephemeral.Empty()) {
		return nil, nil
	}
	path, n, err := d.rootDisk()
	if errors.Is(err, errNoRootDisk) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s, err := disk.Inspect(path)
	if err != nil {
		return nil, fmt.Errorf("grow root: %w", err)
	}
	if end, _ := growTo(s, n); end > 0 {
		return []Change{{Device: path, Proof: "the disk is larger than its partition", What: fmt.Sprintf("grow root partition %d", n)}}, nil
	}
	return nil, nil
}

func (d *Ephemeral) growRoot(ctx context.Context, ephemeral *settings.DiskHint) error {
	if d.Options.SkipDiskSetup || d.Options.CreatePartitionIfNoEphemeralDisk && (ephemeral == nil || ephemeral.Empty()) {
		return nil
	}
	path, n, err := d.rootDisk()
	if errors.Is(err, errNoRootDisk) {
		d.Log.WithError(err).Info("root disk is left as it is")
		return nil
	}
	if err != nil {
		return err
	}
	s, err := disk.Inspect(path)
	if err != nil {
		return fmt.Errorf("grow root: %w", err)
	}
	end, _ := growTo(s, n)
	if end > 0 {
		d.crashPoint("grow root partition")
		if err := disk.Grow(ctx, path, n, end); err != nil {
			return fmt.Errorf("grow root: %w", err)
		}
		if err := d.announce(ctx, path); err != nil {
			return fmt.Errorf("grow root: %w", err)
		}
		d.Log.WithFields(logrus.Fields{"disk": path, "partition": n}).Info("root partition grown")
		d.note(Change{Device: path, Proof: "the disk is larger than its partition", What: fmt.Sprintf("grow root partition %d", n)})
	}
	part := device.Partition(path, n)
	content, err := filesystem.Probe(part)
	if err != nil {
		return fmt.Errorf("grow root: %w", err)
	}
	if content.Kind != filesystem.Ext4 && content.Kind != filesystem.XFS {
		d.Log.WithField("found", content.String()).Info("root file system is of a kind that is not grown")
		return nil
	}
	entry, _, err := d.rootMount()
	if err != nil {
		return err
	}
	if err := d.growMounted(part, entry.Target, content.Kind); err != nil {
		return fmt.Errorf("grow root: %w", err)
	}
	return nil
}

// growTo returns where partition n of a disk could end, or 0 when it already reaches as far
// as is worth the change. why tells what stands in the way, if something does.
func growTo(s disk.State, n int) (end int64, why string) {
	p, ok := s.Table.Partition(n)
	if !ok {
		return 0, "not in the table"
	}
	limit := disk.Usable(s.Table.Label, s.Bytes, s.Sector) / disk.MiB * disk.MiB
	for _, other := range s.Table.Partitions {
		if other.Start > p.Start {
			limit = min(limit, other.Start)
		}
	}
	if s.Table.Label == disk.MBR && limit > disk.MBRLimit/512*int64(s.Sector) {
		return 0, "it would cross 2 TiB, which a DOS partition table cannot address: attach a new disk, which gets a GPT, and migrate to it"
	}
	if s.Table.Fixed != "" {
		return 0, s.Table.Fixed
	}
	if limit-p.End() < disk.MiB {
		return 0, ""
	}
	return limit, ""
}

// inContainer reports a machine whose root disk belongs to somebody else.
func inContainer() bool {
	for _, mark := range []string{"/run/systemd/container", "/.dockerenv", "/run/.containerenv"} {
		if _, err := os.Stat(mark); err == nil {
			return true
		}
	}
	environ, err := os.ReadFile("/proc/1/environ")
	if err != nil {
		return false
	}
	for _, v := range strings.Split(string(environ), "\x00") {
		if strings.HasPrefix(v, "container=") {
			return true
		}
	}
	return false
}
