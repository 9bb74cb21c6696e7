package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"cambium/integration/lab/disk"
	"cambium/integration/lab/machine/nspawn"
	"cambium/integration/lab/netns"

	"golang.org/x/sys/unix"
)

// Leftovers returns the names of labs that have a directory below dir or a lock, whether they
// are up or not.
func Leftovers(dir string) ([]string, error) {
	names := map[string]bool{}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if e.IsDir() && ValidName(e.Name()) == nil {
			names[e.Name()] = true
		}
	}
	locked, err := lockedNames()
	if err != nil {
		return nil, err
	}
	for _, name := range locked {
		names[name] = true
	}
	return slices.Sorted(maps.Keys(names)), nil
}

// Clean removes everything of a lab, whatever state it is in: its processes, found by their
// command line or their namespace, swap and loop devices on its images, control groups,
// namespaces and files. What is not there is no error.
func Clean(dir, name string) error {
	if err := ValidName(name); err != nil {
		return err
	}
	own := directory(dir, name)
	failed := killAll(name)
	loops, err := disk.Below(own)
	failed = errors.Join(failed, err)
	for _, l := range loops {
		failed = errors.Join(failed, detach(l))
	}
	nspawn.RemoveGroups(Prefix + name + ".*")
	spaces, err := netns.List(Prefix)
	failed = errors.Join(failed, err)
	for _, space := range spaces {
		if ours(space, name) {
			failed = errors.Join(failed, netns.Open(space).Delete())
		}
	}
	for _, pattern := range []string{"/run/systemd/nspawn/propagate/" + Prefix + name + ".*",
		filepath.Join(os.TempDir(), Prefix+name+".*.shell"), filepath.Join(os.TempDir(), Prefix+name+".*.notify")} {
		paths, _ := filepath.Glob(pattern) // a valid name is no pattern
		for _, path := range paths {
			_ = os.Remove(path)
		}
	}
	if err := os.RemoveAll(own); err != nil {
		failed = errors.Join(failed, err)
	}
	if failed == nil {
		_ = os.Remove(lockPath(name))
	}
	if failed != nil {
		return fmt.Errorf("clean lab %s: %w", name, failed)
	}
	return nil
}

// killAll ends what a lab started: machines and servers are the processes in its network
// namespaces, systemd-nspawn and the lab's own process are recognised by an argument. The machines come first: their init ends everything in them, and
// systemd-nspawn, when it has seen that, unmounts.
func killAll(name string) error {
	inside, outside, err := processes(name)
	for _, pid := range append(inside, outside...) {
		err = errors.Join(err, killAndWait(pid))
	}
	return err
}

func processes(name string) (inside, outside []int, err error) {
	spaces, err := netns.List(Prefix)
	if err != nil {
		return nil, nil, err
	}
	own := map[uint64]bool{}
	for _, space := range spaces {
		if ours(space, name) {
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
		data, err := os.ReadFile(filepath.Join(path, "cmdline"))
		switch {
		case err != nil: // has ended
		case own[inode(filepath.Join(path, "ns/net"))]:
			inside = append(inside, pid)
		case belongs(string(data), name):
			outside = append(outside, pid)
		}
	}
	return inside, outside, nil
}

// inode identifies a namespace, 0 if it cannot be told.
func inode(path string) uint64 {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return 0
	}
	return st.Ino
}

// ours reports whether a namespace or control group is the lab's own or that of a machine.
func ours(item, name string) bool {
	return item == Prefix+name || strings.HasPrefix(item, Prefix+name+".")
}

func belongs(cmdline, name string) bool {
	for argument := range strings.SplitSeq(cmdline, "\x00") {
		if strings.HasPrefix(argument, "--machine="+Prefix+name+".") || argument == "lab-of-"+name {
			return true
		}
	}
	return false
}

// detach waits a moment for the kernel to have unmounted what a killed machine had mounted; it
// tells nobody when it has.
func detach(l disk.Loop) error {
	for deadline := time.Now().Add(5 * time.Second); ; {
		err := l.Detach()
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// killAndWait waits for the end through the process' own descriptor.
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
			return fmt.Errorf("process %d does not end", pid)
		}
		return err
	}
}

// WaitProcess waits until a process has ended.
func WaitProcess(ctx context.Context, pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("process %d: %w", pid, err)
	}
	defer func() { _ = unix.Close(fd) }()
	for ctx.Err() == nil {
		// In slices, so that ctx is seen.
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 200)
		if n > 0 {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	return ctx.Err()
}
