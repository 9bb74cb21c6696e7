package device

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// There names the disks of the machine with their sizes, for an operator who looks for one that is missing, or has attached the wrong one.
func There(root string) string {
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
		// sysfs counts in units of 512 bytes whatever the sectors of the disk are.
		text, _ := os.ReadFile(filepath.Join(dir, e.Name(), "size"))
		sectors, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err != nil || sectors == 0 {
			continue // an empty drive
		}
		disks = append(disks, fmt.Sprintf("/dev/%s (%.1f GiB)", strings.ReplaceAll(e.Name(), "!", "/"), float64(sectors)*512/(1<<30)))
	}
	if len(disks) == 0 {
		return "the machine has no disks"
	}
	return "the machine has " + strings.Join(disks, ", ")
}
