package command

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"cambium/internal/retry"
)

// endedPause is the interval at which AwaitEnded checks.
const endedPause = 500 * time.Millisecond

// AwaitEnded waits until no program with the name runs that an agent has started. The programs of an agent that was
// killed continue without it.
func AwaitEnded(ctx context.Context, name string) error {
	for running("/proc", name) {
		if err := retry.Sleep(ctx, endedPause); err != nil {
			return err
		}
	}
	return nil
}

// running reports whether a process of the agent's user has the program's name and leads a process group, as the
// processes of Start do. It reads only files that do not need the memory of the process.
func running(proc, name string) bool {
	stats, _ := filepath.Glob(filepath.Join(proc, "[0-9]*", "stat"))
	for _, path := range stats {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		info, err := os.Stat(path)
		if err != nil {
			continue
		}
		owner, known := info.Sys().(*syscall.Stat_t)
		if known && int(owner.Uid) == os.Geteuid() && isLeader(string(data), name) {
			return true
		}
	}
	return false
}

// nameLength is the length to which the kernel cuts a program's name.
const nameLength = 15

// isLeader reports whether a line of /proc/PID/stat, "PID (NAME) STATE PARENT GROUP …", describes a living leader of a
// process group.
func isLeader(stat, name string) bool {
	pid, rest, _ := strings.Cut(stat, " (")
	end := strings.LastIndex(rest, ") ")
	if end < 0 || rest[:end] != name[:min(len(name), nameLength)] {
		return false
	}
	fields := strings.Fields(rest[end+1:])
	if _, err := strconv.Atoi(pid); err != nil || len(fields) < 3 {
		return false
	}
	return fields[2] == pid && fields[0] != "Z" && fields[0] != "X"
}
