package nspawn

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// hierarchies lists cgroup mount points below /sys/fs/cgroup: on a hybrid system those that track processes (systemd,
// unified) and those with limits (memory, cpu); on a pure cgroup v2 system the root.
var hierarchies = []string{"systemd", "unified", "memory", "cpu", "."}

// cgroups returns the directories of the machine's control groups, on a host without systemd.
func (m *Machine) cgroups() (dirs []string) {
	for _, hierarchy := range hierarchies {
		dir := filepath.Join("/sys/fs/cgroup", hierarchy)
		if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err != nil {
			continue
		}
		if limits := hierarchy == "memory" || hierarchy == "cpu"; limits && !m.engine.limited() {
			continue
		}
		dirs = append(dirs, filepath.Join(dir, m.Spec.Name))
	}
	return dirs
}

// limited reports whether the engine limits its machines.
func (e Engine) limited() bool { return e.Memory > 0 || e.CPUs > 0 }

// period is the length of a CPU quota period, in microseconds.
const period = 100_000

// properties returns the limits as properties of a systemd unit.
func (e Engine) properties() (all []string) {
	if e.Memory > 0 {
		all = append(all, fmt.Sprintf("--property=MemoryMax=%dM", e.Memory))
	}
	if e.CPUs > 0 {
		all = append(all, fmt.Sprintf("--property=CPUQuota=%d%%", 100*e.CPUs))
	}
	return all
}

// limit writes the limits to a control group of either version. A group only has the files of its own controllers.
func (e Engine) limit(dir string) error {
	bytes, quota := strconv.Itoa(e.Memory<<20), strconv.Itoa(e.CPUs*period)
	var failed error
	for _, l := range []struct {
		wanted      bool
		file, value string
	}{
		{e.Memory > 0, "memory.limit_in_bytes", bytes}, {e.Memory > 0, "memory.max", bytes},
		{e.CPUs > 0, "cpu.cfs_quota_us", quota}, {e.CPUs > 0, "cpu.max", fmt.Sprintf("%s %d", quota, period)},
	} {
		path := filepath.Join(dir, l.file)
		if _, err := os.Stat(path); err != nil || !l.wanted {
			continue
		}
		failed = errors.Join(failed, os.WriteFile(path, []byte(l.value), 0o644))
	}
	if failed != nil {
		return fmt.Errorf("control group: %w", failed)
	}
	return nil
}

func (m *Machine) removeCgroups() {
	for _, dir := range m.cgroups() {
		removeTree(dir)
	}
}

// RemoveGroups removes the control groups that machines with matching names have left after a crash.
func RemoveGroups(pattern string) {
	for _, hierarchy := range hierarchies {
		groups, _ := filepath.Glob(filepath.Join("/sys/fs/cgroup", hierarchy, pattern)) // an invalid pattern finds nothing
		for _, g := range groups {
			removeTree(g)
		}
	}
}

// removeTree removes control groups from the bottom up, as rmdir requires.
func removeTree(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if e.IsDir() {
			removeTree(filepath.Join(dir, e.Name()))
		}
	}
	_ = os.Remove(dir)
}
