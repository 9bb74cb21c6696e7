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

// Hold locks a disk until release is called. The lock is needed from before its table is written until its partitions
// are in use: once the writer closes the disk, udev makes the kernel reread the table, which removes all partitions and
// adds them again, unless they are mounted.
func Hold(ctx context.Context, path string) (release func(), err error) {
	// Open it for reading: udev takes the close of a writer for a change of the content.
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

// holds records the disks that this process has locked. The lock belongs to the open file, so a second file of the same
// process would wait for the first.
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

// lockLimit bounds the wait for the lock of a disk. It exceeds the three minutes after which udev ends a hanging rule.
// Tests change it.
var lockLimit = 4 * time.Minute

// lock locks an open disk. If that fails, it closes the file.
func lock(ctx context.Context, f *os.File) error {
	ctx, cancel := context.WithTimeoutCause(ctx, lockLimit,
		fmt.Errorf("another program has held its lock for %v: find that program with lslocks", lockLimit))
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
