package qemu

import (
	"fmt"
	"hash/fnv"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// firstUser is the first of 2^24 user ids that no distribution and no systemd assigns.
const firstUser = 0x70000000

// userOf returns the uid and gid of a machine's QEMU. They have no account. Each machine has its own, so that an
// attacker in one QEMU cannot reach the memory and descriptors of another.
func userOf(name string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name)) // cannot fail
	return firstUser + h.Sum32()>>8
}

// asUser returns the start of QEMU's command line. QEMU's own -runas would be too late: it has read the guest's disks
// by then, and the system call filter forbids it.
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

// environment returns QEMU's environment. It contains nothing of the lab's, in case somebody breaks into QEMU.
func environment() []string { return []string{"PATH=" + os.Getenv("PATH")} }

// ownGroup starts a process group, because an interrupt on the terminal is for the lab, which shuts down in order.
var ownGroup = &syscall.SysProcAttr{Setpgid: true}

// descriptors are the open files that QEMU inherits, since its user has no access to any of them.
type descriptors []*os.File

// firstFile is the descriptor number of the first inherited file.
const firstFile = 3

// add adds a file and returns its descriptor number in QEMU.
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

// open opens a file and adds it in a set of its own. QEMU can open and close the set as often as it needs. The set's
// number is that of the descriptor.
func (d *descriptors) open(path string, flags int) (set int, err error) {
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return 0, err
	}
	return d.add(f), nil
}

// setName returns the path by which QEMU opens a set.
func setName(set int) string { return fmt.Sprintf("/dev/fdset/%d", set) }

// access returns the access mode for an image. QEMU must open it with the same mode, or it does not find the file in
// its set.
func access(readOnly bool) int {
	if readOnly {
		return os.O_RDONLY
	}
	return os.O_RDWR
}

// memory adds a copy of a file that QEMU opens by name and not as a set: kernel and initial RAM disk. Files in memory
// may be opened by everybody who has a descriptor.
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
