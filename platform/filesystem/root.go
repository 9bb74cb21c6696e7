package filesystem

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"cambium/internal/managedfs"
	"cambium/platform/filesystem/probe"
)

// WithRoot calls read with the root directory of an unmounted file system. It does not write to the device and does not
// replay the journal.
func WithRoot(device string, kind probe.Kind, read func(top *os.Root) error) error {
	f, _ := managedfs.Find(string(kind))
	return withDetached(device, kind, f.Look, read)
}

// WithReplayedRoot calls read with the root directory of an unmounted file system after the journal was replayed, which
// writes to the device.
func WithReplayedRoot(device string, kind probe.Kind, read func(top *os.Root) error) error {
	f, _ := managedfs.Find(string(kind))
	return withDetached(device, kind, f.Replay, read)
}

func withDetached(device string, kind probe.Kind, options []string, read func(top *os.Root) error) error {
	if !kind.Managed() {
		return fmt.Errorf("inspect %s: %q is not supported", device, kind)
	}
	mounted, err := mountDetached(device, string(kind), options...)
	if err != nil {
		return fmt.Errorf("inspect %s on %s: %w", kind, device, err)
	}
	defer mounted.Close()
	// The descriptor of a mount is not an open directory, but its link in /proc leads to one.
	top, err := os.OpenRoot("/proc/self/fd/" + strconv.Itoa(int(mounted.Fd())))
	if err == nil {
		err = errors.Join(read(top), top.Close())
	}
	if err != nil {
		return fmt.Errorf("inspect %s on %s: %w", kind, device, err)
	}
	return nil
}

// JournalUsed reports whether the journal of an unmounted file system may contain changes that WithRoot does not show.
func JournalUsed(device string, kind probe.Kind) (used bool, err error) {
	m, ok := managedKinds[kind]
	if !ok {
		return false, fmt.Errorf("inspect %s: %q is not supported", device, kind)
	}
	f, err := os.Open(device)
	if err != nil {
		return false, err
	}
	defer f.Close()
	if used, err = m.journal(f); err != nil {
		return false, fmt.Errorf("inspect the journal of %s: %w", device, err)
	}
	return used, nil
}
