package supervisor

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"cambium/internal/bounded"

	"golang.org/x/sys/unix"
)

// process is a process with its sums over all descendants.
type process struct {
	pid, parent int
	started     time.Time
	ticks       uint64 // CPU time
	kilobytes   uint64 // resident memory
	children    int
	totalTicks  uint64
	totalKB     uint64
	// CPU percentages of the machine since the last check.
	cpu, totalCPU float64
}

// processes holds all processes at one time, by pid.
type processes map[int]process

// hertz is the unit of times in /proc, which is the same on all Linux machines.
const hertz = 100

// readProcesses returns all processes. It skips a process that ends meanwhile.
func readProcesses() processes {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return nil
	}
	var uptime unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &uptime); err != nil {
		return nil
	}
	booted := time.Now().Add(-time.Duration(uptime.Nano()))
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	all := processes{}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			if text, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat")); err == nil {
				if p, ok := parseStat(pid, text, booted); ok {
					all[pid] = p
				}
			}
		}
	}
	return all.withSums()
}

// parseStat parses the line of /proc/PID/stat.
func parseStat(pid int, text []byte, booted time.Time) (process, bool) {
	// The name is in parentheses and may hold anything.
	end := bytes.LastIndexByte(text, ')')
	if end < 0 {
		return process{}, false
	}
	// The third field is the first one here.
	fields := strings.Fields(string(text[end+1:]))
	if len(fields) < 22 || fields[0] == "Z" {
		return process{}, false
	}
	number := func(field int) uint64 {
		n, _ := strconv.ParseUint(fields[field-3], 10, 64) // negative or none: 0
		return n
	}
	return process{pid: pid, parent: int(number(4)), ticks: number(14) + number(15),
		started:   booted.Add(time.Duration(number(22)) * time.Second / hertz),
		kilobytes: number(24) * uint64(os.Getpagesize()) / 1024}, true
}

// withSums adds each process to its ancestors.
func (all processes) withSums() processes {
	sums := make(processes, len(all))
	for pid, p := range all {
		p.children, p.totalTicks, p.totalKB = 0, p.ticks, p.kilobytes
		sums[pid] = p
	}
	for _, pid := range all.childrenFirst() {
		p := sums[pid]
		if parent, known := sums[p.parent]; known {
			parent.children += p.children + 1
			parent.totalTicks += p.totalTicks
			parent.totalKB += p.totalKB
			sums[p.parent] = parent
		}
	}
	return sums
}

// childrenFirst lists each process once, after its children. Since the processes were not read at one instant, they may
// form a loop; such processes are skipped.
func (all processes) childrenFirst() []int {
	children := make(map[int]int, len(all))
	for _, p := range all {
		children[p.parent]++
	}
	order := make([]int, 0, len(all))
	for pid := range all {
		if children[pid] == 0 {
			order = append(order, pid)
		}
	}
	for i := 0; i < len(order); i++ {
		parent := all[order[i]].parent
		if _, known := all[parent]; !known {
			continue
		}
		if children[parent]--; children[parent] == 0 {
			order = append(order, parent)
		}
	}
	return order
}

// commandLines bounds reads of command lines, because a process can block them.
var commandLines bounded.Group

// matching returns the lowest pid whose command line matches the pattern. The error is bounded.ErrHangs if a command
// line could not be read in time.
func (all processes) matching(pattern *regexp.Regexp) (found int, err error) {
	if all == nil {
		all = readProcesses()
	}
	for pid := range all {
		if pid == os.Getpid() || found != 0 && pid > found {
			continue
		}
		line, failed := bounded.ReadFile(&commandLines, filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
		if errors.Is(failed, bounded.ErrHangs) {
			err = failed
		}
		if failed == nil && pattern.Match(bytes.ReplaceAll(bytes.TrimRight(line, "\x00"), []byte{0}, []byte{' '})) {
			found = pid
		}
	}
	return found, err
}

// usage records the CPU time of a process and its descendants at the last check.
type usage struct {
	pid          int
	at           time.Time
	ticks, total uint64
}

// share returns the percentages of the machine's CPU time that a process, and it with its descendants, used since the
// last check; 0 at the first check.
func (u *usage) share(p process, now time.Time, cpus int) (own, total float64) {
	if elapsed := now.Sub(u.at).Seconds(); u.pid == p.pid && elapsed > 0 {
		percent := func(now, before uint64) float64 {
			if now < before {
				return 0 // a child has ended
			}
			return min(100, float64(now-before)/hertz/elapsed/float64(cpus)*100)
		}
		own, total = percent(p.ticks, u.ticks), percent(p.totalTicks, u.total)
	}
	*u = usage{p.pid, now, p.ticks, p.totalTicks}
	return own, total
}
