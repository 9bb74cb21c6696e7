package device

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"cambium/internal/blkdev"
)

// DescribeDisks lists the machine's disks with their sizes, for an operator who misses one or attached the wrong one.
func DescribeDisks(root string) string {
	dir := filepath.Join(root, "sys/block")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "the machine's disks cannot be listed: " + err.Error()
	}
	var disks []string
	for _, e := range entries {
		if anonymous.MatchString(e.Name()) {
			continue
		}
		info, err := blkdev.Read(filepath.Join(dir, e.Name()))
		if err != nil || info.Size == 0 {
			continue // an empty drive
		}
		disks = append(disks, fmt.Sprintf("/dev/%s (%.1f GiB)", info.Name, float64(info.Size)/(1<<30)))
	}
	if len(disks) == 0 {
		return "the machine has no disks"
	}
	return "the machine has " + strings.Join(disks, ", ")
}
