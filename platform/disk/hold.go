package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"cambium/internal/blkdev"
)

// Hold keeps the lock of a disk until release is called, from before its table is written until its
// partitions are in use. udev rereads a table as soon as the writer closes the disk, and the kernel
// then removes all partitions and adds them again: between writing and mounting they would be gone
// for a moment. Mounted partitions are not removed.
func Hold(ctx context.Context, path string) (release func(), err error) {
	// Opened for reading: udev takes the closing of a writer for a change of the content.
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("lock disk: %w", err)
	}
	number, err := blkdev.NumberOf(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock disk: %w", err), f.Close())
	}
	if err := lock(ctx, f); err != nil {
		return nil, fmt.Errorf("lock disk: %w", err)
	}
	holds.set(number, true)
	return func() {
		holds.set(number, false)
		_ = f.Close() // nothing was written
	}, nil
}

// holds are the disks that this process holds. The kernel's lock belongs to an open file, so that
// a second one of the same process would wait for the first.
var holds held

type held struct {
	mu      sync.Mutex
	numbers map[blkdev.Number]bool
}

func (h *held) set(n blkdev.Number, is bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.numbers == nil {
		h.numbers = map[blkdev.Number]bool{}
	}
	if is {
		h.numbers[n] = true
	} else {
		delete(h.numbers, n)
	}
}

func (h *held) has(path string) bool {
	n, err := blkdev.NumberOf(path)
	h.mu.Lock()
	defer h.mu.Unlock()
	return err == nil && h.numbers[n]
}

// lockLimit bounds the wait for the lock of a disk. It is longer than the three minutes after which udev ends a rule that hangs.
// It is a variable for tests.
var lockLimit = 4 * time.Minute

// lock takes the lock of an open disk, and closes it when that fails.
func lock(ctx context.Context, f *os.File) error {
	ctx, cancel := context.WithTimeoutCause(ctx, lockLimit, fmt.Errorf("another program has held its lock for %v: find that program with lslocks", lockLimit))
	defer cancel()
	locked := make(chan error, 1)
	go func() { locked <- unix.Flock(int(f.Fd()), unix.LOCK_EX) }()
	select {
	case err := <-locked:
		if err != nil {
			return errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
		}
		return nil
	case <-ctx.Done():
		go func() { _ = errors.Join(<-locked, f.Close()) }() // nothing was written
		return fmt.Errorf("lock %s: %w", f.Name(), context.Cause(ctx))
	}
}
