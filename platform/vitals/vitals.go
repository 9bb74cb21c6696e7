// Package vitals measures CPU, memory, swap, load, disks and uptime of the machine. It reads /proc and calls statfs(2).
// It starts no programs.
//
// Format and rounding are those of cloudfoundry/bosh-agent, which the Health Monitor expects.
package vitals

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"cambium/internal/bounded"
)

// Vitals is the part of heartbeats and get_state with the measurements.
type Vitals struct {
	CPU    CPU             `json:"cpu"`
	Disk   map[string]Disk `json:"disk,omitempty"`
	Load   []string        `json:"load,omitempty"`
	Memory Memory          `json:"mem"`
	Swap   Memory          `json:"swap"`
	Uptime Uptime          `json:"uptime"`
}

// CPU holds percentages of time, with one decimal.
type CPU struct {
	Sys  string `json:"sys,omitempty"`
	User string `json:"user,omitempty"`
	Wait string `json:"wait,omitempty"`
}

// Disk holds the usage of a file system in percent.
type Disk struct {
	// AgeSecs is the age of the values in seconds if the file system does not respond.
	AgeSecs      uint64 `json:"age_secs,omitempty"`
	InodePercent string `json:"inode_percent,omitempty"`
	Percent      string `json:"percent,omitempty"`
}

// Memory holds the usage of memory in kB and percent.
type Memory struct {
	KB      string `json:"kb,omitempty"`
	Percent string `json:"percent,omitempty"`
}

// Uptime is the time since boot.
type Uptime struct {
	Secs uint64 `json:"secs,omitempty"`
}

// window is the minimum time over which CPU usage is averaged, once the agent has run for that long.
const window = 10 * time.Second

// Gauge measures the vitals. It is created when the agent starts, since CPU usage is counted from then on; otherwise
// the first value would be the average since boot.
type Gauge struct {
	root    string
	paths   map[string]string // where disks are mounted, by name
	calls   bounded.Group
	measure func(path string) (usage, error)
	now     func() time.Time

	mu    sync.Mutex       // guards the fields below
	older sample           // start of the average
	newer sample           // start of the next average
	last  map[string]usage // the last result, by path
}

// mountTimeout bounds the wait for a file system to respond: statfs(2) on one that hangs does not return until it is
// unmounted.
const mountTimeout = 2 * time.Second

// usage is the result of a measurement.
type usage struct {
	Disk
	mounted bool
	at      time.Time
}

// New returns a gauge for the machine below root. ephemeral and persistent are the mount points of its data disks.
func New(root, ephemeral, persistent string) *Gauge {
	g := &Gauge{root: root, now: time.Now, calls: bounded.Group{Patience: mountTimeout}, measure: measure,
		last: map[string]usage{}, paths: map[string]string{"system": root, "ephemeral": filepath.Join(root, ephemeral),
			"persistent": filepath.Join(root, persistent)}}
	// If this fails, the first measurement fails, too, and returns the error.
	if first, err := g.sample(); err == nil {
		g.older, g.newer = first, first
	}
	return g
}

func (g *Gauge) read(path string) ([]byte, error) {
	data, err := os.ReadFile(filepath.Join(g.root, path))
	if err != nil {
		return nil, fmt.Errorf("vitals: %w", err)
	}
	return data, nil
}

// Measure returns the current vitals. For a file system that does not respond, it returns the last known values.
func (g *Gauge) Measure(ctx context.Context) (Vitals, error) {
	if ctx.Err() != nil {
		return Vitals{}, context.Cause(ctx)
	}
	var v Vitals
	var err error
	if v.CPU, err = g.cpu(); err != nil {
		return Vitals{}, err
	}
	if v.Memory, v.Swap, err = g.memory(); err != nil {
		return Vitals{}, err
	}
	if v.Load, err = g.load(); err != nil {
		return Vitals{}, err
	}
	if v.Uptime.Secs, err = g.uptime(); err != nil {
		return Vitals{}, err
	}
	v.Disk, err = g.measureDisks()
	return v, err
}

// sample holds the CPU times at one moment.
type sample struct {
	at                     time.Time
	user, sys, wait, total uint64
}

func (g *Gauge) sample() (sample, error) {
	data, err := g.read("proc/stat")
	if err != nil {
		return sample{}, err
	}
	s := sample{at: g.now()}
	line, _, _ := strings.Cut(string(data), "\n")
	fields := strings.Fields(line)
	// cpu user nice system idle iowait irq softirq steal guest guest_nice; guest time is part of
	// user time already.
	if len(fields) < 6 || fields[0] != "cpu" {
		return sample{}, errors.New("vitals: /proc/stat does not begin with the totals of all processors")
	}
	for i, text := range fields[1:min(len(fields), 9)] {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return sample{}, errors.New("vitals: /proc/stat contains something other than numbers")
		}
		s.total += n
		switch i {
		case 0, 1:
			s.user += n
		case 2:
			s.sys = n
		case 4:
			s.wait = n
		}
	}
	return s, nil
}

// cpu averages over the time since the sample before the last one. That is at least window ago once the agent has run
// for that long, however often it is called.
func (g *Gauge) cpu() (CPU, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now, err := g.sample()
	if err != nil {
		return CPU{}, err
	}
	if now.at.Sub(g.newer.at) >= window {
		g.older, g.newer = g.newer, now
	}
	since := g.older
	if now.total < since.total || now.user < since.user || now.sys < since.sys || now.wait < since.wait {
		since = now // counters may decrease if a VM is suspended or migrated
		g.older, g.newer = now, now
	}
	total := now.total - since.total
	return CPU{
		User: fmt.Sprintf("%.1f", percent(now.user-since.user, total)),
		Sys:  fmt.Sprintf("%.1f", percent(now.sys-since.sys, total)),
		Wait: fmt.Sprintf("%.1f", percent(now.wait-since.wait, total)),
	}, nil
}

// memory counts memory as used unless it is available to programs. Caches are available.
func (g *Gauge) memory() (memory, swap Memory, err error) {
	data, err := g.read("proc/meminfo")
	if err != nil {
		return Memory{}, Memory{}, err
	}
	kb := make(map[string]uint64)
	for s := bufio.NewScanner(bytes.NewReader(data)); s.Scan(); {
		name, value, found := strings.Cut(s.Text(), ":")
		number, _, _ := strings.Cut(strings.TrimSpace(value), " ")
		if n, err := strconv.ParseUint(number, 10, 64); found && err == nil {
			kb[name] = n
		}
	}
	if kb["MemTotal"] == 0 {
		return Memory{}, Memory{}, errors.New("vitals: /proc/meminfo has no MemTotal")
	}
	available, known := kb["MemAvailable"]
	if !known {
		available = kb["MemFree"] + kb["Buffers"] + kb["Cached"]
	}
	return used(kb["MemTotal"], available), used(kb["SwapTotal"], kb["SwapFree"]), nil
}

func used(total, free uint64) Memory {
	n := total - min(free, total)
	return Memory{KB: strconv.FormatUint(n, 10), Percent: fmt.Sprintf("%.0f", percent(n, total))}
}

func (g *Gauge) load() ([]string, error) {
	data, err := g.read("proc/loadavg")
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(string(data))
	if len(fields) < 3 {
		return nil, errors.New("vitals: /proc/loadavg has too few numbers")
	}
	var load []string
	for _, f := range fields[:3] {
		n, err := strconv.ParseFloat(f, 64)
		if err != nil {
			return nil, errors.New("vitals: /proc/loadavg contains something other than numbers")
		}
		load = append(load, fmt.Sprintf("%.2f", n))
	}
	return load, nil
}

func (g *Gauge) uptime() (uint64, error) {
	data, err := g.read("proc/uptime")
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(data), " ")
	n, err := strconv.ParseFloat(first, 64)
	if err != nil || !(n >= 0 && n < 1e15) {
		return 0, errors.New("vitals: /proc/uptime does not contain a time")
	}
	return uint64(n), nil
}

// measureDisks measures the mounted disks. The system disk must be measurable; others may be unmounted at any time.
func (g *Gauge) measureDisks() (map[string]Disk, error) {
	disks := make(map[string]Disk)
	for name, path := range g.paths {
		u, err := g.measureDisk(path)
		if err != nil && name == "system" {
			return nil, fmt.Errorf("vitals: %w", err)
		}
		if err == nil && u.mounted {
			disks[name] = u.Disk
		}
	}
	return disks, nil
}

// measureDisk returns the previous result, with its age, for a file system that does not respond.
func (g *Gauge) measureDisk(path string) (usage, error) {
	u, err := bounded.Call(&g.calls, path, func() (usage, error) { return g.measure(path) })
	g.mu.Lock()
	defer g.mu.Unlock()
	if errors.Is(err, bounded.ErrHangs) {
		u = g.last[path]
		u.AgeSecs = max(1, uint64(time.Since(u.at).Seconds()))
		return u, nil
	}
	u.at = time.Now()
	g.last[path] = u
	return u, err
}

func measure(path string) (usage, error) {
	var x unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_NO_AUTOMOUNT, unix.STATX_INO, &x); err != nil {
		return usage{}, fmt.Errorf("statx %s: %w", path, err)
	}
	if x.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return usage{}, nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return usage{}, fmt.Errorf("statfs %s: %w", path, err)
	}
	return usage{Disk: full(st), mounted: true}, nil
}

func full(st unix.Statfs_t) Disk {
	return Disk{
		Percent:      fmt.Sprintf("%.0f", percent(st.Blocks-min(st.Bfree, st.Blocks), st.Blocks)),
		InodePercent: fmt.Sprintf("%.0f", percent(st.Files-min(st.Ffree, st.Files), st.Files)),
	}
}

func percent(part, total uint64) float64 {
	if total == 0 {
		return 0
	}
	return float64(part) / float64(total) * 100
}
