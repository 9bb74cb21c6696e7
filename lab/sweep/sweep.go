// Package sweep removes what a process with machines has left in the kernel: processes, swap and loop devices, control
// groups and namespaces. It finds them by the prefix of the names of machines and namespaces, or by the directory of
// images, so it also works after a crash and from another process.
package sweep

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"cambium/internal/bounded"
	"cambium/lab/disk"
	"cambium/lab/machine/nspawn"
	"cambium/lab/netns"

	"golang.org/x/sys/unix"
)

// Remains selects what is removed.
type Remains struct {
	Name string // everything with this name, or with this name as a prefix before a dot
	Dir  string // loop devices with images below this directory
	// Holds recognizes other processes by an argument of their command line; may be nil.
	Holds func(argument string) bool
	// Visitors spares processes in the network namespace Name without an argument that begins with the name and a dot.
	// `lab enter` runs such processes.
	Visitors bool
}

// Remove ends the processes and removes the rest. It ignores what does not exist.
func (r Remains) Remove() error {
	name := r.Name
	failed := r.killAll()
	loops, err := disk.Below(r.Dir)
	failed = errors.Join(failed, err)
	for _, l := range loops {
		failed = errors.Join(failed, detach(l))
	}
	nspawn.RemoveGroups(name + ".*")
	spaces, err := netns.List(name)
	failed = errors.Join(failed, err)
	for _, space := range spaces {
		if named(space, name) {
			failed = errors.Join(failed, netns.Open(space).Delete())
		}
	}
	for _, pattern := range []string{"/run/systemd/nspawn/propagate/" + name + ".*",
		filepath.Join(os.TempDir(), name+".*.shell"), filepath.Join(os.TempDir(), name+".*.notify")} {
		paths, _ := filepath.Glob(pattern) // a valid name is not a pattern
		for _, path := range paths {
			_ = os.Remove(path)
		}
	}
	return failed
}

// commandLines bounds reads of command lines, because a process can block them.
var commandLines bounded.Group

// killAll ends the processes. Machines and servers are found by their network namespaces or control groups,
// systemd-nspawn and the holder by an argument. The machines end first: their init ends everything in them, and
// systemd-nspawn then unmounts their file systems.
func (r Remains) killAll() error {
	inside, outside, err := r.processes()
	for _, pid := range append(inside, outside...) {
		err = errors.Join(err, killAndWait(pid))
	}
	return err
}

func (r Remains) processes() (inside, outside []int, err error) {
	spaces, err := netns.List(r.Name)
	if err != nil {
		return nil, nil, err
	}
	own := map[uint64]bool{}
	for _, space := range spaces {
		if named(space, r.Name) && (space != r.Name || !r.Visitors) {
			own[inode(netns.Open(space).Path())] = true
		}
	}
	delete(own, 0)
	found, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, nil, err
	}
	for _, path := range found {
		pid, err := strconv.Atoi(filepath.Base(path))
		if err != nil || pid == os.Getpid() {
			continue
		}
		data, err := bounded.ReadFile(&commandLines, filepath.Join(path, "cmdline"))
		if err != nil {
			continue // has ended, or belongs to somebody who holds it
		}
		groups, _ := os.ReadFile(filepath.Join(path, "cgroup")) // none: has ended
		switch {
		case own[inode(filepath.Join(path, "ns/net"))], r.grouped(string(groups)):
			inside = append(inside, pid)
		case r.belongs(string(data)):
			outside = append(outside, pid)
		}
	}
	return inside, outside, nil
}

// grouped reports whether a process is in the control group of a machine. This finds a machine whose namespace has lost
// its name.
func (r Remains) grouped(groups string) bool { return strings.Contains(groups, "/"+r.Name+".") }

// inode identifies a namespace; 0 if it cannot be read.
func inode(path string) uint64 {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return 0
	}
	return st.Ino
}

// named reports whether a namespace is name, or belongs to one of its machines.
func named(item, name string) bool { return item == name || strings.HasPrefix(item, name+".") }

func (r Remains) belongs(cmdline string) bool {
	for argument := range strings.SplitSeq(cmdline, "\x00") {
		if strings.HasPrefix(argument, "--machine="+r.Name+".") || r.Holds != nil && r.Holds(argument) ||
			r.Visitors && strings.HasPrefix(argument, r.Name+".") {
			return true
		}
	}
	return false
}

// detachTimeout bounds the wait, on a busy host, for the kernel to unmount the file systems of a killed machine.
const detachTimeout = 20 * time.Second

// detach detaches a loop device. It polls until the kernel has unmounted the file systems of a killed machine, since
// there is no event for that.
func detach(l disk.Loop) error {
	for deadline := time.Now().Add(detachTimeout); ; {
		err := l.Detach()
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// killAndWait kills a process and waits until it has ended.
func killAndWait(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("process %d: %w", pid, err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("process %d: %w", pid, err)
	}
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 10_000)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if n == 0 {
			return fmt.Errorf("process %d does not exit", pid)
		}
		return err
	}
}
