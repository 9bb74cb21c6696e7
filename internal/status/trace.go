package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"cambium/internal/atomicfile"
)

// What the timeline needs beside the steps: the time before the process, moments after them, earlier
// tries, and earlier boots.

// Origin has the start times of kernel, init and this process, in nanoseconds relative to the start of the document, so
// they are negative. Kernel is 0 in a container, whose kernel is the host's.
type Origin struct {
	Kernel  int64 `json:"kernel_ns,omitempty"`
	Init    int64 `json:"init_ns"`
	Process int64 `json:"process_ns"`
	// Unit is the time at which systemd began to start the agent's unit, or 0 if unknown. The agent does not set it;
	// the timeline asks systemd.
	Unit int64 `json:"unit_ns,omitempty"`
	// BootTime is the kernel's clock (CLOCK_BOOTTIME) at the start of the document. Other processes compute the
	// document's age from it, since the wall clock may be set during a boot.
	BootTime int64 `json:"boottime_ns"`
}

// Mark is a moment of the boot.
type Mark struct {
	Name string `json:"name"`
	At   int64  `json:"at_ns"`
}

// The marks of a boot. MarkHeartbeat is when the NATS server confirmed the first heartbeat.
const (
	MarkBus       = "bus connected"
	MarkHeartbeat = "first heartbeat"
)

// Try is an earlier run of the boot table by the same process.
type Try struct {
	Verdict string `json:"verdict,omitempty"`
	Steps   []Step `json:"steps"`
}

// Part is a part of a step that ran in parallel with others, such as one of the sources.
type Part struct {
	Name    string `json:"name"`
	Outcome string `json:"outcome"`
	Start   int64  `json:"start_ns"`
	End     int64  `json:"end_ns"` // 0 while it runs
	Why     string `json:"why,omitempty"`
}

// triesKept bounds the number of tries that are kept when a boot fails for hours: the first, which shows the cause, and
// the last ones.
const triesKept = 6

// KeepTry moves the steps of the last try to Tries. The engine calls it before the next try.
func (d *Document) KeepTry() {
	if !slices.ContainsFunc(d.Steps, func(s Step) bool { return s.Start > 0 || s.End > 0 }) {
		return
	}
	d.Tries = append(d.Tries, Try{Verdict: d.Verdict, Steps: d.Steps})
	if len(d.Tries) > triesKept {
		d.Tries = slices.Delete(d.Tries, 1, 2)
	}
}

// Marked reports whether the mark is set.
func (d *Document) Marked(name string) bool {
	return slices.ContainsFunc(d.Marks, func(m Mark) bool { return m.Name == name })
}

// mark sets a mark, if it is not set.
func (d *Document) mark(name string, at int64) {
	if !d.Marked(name) {
		d.Marks = append(d.Marks, Mark{Name: name, At: at})
	}
}

// Mark sets a mark to the current time, if it is not set.
func (r *Recorder) Mark(name string) error {
	at := r.Now()
	return r.Update(func(d *Document) { d.mark(name, at) })
}

// tick is the unit of times in /proc/PID/stat, which is the same on all architectures.
const tick = 10 * time.Millisecond

// initDelay bounds the time until a machine's init starts. If init started later, it is a container's.
const initDelay = 2 * time.Minute

// origin returns the start times of kernel, init and this process; nil if /proc cannot be read.
func origin() *Origin {
	now := bootTime()
	_, first, okFirst := processStat("1")
	_, own, okOwn := processStat("self")
	if !okFirst || !okOwn {
		return nil
	}
	o := &Origin{Init: first*int64(tick) - now, Process: min(own*int64(tick)-now, 0), BootTime: now}
	if time.Duration(first)*tick < initDelay {
		o.Kernel = -now
	}
	return o
}

// SetUnit sets when systemd began to start the unit, given on the clock of systemd's timestamps (CLOCK_MONOTONIC).
func (o *Origin) SetUnit(began time.Duration) {
	var now unix.Timespec
	if began <= 0 || unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) != nil {
		return
	}
	suspended := bootTime() - now.Nano() // which CLOCK_MONOTONIC does not count
	if at := int64(began) + suspended - o.BootTime; at >= o.Init && at < o.Process-int64(tick) {
		o.Unit = at
	}
}

func bootTime() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return 0 // every kernel since 2.6.39 has it
	}
	return now.Nano()
}

// Age returns the time since the start of the document, on the clock of Step. For another boot, or a process that has
// ended, it is the time of the last event.
func (d Document) Age() int64 {
	if d.Origin != nil && d.BootID == bootID() && unix.Kill(d.PID, 0) != unix.ESRCH {
		return max(bootTime()-d.Origin.BootTime, 0)
	}
	last := LastEvent(d.Steps)
	for _, m := range d.Marks {
		last = max(last, m.At)
	}
	return last
}

// LastEvent returns the time of the last start or end of a step or a wait.
func LastEvent(steps []Step) (last int64) {
	for _, s := range steps {
		last = max(last, s.Start, s.End)
		for _, w := range s.Waits {
			last = max(last, w.Start, w.End)
		}
	}
	return last
}

// processStat returns the state of a process (a letter), and its start time in clock ticks since the kernel's.
func processStat(pid string) (state string, began int64, ok bool) {
	stat, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	if err != nil {
		return "", 0, false
	}
	// The name in parentheses may hold blanks, so fields are counted after the last of them.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 20 {
		return "", 0, false
	}
	began, err = strconv.ParseInt(fields[19], 10, 64)
	return fields[0], began, err == nil
}

// boots is the content of the file with earlier boots.
type boots struct {
	Boots []Document `json:"boots"` // oldest first
}

// bootsKept is the number of boots that are kept.
const bootsKept = 5

// History keeps the documents of earlier boots on disk, for `agent timeline --boot`. The zero value does nothing.
type History struct {
	Path string
	Of   *Recorder
	Log  *logrus.Entry
}

// BootOver is the delay after the verdict until a successful boot is recorded. The record includes background steps,
// the bus and the first heartbeat, and none of these should wait for the write.
const BootOver = 30 * time.Second

// SaveBoot records the boot after a delay, or when ctx ends.
func (h History) SaveBoot(ctx context.Context, delay time.Duration) {
	if h.Of == nil {
		return
	}
	select {
	case <-time.After(delay):
	case <-ctx.Done():
	}
	if err := AddBoot(h.Path, h.Of.Snapshot()); err != nil {
		h.Log.WithError(err).Warn("cannot record the boot for later comparison")
	}
}

// aliveEvery is the minimum time between two updates by Alive.
const aliveEvery = time.Minute

// Alive touches the file, because its modification time tells when the machine was last seen up. Without an earlier
// boot there is no file, and it does nothing.
func (h History) Alive() error {
	info, err := os.Stat(h.Path)
	if err != nil || time.Since(info.ModTime()) < aliveEvery {
		return nil
	}
	now := time.Now()
	return os.Chtimes(h.Path, now, now)
}

// Previous returns the boot before d's, and when the machine was last seen up then (zero if unknown). found is false if
// no earlier boot is on record.
func (h History) Previous(d Document) (last Document, seen time.Time, found bool) {
	all, err := Boots(h.Path)
	if err != nil {
		return last, seen, false
	}
	for _, b := range all {
		if b.BootID != d.BootID {
			last, found = b, true
		}
	}
	if !found || d.Origin == nil {
		return last, seen, found
	}
	if last.Down != "" && last.Stopped != nil {
		return last, *last.Stopped, true
	}
	// A write during this boot says nothing about the previous one.
	if info, err := os.Stat(h.Path); err == nil && info.ModTime().Before(d.Began()) {
		seen = info.ModTime()
	}
	return last, seen, true
}

// Began returns when the kernel started this boot.
func (d Document) Began() time.Time {
	if d.Origin == nil {
		return d.Started
	}
	return d.Started.Add(time.Duration(min(d.Origin.Kernel, d.Origin.Init)))
}

// AddBoot adds a document to the file at path. It replaces an earlier document of the same boot.
func AddBoot(path string, d Document) error {
	d.Progress = nil
	all, err := Boots(path)
	if err != nil {
		all = nil // unreadable history is dropped
	}
	all = append(slices.DeleteFunc(all, func(old Document) bool { return old.BootID == d.BootID }), d)
	data, err := json.Marshal(boots{Boots: all[max(0, len(all)-bootsKept):]})
	if err != nil {
		return fmt.Errorf("status: %w", err)
	}
	return atomicfile.Write(path, append(data, '\n'), 0o644)
}

// Boots returns the documents in the file at path, the oldest first; none if there is no file.
func Boots(path string) ([]Document, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("status: %w", err)
	}
	var b boots
	if err := json.Unmarshal(data, &b); err != nil {
		return nil, fmt.Errorf("status: %s: %w", path, err)
	}
	return b.Boots, nil
}
