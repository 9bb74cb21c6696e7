package configdrive

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	eventwatch "cambium/internal/watch"
)

// Limits of the wait for devices to appear.
const (
	// settleBound bounds the wait for a missing device.
	settleBound = 10 * time.Second
	// settleQuiet is the time without a new block device, with udev's queue empty, after which enumeration counts
	// as finished. The kernel does not report that: it probes buses in the background.
	settleQuiet = time.Second
	// bootPhase is an uptime after which the enumeration at boot has finished.
	bootPhase = 2 * time.Minute
)

// enumeration tracks whether the kernel and udev have finished finding devices. After that, this process no longer
// waits; the next attempt finds devices that are attached later.
type enumeration struct {
	root    string
	settled atomic.Bool
	// events replaces the kernel's in tests.
	events func() (<-chan struct{}, func())
}

type watch struct {
	e        *enumeration
	events   <-chan struct{}
	stop     func()
	deadline time.Time
}

// watch starts to listen for devices. The caller looks for its device afterwards, so that none is missed.
func (e *enumeration) watch() *watch {
	listen := e.events
	if listen == nil {
		listen = e.listen
	}
	w := &watch{e: e, stop: func() {}, deadline: time.Now().Add(settleBound)}
	if !e.settled.Load() {
		w.events, w.stop = listen()
	}
	return w
}

func (w *watch) close() { w.stop() }

// next waits for a device event and returns true. It returns false if enumeration has finished or taken too long, or
// ctx has ended.
func (w *watch) next(ctx context.Context) bool {
	for !w.e.settled.Load() {
		pause := time.Until(w.deadline)
		busy := w.e.udevBusy()
		if !busy {
			if w.e.longUp() {
				w.e.settled.Store(true)
				return false
			}
			pause = min(pause, settleQuiet)
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return false
		case <-w.events:
			timer.Stop()
			if time.Now().Before(w.deadline) {
				return true
			}
		case <-timer.C:
			if busy && time.Now().Before(w.deadline) {
				continue
			}
		}
		w.e.settled.Store(true)
	}
	return false
}

// udevBusy reports whether udev has queued events, which is as long as this file exists.
func (e *enumeration) udevBusy() bool {
	_, err := os.Stat(filepath.Join(e.root, "run/udev/queue"))
	return err == nil
}

// longUp reports whether the machine has been up so long that all buses have been probed. A restarted agent then need
// not wait.
func (e *enumeration) longUp() bool {
	text, err := os.ReadFile(filepath.Join(e.root, "proc/uptime"))
	if err != nil {
		return false
	}
	first, _, _ := strings.Cut(string(text), " ")
	seconds, err := strconv.ParseFloat(first, 64)
	return err == nil && seconds > bootPhase.Seconds()
}

// listen sends an event for each new block device, for each one that udev has processed, and if udev's queue may be
// empty. Without these events, settleQuiet applies.
func (e *enumeration) listen() (<-chan struct{}, func()) {
	l, err := eventwatch.Listen(eventwatch.Kernel|eventwatch.Udev, func(message []byte) bool {
		return bytes.Contains(message, []byte("SUBSYSTEM=block\x00")) || bytes.Contains(message, []byte("queue\x00"))
	})
	if err != nil {
		return nil, func() {}
	}
	_ = l.Add(filepath.Join(e.root, "run/udev"))
	return l.Events, l.Close
}
