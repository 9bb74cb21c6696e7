package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"cambium/internal/bounded"
	"cambium/supervisor/monitfile"

	"golang.org/x/sys/unix"
)

// checkService checks a service in a cycle, unless it is unmonitored, a replacement of its process is awaited, or it is
// due in a later cycle.
func (c *chain) checkService(ctx context.Context, s *service, all processes) {
	if v := s.currentStatus(); v.monitor == Off || s.waiting {
		return
	}
	if s.skipped++; s.Every > 1 && s.skipped < s.Every {
		return
	}
	s.skipped = 0
	c.countRestarts(ctx, s)
	if s.currentStatus().monitor == Off {
		return
	}
	switch s.Type {
	case monitfile.Process:
		c.lookAtProcess(ctx, s, all)
	case monitfile.Filesystem:
		c.lookAtFilesystem(ctx, s)
	case monitfile.Host:
		c.connect(ctx, s)
	case monitfile.System:
		c.lookAtSystem(ctx, s)
	default:
		c.lookAtFile(ctx, s)
	}
	s.update(func(v *status) {
		v.looked = time.Now()
		if v.monitor == Initializing { // a test may have ended the supervision
			v.monitor = On
		}
	})
}

// countRestarts applies the tests of the form "3 restarts within 5 cycles". Cycles count from the first restart.
func (c *chain) countRestarts(ctx context.Context, s *service) {
	tests := s.restartTests()
	if len(tests) == 0 {
		return
	}
	longest := 0
	var v status
	s.update(func(now *status) {
		if now.starts > 0 {
			now.cycles++
		}
		v = *now
	})
	for _, t := range tests {
		longest = max(longest, t.Cycles)
		if v.starts >= t.Restarts && v.cycles <= t.Cycles {
			c.post(ctx, s, t, ruleOf(eventTimeout, *t), failed,
				fmt.Sprintf("service restarted %d times within %d cycles - %v", v.starts, v.cycles, t.Then.Verb))
		}
	}
	if v.cycles > longest {
		for _, t := range tests {
			c.post(ctx, s, t, ruleOf(eventTimeout, *t), passed, "the number of restarts is within its limit")
		}
		s.update(func(v *status) { v.starts, v.cycles = 0, 0 })
	}
}

func (c *chain) lookAtProcess(ctx context.Context, s *service, all processes) {
	pid, err := s.find(all)
	if err != nil {
		c.post(ctx, s, "access", access, failed, "cannot tell whether the process runs: "+err.Error())
		return
	}
	c.post(ctx, s, "access", access, passed, "it is known whether the process runs")
	if pid == 0 {
		c.missing(ctx, s)
		return
	}
	c.newPid(ctx, s, pid)
	c.follow(s, pid)
	p, listed := all[pid]
	if !listed {
		p = process{pid: pid} // younger than the list
	}
	p.cpu, p.totalCPU = s.usage.share(p, time.Now(), runtime.NumCPU())
	first := s.currentStatus().monitor == Initializing
	s.update(func(v *status) { v.process = p })
	c.post(ctx, s, "existence", c.existence(s), passed, fmt.Sprintf("process is running with pid %d", pid))
	c.executed(ctx, s, passed, "the process runs")
	for i := range s.Tests {
		t := &s.Tests[i]
		var value float64
		switch t.Kind {
		case monitfile.Changed:
			c.lookForChange(ctx, s, t, map[string]int64{"pid": int64(pid), "ppid": int64(p.parent)})
			continue
		case monitfile.Resource:
		default:
			continue
		}
		switch t.Subject {
		case "mem":
			value = memoryAmount(p.kilobytes, t.Percent)
		case "totalmem":
			value = memoryAmount(p.totalKB, t.Percent)
		case "cpu":
			value = p.cpu
		case "totalcpu":
			value = p.totalCPU
		case "children":
			value = float64(p.children)
		default:
			c.measureSystem(ctx, s, t)
			continue
		}
		if strings.HasSuffix(t.Subject, "cpu") && first {
			continue // nothing to compare with
		}
		c.compare(ctx, s, t, eventResource, value)
	}
	c.connect(ctx, s)
}

// memoryAmount converts memory to the unit of a test: bytes, or a percentage of the machine's memory.
func memoryAmount(kilobytes uint64, percent bool) float64 {
	bytes := float64(kilobytes) * 1024
	if percent {
		return bytes / machineMemory() * 100
	}
	return bytes
}

func machineMemory() float64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 1
	}
	return float64(info.Totalram) * float64(info.Unit)
}

// compare tests a measured value.
func (c *chain) compare(ctx context.Context, s *service, t *monitfile.Test, e event, value float64) {
	matches := map[monitfile.Operator]bool{monitfile.Greater: value > t.Limit, monitfile.Less: value < t.Limit,
		monitfile.Equal: value == t.Limit, monitfile.NotEqual: value != t.Limit}[t.Operator]
	unit := ""
	if t.Percent {
		unit = "%"
	}
	sign := [...]string{">", "<", "=", "!="}[t.Operator]
	text := fmt.Sprintf("%s of %.0f%s matches the limit %s%.0f%s", t.Subject, value, unit, sign, t.Limit, unit)
	found := failed
	if !matches {
		found, text = passed, fmt.Sprintf("%s is %.0f%s, within the limit", t.Subject, value, unit)
	}
	c.post(ctx, s, t, ruleOf(e, *t), found, text)
}

// lookForChange compares values with those of the last check.
func (c *chain) lookForChange(ctx context.Context, s *service, t *monitfile.Test, values map[string]int64) {
	value, measured := values[t.Subject]
	if !measured {
		return
	}
	old, known := s.stamps[t.Subject]
	s.stamps[t.Subject] = value
	if known && old != value {
		e := map[string]event{"pid": eventPid, "ppid": eventPpid, "size": eventSize}[t.Subject]
		if e == 0 {
			e = eventTimestamp
		}
		c.post(ctx, s, t, ruleOf(e, *t), changed, fmt.Sprintf("%s was changed", t.Subject))
	}
}

// looks bounds access to files, whose file system may not answer.
var looks bounded.Group

// access is the rule for a file or file system that cannot be read.
var access = defaultRule(eventData, monitfile.Alert)

func (c *chain) lookAtFile(ctx context.Context, s *service) {
	info, err := bounded.Stat(&looks, s.Path)
	if errors.Is(err, bounded.ErrHangs) {
		c.post(ctx, s, "access", access, failed, "cannot look at "+err.Error())
		return
	}
	c.post(ctx, s, "access", access, passed, "the file system answers")
	if err != nil {
		c.missing(ctx, s)
		return
	}
	c.post(ctx, s, "existence", c.existence(s), passed, s.Path+" exists")
	right := map[monitfile.Type]bool{monitfile.File: info.Mode().IsRegular(), monitfile.Directory: info.IsDir(),
		monitfile.Fifo: info.Mode()&os.ModeNamedPipe != 0}[s.Type]
	invalid := defaultRule(eventInvalid, monitfile.Unmonitor)
	if !right {
		c.post(ctx, s, "type", invalid, failed, s.Path+" has a different type")
		return
	}
	c.post(ctx, s, "type", invalid, passed, s.Path+" has the right type")
	// The later of both: a rename or chmod changes the file, too.
	stat := info.Sys().(*syscall.Stat_t)
	stamp := max(stat.Mtim.Sec, stat.Ctim.Sec)
	for i := range s.Tests {
		switch t := &s.Tests[i]; {
		case t.Kind == monitfile.Changed:
			c.lookForChange(ctx, s, t, map[string]int64{"timestamp": stamp, "size": info.Size()})
		case t.Kind == monitfile.Value && t.Subject == "size":
			c.compare(ctx, s, t, eventSize, float64(info.Size()))
		case t.Kind == monitfile.Value && t.Subject == "timestamp":
			c.compare(ctx, s, t, eventTimestamp, time.Since(time.Unix(stamp, 0)).Seconds())
		}
	}
}

func (c *chain) lookAtFilesystem(ctx context.Context, s *service) {
	st, err := bounded.Call(&looks, s.Path, func() (st unix.Statfs_t, err error) {
		err = unix.Statfs(s.Path, &st)
		return st, err
	})
	if err != nil {
		c.post(ctx, s, "access", access, failed, fmt.Sprintf("cannot read the file system of %s: %v", s.Path, err))
		return
	}
	c.post(ctx, s, "access", access, passed, "the file system can be read")
	for i := range s.Tests {
		t := &s.Tests[i]
		if t.Kind != monitfile.Value {
			continue
		}
		used, total, unit := float64(st.Blocks-st.Bfree), float64(st.Blocks), float64(st.Bsize)
		if t.Subject == "inode" {
			used, total, unit = float64(st.Files-st.Ffree), float64(st.Files), 1
		}
		value := used * unit
		if t.Percent && total > 0 {
			value = used / total * 100
		}
		c.compare(ctx, s, t, eventResource, value)
	}
}

func (c *chain) lookAtSystem(ctx context.Context, s *service) {
	for i := range s.Tests {
		if t := &s.Tests[i]; t.Kind == monitfile.Resource {
			c.measureSystem(ctx, s, t)
		}
	}
}

// measureSystem applies a test of the machine's load or memory.
func (c *chain) measureSystem(ctx context.Context, s *service, t *monitfile.Test) {
	switch t.Subject {
	case "loadavg(1)", "loadavg(5)", "loadavg(15)":
		text, err := os.ReadFile("/proc/loadavg")
		fields := strings.Fields(string(text))
		if err != nil || len(fields) < 3 {
			return
		}
		index := map[string]int{"loadavg(1)": 0, "loadavg(5)": 1, "loadavg(15)": 2}[t.Subject]
		if load, err := strconv.ParseFloat(fields[index], 64); err == nil {
			c.compare(ctx, s, t, eventResource, load)
		}
	case "mem":
		c.compare(ctx, s, t, eventResource, memoryAmount(usedMemory(), t.Percent))
	}
}

// usedMemory returns the memory in KiB that programs could get only by swapping.
func usedMemory() uint64 {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	values := map[string]uint64{}
	for line := range strings.Lines(string(text)) {
		name, rest, _ := strings.Cut(line, ":")
		if fields := strings.Fields(rest); len(fields) > 0 {
			values[name], _ = strconv.ParseUint(fields[0], 10, 64) // not a number: 0
		}
	}
	return values["MemTotal"] - min(values["MemAvailable"], values["MemTotal"])
}
