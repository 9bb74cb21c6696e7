package device

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"cambium/internal/blkdev"
)

// LinkDirs returns the directories below root in which udev gives disks further names.
func LinkDirs(root string) (dirs []string) {
	for _, dir := range []string{"dev", "dev/disk/by-id", "dev/disk/by-path", "dev/disk/by-label", "dev/disk/by-uuid", "dev/disk/azure", "dev/mapper"} {
		dirs = append(dirs, filepath.Join(root, dir))
	}
	return dirs
}

// Present lists the names that lead to whole disks, sorted: nodes and links. Partitions are left
// out, since the agent makes them itself. A link that leads nowhere counts: its disk is on its way.
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

// partitionNode decides by sysfs, or by the name while the device does not exist.
func partitionNode(root, path string) bool {
	number, err := blkdev.NumberOf(path)
	if err != nil {
		return strings.Contains(filepath.Base(path), "-part")
	}
	_, err = os.Stat(filepath.Join(root, "sys/dev/block", number.String(), "partition"))
	return err == nil
}
