package observe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"cambium/internal/command"
	"cambium/internal/vcap"
)

// A frozen file system, or a device that does not answer, holds the process that asks it, and no signal ends that. So
// a child asks, and is left behind.

const (
	// askWord is the first argument of the process that asks.
	askWord = "ask-store"
	// askTimeout bounds the question. Other processes that ask wait for the lock, so that one at most is left behind.
	askTimeout = time.Second
	// Said by the process that asks.
	deviceAnswers = "device"
)

// AskStoreIfCalled asks the store and exits in the process that Ask starts. In any other it returns at once.
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

// askStore reads the device past the cache. Then it removes an attribute that no directory has: this waits while the
// file system is frozen, and writes nothing.
func askStore(lock, dir, device string) error {
	if f, err := os.OpenFile(lock, os.O_CREATE|os.O_RDWR, 0o600); err == nil { // else without
		defer func() { _ = f.Close() }()
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
			return err
		}
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
	fmt.Println(deviceAnswers)
	if err := unix.Removexattr(dir, "trusted.cambium.no-such-attribute"); errors.Is(err, unix.EIO) {
		return fmt.Errorf("%s: %w", dir, err)
	}
	return nil
}

// said is an output that can be read while the process runs.
type said struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// askMounted fills in whether the mounted store answers.
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
	var out, complaints said
	done := make(chan error, 1)
	go func() {
		_, err := command.Run(ctx, command.Cmd{Name: "/proc/self/exe", Args: []string{askWord, vcap.RunDir.StoreLock(), dirs.Store(), device},
			Stdout: &out, Stderr: &complaints})
		done <- err
	}()
	select {
	case err := <-done:
		if text := complaints.String(); err != nil && text != "" && ctx.Err() == nil {
			d.Failing = text
		}
	case <-ctx.Done():
	}
	if ctx.Err() == nil {
		return
	}
	if strings.Contains(out.String(), deviceAnswers) {
		d.Frozen = true
	} else {
		d.Silent = true
	}
}
