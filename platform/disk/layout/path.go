package layout

import (
	"path"
	"strconv"
	"strings"
)

// PartitionPath returns the path of partition n of a disk. The naming depends on the kind of disk:
//
//	/dev/sda, /dev/vda, /dev/xvda         /dev/sda1
//	/dev/nvme0n1, loop0, mmcblk0, md0     /dev/nvme0n1p1 (a name that ends in a digit)
//	/dev/mapper/name                      /dev/mapper/name-part1
//	/dev/disk/by-id/link (and others)     /dev/disk/by-id/link-part1
func PartitionPath(disk string, n int) string {
	number := strconv.Itoa(n)
	switch {
	case strings.HasPrefix(disk, "/dev/mapper/"), strings.HasPrefix(disk, "/dev/disk/"):
		return disk + "-part" + number
	case disk != "" && isDigit(disk[len(disk)-1]):
		return disk + "p" + number
	}
	return disk + number
}

// SplitPath splits a partition's path into the disk and the number. ok is false if the path is not that of a partition.
func SplitPath(part string) (disk string, n int, ok bool) {
	digits := len(part)
	for digits > 0 && isDigit(part[digits-1]) {
		digits--
	}
	n, err := strconv.Atoi(part[digits:])
	if err != nil || n < 1 {
		return "", 0, false
	}
	disk = part[:digits]
	switch {
	case strings.HasPrefix(part, "/dev/mapper/"), strings.HasPrefix(part, "/dev/disk/"):
		disk, ok = strings.CutSuffix(disk, "-part")
		return disk, n, ok
	case strings.HasSuffix(disk, "p") && len(disk) > 1 && isDigit(disk[len(disk)-2]):
		return disk[:len(disk)-1], n, true
	}
	// A whole disk whose own name ends in a number is not a partition of anything.
	switch base := strings.TrimRight(path.Base(disk), "/"); {
	case base == "loop", base == "mmcblk", base == "md", base == "nbd", base == "dm-", base == "sr", base == "ram",
		base == "zram":
		return "", 0, false
	case strings.HasPrefix(base, "nvme") && strings.HasSuffix(base, "n"):
		return "", 0, false
	}
	return disk, n, true
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }
