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

// process is a process as the kernel lists it, and the sums over it and its descendants.
type process struct {
	pid, parent int
	started     time.Time
	ticks       uint64 // of CPU time
	kilobytes   uint64 // resident
	children    int
	totalTicks  uint64
	totalKB     uint64
	// CPU percentages of the machine since the last look.
	cpu, totalCPU float64
}

// processes are all processes at one time, by pid.
type processes map[int]process

// hertz is the unit of times below /proc; it is the same on all of Linux.
const hertz = 100

// readProcesses lists all processes. One that ends meanwhile is left out.
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

// parseStat reads the line of /proc/PID/stat.
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

// withSums adds each process to all its ancestors.
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

// childrenFirst lists each process once, after all of its children. A list that was not read at one instant may have a
// loop, whose processes are left out.
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

// commandLines are reads that a process can hold up.
var commandLines bounded.Group

// matching finds the process with the lowest pid whose command line fits. The error is bounded.ErrHangs if one could not
// be read in time.
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

// usage records the CPU time that a process and its tree had used at the last look.
type usage struct {
	pid          int
	at           time.Time
	ticks, total uint64
}

// share returns the percentages of the machine's CPU time that a process and its tree used since the last look; 0 at
// the first one.
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
