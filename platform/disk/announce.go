package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"cambium/internal/blkdev"
	"cambium/internal/watch"
	"cambium/platform/disk/layout"
)

// Announce makes the kernel's partitions of a disk match its table (BLKPG), and waits for their device nodes.
// Partitions that already match are not touched, so it may be called on a disk in use. The kernel need not be able to
// parse the table.
//
// If the kernel refuses a partition, but a device node of its name exists, that node is used.
func Announce(ctx context.Context, path string) error {
	s, err := inspectDisk(path, func(layout.Table) bool { return false })
	if err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("announce partitions: %w", err)
	}
	defer f.Close()
	number, err := blkdev.NumberOf(path)
	if err != nil {
		return fmt.Errorf("announce partitions: %w", err)
	}
	known, err := blkdev.Partitions("/sys", number)
	if err != nil {
		return fmt.Errorf("announce partitions of %s: %w", path, err)
	}
	byNumber := map[int]blkdev.Info{}
	for _, k := range known {
		byNumber[k.Partition] = k
		want, ok := s.Table.Partition(k.Partition)
		if ok && want.Start == k.Start {
			continue
		}
		if err := blkdev.DeletePartition(f, k.Partition); err != nil {
			return fmt.Errorf("announce partitions of %s: forget partition %d: %w", path, k.Partition, err)
		}
		delete(byNumber, k.Partition)
	}
	for _, p := range s.Table.Partitions {
		k, ok := byNumber[p.Number]
		switch {
		case ok && k.Size == p.Size:
		case ok:
			err = blkdev.ResizePartition(f, p.Number, p.Start, p.Size)
		default:
			err = blkdev.AddPartition(f, p.Number, p.Start, p.Size)
		}
		if err != nil {
			node := layout.PartitionPath(path, p.Number)
			if _, nodeErr := blkdev.NumberOf(node); len(known) == 0 && (nodeErr == nil || mapped(path)) {
				continue
			}
			return fmt.Errorf("announce partition %d of %s: %w", p.Number, path, err)
		}
	}
	for _, p := range s.Table.Partitions {
		if err := awaitNode(ctx, path, number, p.Number); err != nil {
			return err
		}
	}
	return nil
}

// mapped reports whether this is a device-mapper disk, such as a multipath disk. The kernel has no partitions on these:
// kpartx creates a mapping for each, when udev reports a change of the table.
func mapped(path string) bool { return filepath.Dir(path) == "/dev/mapper" }

// mappedLimit bounds the wait for kpartx, which udev starts.
const mappedLimit = 30 * time.Second

// awaitNode waits until the partition's path is a block device. If the kernel uses the same name for the partition, the
// device numbers must match, too; otherwise the node is stale.
func awaitNode(ctx context.Context, path string, disk blkdev.Number, n int) error {
	node := layout.PartitionPath(path, n)
	if mapped(path) {
		limited, cancel := context.WithTimeoutCause(
			ctx,
			mappedLimit,
			fmt.Errorf("partitions of device-mapper disks are made by kpartx: "+
				"install it with multipath-tools, or run kpartx -a -p -part %s", path),
		)
		defer cancel()
		ctx = limited
	}
	err := watch.UntilDevice(ctx, []string{filepath.Dir(node)}, func() (bool, error) {
		have, err := blkdev.NumberOf(node)
		if errors.Is(err, os.ErrNotExist) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		parts, err := blkdev.Partitions("/sys", disk)
		if err != nil {
			return false, err
		}
		for _, k := range parts {
			if k.Partition == n && k.Name == strings.TrimPrefix(node, "/dev/") {
				dev, err := os.ReadFile(filepath.Join(k.Dir, "dev"))
				return err == nil && strings.TrimSpace(string(dev)) == have.String(), err
			}
		}
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("wait for %s: %w", node, err)
	}
	return nil
}
