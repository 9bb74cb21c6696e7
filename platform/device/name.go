package device

import (
	"os"
	"path/filepath"
	"strings"
)

// Canonical resolves all links in a device path. A device-mapper device keeps its name in /dev/mapper, since its
// partitions are named after that and not after dm-N.
func Canonical(path string) (string, error) {
	if filepath.Dir(path) == "/dev/mapper" {
		_, err := os.Stat(path)
		return path, err
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	base := filepath.Base(real)
	if strings.HasPrefix(base, "dm-") {
		name, err := os.ReadFile(filepath.Join("/sys/class/block", base, "dm", "name"))
		if err == nil {
			mapped := "/dev/mapper/" + strings.TrimSpace(string(name))
			if _, err := os.Stat(mapped); err == nil {
				return mapped, nil
			}
		}
	}
	return real, nil
}
