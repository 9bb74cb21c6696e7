package bootstrap

import (
	"context"
	"os"
	"slices"
	"sync"
	"time"

	"cambium/internal/watch"
	"cambium/platform/device"
	"cambium/platform/network/wait"
)

// Hardware lists the devices whose absence may have failed a boot: names of disks, of NICs, and of NICs with a carrier.
type Hardware struct{ Disks, NICs, Carriers []string }

const (
	// quietPeriod is the time without device events before a boot is retried, because a disk appears as a burst of
	// nodes and links.
	quietPeriod = 200 * time.Millisecond
	// quietLimit bounds the wait for a quiet period.
	quietLimit = 3 * time.Second
)

// hardware returns the current devices. A dummy machine has none.
func (m *Machine) hardware() (h Hardware) {
	if m.Ephemeral != nil {
		h.Disks = device.Present("/")
	}
	if m.Network != nil {
		have, err := m.Network.ObserveLinks()
		if err != nil {
			m.Log.WithError(err).Debug("cannot list links")
		}
		for _, l := range have.NICs() {
			nic := l.Name + " " + string(l.MAC)
			h.NICs = append(h.NICs, nic)
			if l.Carrier {
				h.Carriers = append(h.Carriers, nic)
			}
		}
	}
	return h
}

// differs returns the kind of devices that have changed: "disks", "links", or "" for none.
func (h Hardware) differs(from Hardware) string {
	switch {
	case !slices.Equal(h.Disks, from.Disks):
		return "disks"
	case !slices.Equal(h.NICs, from.NICs), !slices.Equal(h.Carriers, from.Carriers):
		return "links"
	}
	return ""
}

// awaitHardware waits until the disks or links differ from before, or an operator requests a retry, and returns the
// reason. It returns "" if ctx ends first.
func (m *Machine) awaitHardware(ctx context.Context, before Hardware) string {
	ctx, cancel := context.WithCancel(ctx)
	var watchers sync.WaitGroup
	defer watchers.Wait()
	defer cancel()
	events := make(chan struct{}, 1)
	poke := func() {
		select {
		case events <- struct{}{}:
		default:
		}
	}
	follow := func(f func() error) {
		watchers.Go(func() {
			if err := f(); err != nil && ctx.Err() == nil {
				m.Log.WithError(err).
					Warn("cannot receive the kernel's device events; new hardware is noticed only at the next retry")
			}
		})
	}
	if m.Ephemeral != nil {
		follow(func() error {
			return watch.UntilDevice(ctx, device.LinkDirs("/"), func() (bool, error) { poke(); return false, nil })
		})
	}
	if m.Network != nil {
		follow(func() error { return wait.Watch(ctx, poke) })
	}
	return awaitChange(ctx, events, m.Requests, func() string { return m.hardware().differs(before) })
}

// requested is the reason for an attempt that an operator has requested.
const requested = "request"

// awaitChange calls look after each event until it reports a change, and then waits for a quiet period. A request ends
// the wait at once.
func awaitChange(ctx context.Context, events <-chan struct{}, requests <-chan os.Signal, look func() string) string {
	for {
		select {
		case <-ctx.Done():
			return ""
		case <-requests:
			return requested
		case <-events:
		}
		if look() == "" {
			continue
		}
		limit := time.Now().Add(quietLimit)
		for still := false; !still && time.Now().Before(limit); {
			select {
			case <-ctx.Done():
				return ""
			case <-events:
			case <-time.After(quietPeriod):
				still = true
			}
		}
		if what := look(); what != "" {
			return what
		}
	}
}
