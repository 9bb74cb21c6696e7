package bootstrap

import (
	"context"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

func TestChangedHardwareIsAwaited(t *testing.T) {
	for _, c := range []struct {
		name   string
		events []time.Duration // when something happens
		looks  func(since time.Duration) string
		want   string
		after  time.Duration
	}{
		{"a disk in one event", []time.Duration{time.Second}, appears(time.Second, time.Hour), "disks", time.Second + quietPeriod},
		{"a burst of links", []time.Duration{time.Second, time.Second + quietPeriod/2, time.Second + quietPeriod}, appears(time.Second, time.Hour), "disks", time.Second + 2*quietPeriod},
		{"events about something else", []time.Duration{time.Second, 2 * time.Second}, appears(time.Hour, 2*time.Hour), "", time.Minute},
		{"a disk that goes again at once", []time.Duration{time.Second, time.Second + quietPeriod/2}, appears(time.Second, time.Second+quietPeriod/2), "", time.Minute},
		{"a machine that never keeps still", every(quietPeriod/2, time.Minute), appears(time.Second, time.Hour), "disks", time.Second + quietLimit},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				begun := time.Now()
				events := make(chan struct{}, 1)
				for _, at := range c.events {
					time.AfterFunc(at, func() {
						select {
						case events <- struct{}{}:
						default:
						}
					})
				}
				got := awaitChange(ctx, events, nil, func() string { return c.looks(time.Since(begun)) })
				if took := time.Since(begun); got != c.want || took < c.after || took > c.after+quietPeriod {
					t.Errorf("got %q after %v, want %q after %v", got, took, c.want, c.after)
				}
			})
		})
	}
}

func appears(from, to time.Duration) func(time.Duration) string {
	return func(since time.Duration) string {
		if since >= from && since < to {
			return "disks"
		}
		return ""
	}
}

func every(step, until time.Duration) (all []time.Duration) {
	for at := step; at < until; at += step {
		all = append(all, at)
	}
	return all
}

func TestHardwareDiffers(t *testing.T) {
	was := Hardware{Disks: []string{"/dev/sda"}, NICs: []string{"eth0 02"}, Carriers: nil}
	for want, now := range map[string]Hardware{
		"":      {Disks: []string{"/dev/sda"}, NICs: []string{"eth0 02"}},
		"disks": {Disks: []string{"/dev/sda", "/dev/sdb"}, NICs: []string{"eth0 02"}},
		"links": {Disks: []string{"/dev/sda"}, NICs: []string{"eth0 02"}, Carriers: []string{"eth0 02"}},
	} {
		if got := now.differs(was); got != want {
			t.Errorf("%+v: got %q, want %q", now, got, want)
		}
	}
}

// A request ends the pause at once, also one that came before it.
func TestARequestEndsThePause(t *testing.T) {
	for name, at := range map[string]time.Duration{"before": 0, "meanwhile": time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				requests := make(chan os.Signal, 1)
				m := &Machine{Requests: requests}
				ask := func() { requests <- unix.SIGHUP }
				if at == 0 {
					ask()
				} else {
					time.AfterFunc(at, ask)
				}
				begun := time.Now()
				l := &Loop{Machine: m}
				if got := l.pause(t.Context(), time.Minute, Hardware{}); got != requested || time.Since(begun) != at {
					t.Errorf("the pause ended for %q after %v, want %q after %v", got, time.Since(begun), requested, at)
				}
			})
		})
	}
}
