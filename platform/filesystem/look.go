package filesystem

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"cambium/internal/managedfs"
	"cambium/platform/filesystem/probe"
)

// Look gives a function the root directory of an unmounted file system, and writes nothing to it. A journal is not
// replayed.
func Look(device string, kind probe.Kind, look func(top *os.Root) error) error {
	f, _ := managedfs.Find(string(kind))
	return lookAt(device, kind, f.Look, look)
}

// Replay is Look that has the journal replayed first, which writes to the device.
func Replay(device string, kind probe.Kind, look func(top *os.Root) error) error {
	f, _ := managedfs.Find(string(kind))
	return lookAt(device, kind, f.Replay, look)
}

func lookAt(device string, kind probe.Kind, options []string, look func(top *os.Root) error) error {
	if !kind.Managed() {
		return fmt.Errorf("inspect %s: %q is not supported", device, kind)
	}
	mounted, err := mountDetached(device, string(kind), options...)
	if err != nil {
		return fmt.Errorf("inspect %s on %s: %w", kind, device, err)
	}
	defer mounted.Close()
	// The descriptor of a mount is not an open directory; its handle in /proc leads there.
	top, err := os.OpenRoot("/proc/self/fd/" + strconv.Itoa(int(mounted.Fd())))
	if err == nil {
		err = errors.Join(look(top), top.Close())
	}
	if err != nil {
		return fmt.Errorf("inspect %s on %s: %w", kind, device, err)
	}
	return nil
}

// Journal reports whether the journal of an unmounted file system may hold what Look does not show.
func Journal(device string, kind probe.Kind) (used bool, err error) {
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
