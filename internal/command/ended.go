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

// endedPause is the interval at which AwaitEnded looks.
const endedPause = 500 * time.Millisecond

// AwaitEnded waits until no program of that name runs that an agent has started: those of an agent that was killed go on
// without it.
func AwaitEnded(ctx context.Context, name string) error {
	for running("/proc", name) {
		if err := retry.Sleep(ctx, endedPause); err != nil {
			return err
		}
	}
	return nil
}

// running reports whether a process of the agent's user with the name of the program leads a process group, as those
// that Start starts do. It reads only what the kernel answers without the memory of the process.
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
		if known && int(owner.Uid) == os.Geteuid() && leads(string(data), name) {
			return true
		}
	}
	return false
}

// nameLength is the part of a program's name that the kernel keeps.
const nameLength = 15

// leads reports whether a line of /proc/PID/stat, "PID (NAME) STATE PARENT GROUP …", is that of a living leader of a
// process group.
func leads(stat, name string) bool {
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
