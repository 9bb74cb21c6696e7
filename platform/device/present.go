package device

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"cambium/internal/blkdev"
)

// LinkDirs returns the directories below root in which udev creates links to disks.
func LinkDirs(root string) (dirs []string) {
	for _, dir := range []string{"dev", "dev/disk/by-id", "dev/disk/by-path", "dev/disk/by-label", "dev/disk/by-uuid",
		"dev/disk/azure", "dev/mapper"} {
		dirs = append(dirs, filepath.Join(root, dir))
	}
	return dirs
}

// Present returns the paths of whole disks, both nodes and links, sorted. It omits partitions, which the agent creates
// itself. A broken link counts, since its disk is about to appear.
func Present(root string) (names []string) {
	for _, dir := range LinkDirs(root) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // not there yet
		}
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			if kind := e.Type(); kind&os.ModeSymlink == 0 && (kind&os.ModeDevice == 0 || kind&os.ModeCharDevice != 0) {
				continue
			}
			if !partitionNode(root, path) {
				names = append(names, path)
			}
		}
	}
	slices.Sort(names)
	return names
}

// partitionNode reports whether a path is that of a partition, according to sysfs or, if the device does not exist, by
// name.
func partitionNode(root, path string) bool {
	number, err := blkdev.NumberOf(path)
	if err != nil {
		return strings.Contains(filepath.Base(path), "-part")
	}
	_, err = os.Stat(filepath.Join(root, "sys/dev/block", number.String(), "partition"))
	return err == nil
}
