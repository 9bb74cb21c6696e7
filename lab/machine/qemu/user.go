package qemu

import (
	"fmt"
	"hash/fnv"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// firstUser begins 2^24 user numbers that no distribution assigns; systemd leaves them unused, too.
const firstUser = 0x70000000

// userOf is the number of the user, and of the group, that the QEMU of a machine runs as. It has no account. Each
// machine has its own: who breaks into one QEMU must not reach another one's memory and descriptors.
func userOf(name string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name)) // cannot fail
	return firstUser + h.Sum32()>>8
}

// asUser begins the command line of a machine's QEMU. QEMU's own -runas would come too late: it has read the guest's
// disks by then, and the filter of system calls forbids it.
func asUser(name string, accelerator []string) []string {
	user := fmt.Sprint(userOf(name))
	groups := "--clear-groups"
	var kvm unix.Stat_t
	if slices.Equal(accelerator, assisted) && unix.Stat("/dev/kvm", &kvm) == nil {
		groups = fmt.Sprintf("--groups=%d", kvm.Gid)
	}
	return []string{"setpriv", "--reuid=" + user, "--regid=" + user, groups, "--inh-caps=-all", "--ambient-caps=-all",
		"--bounding-set=-all", "--no-new-privs", "--"}
}

// environment is QEMU's: that of the lab is not for who breaks into it.
func environment() []string { return []string{"PATH=" + os.Getenv("PATH")} }

// ownGroup makes a group of processes: an interrupt on the terminal is for the lab, which shuts down in order.
var ownGroup = &syscall.SysProcAttr{Setpgid: true}

// descriptors are the open files that QEMU inherits: its user can open none of them by name.
type descriptors []*os.File

// firstFile is the number of the first inherited file.
const firstFile = 3

// add returns the number of the file in QEMU.
func (d *descriptors) add(f *os.File) int {
	*d = append(*d, f)
	return firstFile + len(*d) - 1
}

func (d *descriptors) close() {
	for _, f := range *d {
		_ = f.Close()
	}
	*d = nil
}

// open opens a file. QEMU gets it in a set of its own, under whose name it can open and close it as often as it
// likes; the set has the number of the file.
func (d *descriptors) open(path string, flags int) (set int, err error) {
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return 0, err
	}
	return d.add(f), nil
}

// setName returns the path by which QEMU opens the file of a set.
func setName(set int) string { return fmt.Sprintf("/dev/fdset/%d", set) }

// access returns the access mode for opening an image. QEMU opens it in the same mode, or does not find it in its
// set.
func access(readOnly bool) int {
	if readOnly {
		return os.O_RDONLY
	}
	return os.O_RDWR
}

// memory is a copy of a file that QEMU opens by name, and not as a set: kernel and initial RAM disk. Files in memory
// may be opened by all who have a descriptor.
func (d *descriptors) memory(name string, data []byte) (path string, err error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return "", fmt.Errorf("memfd for %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	path = fmt.Sprintf("/proc/self/fd/%d", d.add(f))
	if _, err := f.Write(data); err != nil {
		return "", fmt.Errorf("memfd for %s: %w", name, err)
	}
	return path, nil
}
