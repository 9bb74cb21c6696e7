package machine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"cambium/internal/blkdev"
	"cambium/platform/device"
	"cambium/platform/disk/layout"
)

// ErrNoRootDisk is returned if "/" is not on a partition of a disk.
var ErrNoRootDisk = errors.New("the root file system is not on a partition of a disk")

// RootDisk returns the disk and the partition number of "/". It uses the path in the mount table, since the node in
// /dev may have been reused, or the device number if that path is only a placeholder.
func (m *Machine) RootDisk() (path string, partition int, err error) {
	if m.InContainer() {
		return "", 0, fmt.Errorf("%w: this is a container", ErrNoRootDisk)
	}
	entry, ok, err := m.RootMount()
	if err != nil {
		return "", 0, err
	}
	if !ok || !strings.HasPrefix(entry.Source, "/dev/") || entry.Root != "/" {
		return "", 0, fmt.Errorf("%w: it is %s", ErrNoRootDisk, entry.Source)
	}
	source, err := device.Canonical(entry.Source)
	if err != nil {
		info, lookupErr := blkdev.Lookup("/sys", entry.Number)
		if lookupErr != nil {
			return "", 0, fmt.Errorf("%w: %w", ErrNoRootDisk, err)
		}
		source = "/dev/" + info.Name
	}
	number, err := blkdev.NumberOf(source)
	if err != nil {
		return "", 0, fmt.Errorf("%w: %w", ErrNoRootDisk, err)
	}
	info, err := blkdev.Lookup("/sys", number)
	if err == nil && info.Partition > 0 && info.Name == strings.TrimPrefix(source, "/dev/") {
		return filepath.Join("/dev", info.Disk), info.Partition, nil
	}
	path, partition, ok = layout.SplitPath(source)
	if !ok {
		return "", 0, fmt.Errorf("%w: %s is not a partition", ErrNoRootDisk, source)
	}
	if _, err := blkdev.NumberOf(path); err != nil {
		return "", 0, fmt.Errorf("%w: %w", ErrNoRootDisk, err)
	}
	return path, partition, nil
}

// rootNumbers returns the devices of "/": its partition and its disk, by path and by number. They must never be changed
// except by growing and appending partitions.
func (m *Machine) rootNumbers() (map[blkdev.Number]bool, error) {
	numbers := map[blkdev.Number]bool{}
	add := func(n blkdev.Number) {
		numbers[n] = true
		info, err := blkdev.Lookup("/sys", n)
		if err != nil {
			return // not a block device, such as an overlay
		}
		if info.Partition > 0 {
			if disk, err := numberIn(filepath.Dir(info.Dir)); err == nil {
				numbers[disk] = true
			}
		}
		// With LVM or RAID, also the underlying disks.
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
	entry, ok, err := m.RootMount()
	if err != nil {
		return nil, err
	}
	if ok {
		add(entry.Number)
		if n, err := blkdev.NumberOf(entry.Source); err == nil {
			add(n)
		}
	}
	if path, _, err := m.RootDisk(); err == nil {
		if n, err := blkdev.NumberOf(path); err == nil {
			add(n)
		}
	}
	return numbers, nil
}

// inContainer reports whether this is a container, whose root disk belongs to the host.
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
