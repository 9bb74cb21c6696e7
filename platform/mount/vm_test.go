//go:build vm && !root

package mount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"cambium/internal/bounded"
	"cambium/internal/pidfile"
	"cambium/lab/stucktest"
	"cambium/lab/testvm"

	"golang.org/x/sys/unix"
)

// TestMain is also the first process of the virtual machine.
func TestMain(m *testing.M) { testvm.Main(m, guestChecks, nil) }

// TestVMStuckProcesses runs guestChecks on Debian's kernel, where reading the maps of a process needs its address
// space, too.
func TestVMStuckProcesses(t *testing.T) {
	testvm.Machine{Modules: []string{"fuse"}}.Run(t, guestChecks)
}

var guestChecks = []testvm.Check{
	{Name: "the files of a stuck process are left behind", Run: func(context.Context) error {
		return withStuck(func(p *stucktest.Process) error {
			var g bounded.Group
			for _, name := range []string{"cmdline", "maps", "environ"} {
				if _, err := bounded.ReadFile(&g, fmt.Sprintf("/proc/%d/%s", p.Pid, name)); !errors.Is(err, bounded.ErrHangs) {
					return fmt.Errorf("%s: got %v", name, err)
				}
			}
			return nil
		})
	}},
	{Name: "a link to its command line is not a pid file", Run: func(context.Context) error {
		return withStuck(func(p *stucktest.Process) error {
			if err := os.Symlink(fmt.Sprintf("/proc/%d/cmdline", p.Pid), "/tmp/a.pid"); err != nil {
				return err
			}
			return within(time.Minute, func() error {
				if pid, err := pidfile.Read("/tmp/a.pid"); pid != 0 || err == nil {
					return fmt.Errorf("got %d, %v", pid, err)
				}
				return nil
			})
		})
	}},
	{Name: "a busy mount is given up in time, and its user named", Run: func(ctx context.Context) error {
		return withStuck(func(p *stucktest.Process) error {
			const busy = "/var/busy"
			if err := errors.Join(os.Mkdir(busy, 0o755), unix.Mount("none", busy, "tmpfs", 0, "")); err != nil {
				return err
			}
			held, err := os.Create(filepath.Join(busy, "held"))
			if err != nil {
				return err
			}
			defer held.Close()
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			return within(time.Minute, func() error {
				var found *BusyError
				if err := Unmount(ctx, busy); !errors.As(err, &found) || !slices.ContainsFunc(found.Users, func(u Process) bool {
					return u.PID == os.Getpid() && u.Path == held.Name()
				}) || !slices.ContainsFunc(found.Users, func(u Process) bool { return u.PID == p.Pid && u.Path == unreadable }) {
					return fmt.Errorf("got %v, want this process, and that another hides its files", err)
				}
				return nil
			})
		})
	}},
}

// withStuck calls do while a process blocks access to its address space.
func withStuck(do func(*stucktest.Process) error) error {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		return err
	}
	p, err := stucktest.Start(dir)
	if err != nil {
		return err
	}
	return errors.Join(do(p), p.Close())
}

// within returns an error if do takes too long.
func within(given time.Duration, do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		return err
	case <-time.After(given):
		return fmt.Errorf("no end after %v", given)
	}
}
