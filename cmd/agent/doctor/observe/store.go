package observe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"cambium/internal/command"
	"cambium/internal/vcap"
)

// A frozen file system, or a device that does not answer, holds the process that asks it, and no signal ends that. So
// a child asks, and is left behind.

const (
	// askWord is the first argument of the child process.
	askWord = "ask-store"
	// askTimeout bounds the check, and killTimeout the wait until a killed child has ended.
	askTimeout  = time.Second
	killTimeout = time.Second
)

// AskStoreIfCalled checks the store and exits if this is the child that askMounted starts. If not, it returns at once.
func AskStoreIfCalled() {
	if len(os.Args) != 5 || os.Args[1] != askWord {
		return
	}
	if err := askStore(os.Args[2], os.Args[3], os.Args[4]); err != nil {
		fmt.Fprint(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// askStore reads the device, bypassing the cache. Then it removes an attribute that no directory has: this writes
// nothing, but blocks while the file system is frozen. It holds the lock meanwhile, so that at most one child stays
// blocked. Once the device has answered, the lock file has one byte.
func askStore(lock, dir, device string) error {
	f, err := os.OpenFile(lock, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil // nothing is known of the store
	}
	defer func() { _ = f.Close() }()
	if err := errors.Join(unix.Flock(int(f.Fd()), unix.LOCK_EX), f.Truncate(0)); err != nil {
		return nil
	}
	if device != "" {
		buffer, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE) // aligned
		if err != nil {
			return err
		}
		fd, err := unix.Open(device, unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open %s: %w", device, err)
		}
		if _, err := unix.Pread(fd, buffer, 0); err != nil {
			return fmt.Errorf("read %s: %w", device, err)
		}
	}
	if _, err := f.WriteString("1"); err != nil {
		return nil
	}
	if err := unix.Removexattr(dir, "trusted.cambium.no-such-attribute"); errors.Is(err, unix.EIO) {
		return fmt.Errorf("%s: %w", dir, err)
	}
	return nil
}

// waits reports whether a child is stuck, and whether the device had answered it.
func waits(lock string) (stuck, answered bool) {
	f, err := os.Open(lock)
	if err != nil {
		return false, false
	}
	defer func() { _ = f.Close() }()
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
		return false, false
	}
	info, err := f.Stat()
	return true, err == nil && info.Size() > 0
}

// askMounted checks whether the mounted store answers, and sets Failing, Frozen and Silent.
func (d *Disk) askMounted(ctx context.Context, dirs vcap.Dirs) {
	if d.Mounted == "" || d.Gone || os.Geteuid() != 0 {
		return
	}
	device := ""
	if info, err := os.Stat(d.Mounted); err == nil && info.Mode()&os.ModeDevice != 0 {
		device = d.Mounted
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	lock := vcap.RunDir.StoreLock()
	ended := make(chan string, 1)
	go func() {
		var complaint bytes.Buffer
		_, err := command.Run(ctx, command.Cmd{Name: "/proc/self/exe", Args: []string{askWord, lock, dirs.Store(), device},
			Stderr: &complaint})
		if err == nil || ctx.Err() != nil {
			complaint.Reset()
		}
		ended <- complaint.String()
	}()
	select {
	case d.Failing = <-ended:
	case <-ctx.Done():
		select {
		case <-ended: // it was killed
		case <-time.After(killTimeout):
		}
	}
	if stuck, answered := waits(lock); ctx.Err() != nil && stuck {
		d.Frozen, d.Silent = answered, !answered
	}
}
