// Package features determines at start which features of the kernel and the container engine are missing, so that a log
// line reports them before something fails. Its probes are harmless system calls with invalid arguments.
// docs/stemcells.md has the table for people; a test compares the two.
package features

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Feature is a feature that the agent uses and that may be missing.
type Feature struct {
	Name string
	// Without describes the effect if the feature is missing.
	Without string
	// probe returns an error that absent recognizes if the feature is missing.
	probe func(root string) error
}

// errMissing is returned by probes that are not a single system call.
var errMissing = errors.New("missing")

// absent reports whether an error shows that the kernel does not have a system call, or that a container engine denies
// it, rather than that the arguments are invalid.
func absent(err error) bool {
	return errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) || errors.Is(err, errMissing)
}

const (
	noFile       = -1
	unknownFlags = 1 << 30
)

// unread describes an agent that cannot mount a device without a path.
const unread = "unmounted disks cannot be inspected: an ephemeral disk that only its files identify is refused, and " +
	"other persistent disks are ignored when the store is mounted"

// features returns all features, in the order of the table for people.
func features() []Feature {
	return []Feature{
		{"statx", "the boot fails, because mount points are not recognized: Linux 5.8 or newer is needed", mountRoots},
		{"renameat2", "a file in place of a link cannot be set aside, and the boot step fails",
			func(string) error { return unix.Renameat2(noFile, "", noFile, "", unix.RENAME_NOREPLACE) }},
		{"open_tree", "bind mounts get their flags a moment after they appear; migrate_disk fails",
			func(string) error { return closed(unix.OpenTree(noFile, "", 0)) }},
		{"move_mount", "bind mounts get their flags a moment after they appear",
			func(string) error { return unix.MoveMount(noFile, "", noFile, "", 0) }},
		{
			"mount_setattr",
			"bind mounts get their flags a moment after they appear; a bind-mounted store stays writable while it is copied",
			func(string) error { return unix.MountSetattr(noFile, "", 0, &unix.MountAttr{}) },
		},
		{"fspick", "migrate_disk fails", func(string) error { return closed(unix.Fspick(noFile, "", 0)) }},
		// Use unknown flags: for an unknown file system, the kernel would run modprobe.
		{"fsopen", unread, func(string) error { return closed(unix.Fsopen("", unknownFlags)) }},
		{"fsmount", unread, func(string) error { return closed(unix.Fsmount(noFile, 0, 0)) }},
		{"pidfd_open", "processes that use a mount are polled every few hundred milliseconds",
			func(string) error { return closed(unix.PidfdOpen(-1, 0)) }},
		// Do not create an instance: closing it takes an SRCU grace period of some ten milliseconds.
		{"inotify", "new files and devices are found by polling",
			func(string) error { return closed(unix.InotifyInit1(-1)) }},
		{"nftables", "there are no firewall rules: every process can reach monit", netfilter},
		{"cgroup v2", "all of vcap can reach monit as soon as one bpm job requests access",
			unifiedHierarchy},
		{"/proc/net/tcp", "monit is not queried and its alerts are refused, because the owners of sockets are unknown",
			socketTable},
	}
}

// closed closes the descriptor if a probe unexpectedly succeeds.
func closed(fd int, err error) error {
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}

func mountRoots(root string) error {
	var x unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, filepath.Join(root, "/"), 0, unix.STATX_BASIC_STATS, &x); err != nil {
		return err
	}
	if x.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return errMissing
	}
	return nil
}

func netfilter(string) error {
	err := closed(unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER))
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EAFNOSUPPORT) {
		return errMissing
	}
	return err
}

// unifiedHierarchy looks for cgroup v2, alone or next to v1, where it is mounted one level deeper.
func unifiedHierarchy(root string) error {
	for _, mount := range []string{"sys/fs/cgroup", "sys/fs/cgroup/unified"} {
		var st unix.Statfs_t
		if err := unix.Statfs(filepath.Join(root, mount), &st); err == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
			return nil
		}
	}
	return errMissing
}

func socketTable(root string) error {
	if _, err := os.Stat(filepath.Join(root, "proc/net/tcp")); err != nil {
		return errMissing
	}
	return nil
}

// Missing probes all features and returns the missing ones.
func Missing(root string) (missing []Feature) {
	for _, f := range features() {
		if absent(f.probe(root)) {
			missing = append(missing, f)
		}
	}
	return missing
}

// Describe formats the missing features as one line, grouped by effect.
func Describe(missing []Feature) string {
	var order []string
	names := map[string][]string{}
	for _, f := range missing {
		if names[f.Without] == nil {
			order = append(order, f.Without)
		}
		names[f.Without] = append(names[f.Without], f.Name)
	}
	var parts []string
	for _, without := range order {
		parts = append(parts, fmt.Sprintf("without %s: %s", strings.Join(names[without], ", "), without))
	}
	return strings.Join(parts, "; ")
}
