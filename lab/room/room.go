// Package room keeps what guests and callers send, and what is made of it, from filling the file system of the host.
package room

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"
)

// A twentieth of the file system stays free for the host, and no more than 10 GiB of a large one. It is a part of the
// whole and not of what is free, so that several uploads together leave it, too.
const (
	part = 20
	most = 10 << 30
)

// Room is the space that may be filled on the file system of a directory.
type Room struct {
	dir  string
	free func() (free, size int64, err error) // bytes
}

// At is the room on the file system of dir.
func At(dir string) Room {
	return Room{dir, func() (int64, int64, error) {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			return 0, 0, fmt.Errorf("free space of %s: %w", dir, err)
		}
		return int64(st.Bavail) * int64(st.Bsize), int64(st.Blocks) * int64(st.Bsize), nil
	}}
}

// ErrFull is returned when the host needs the rest of its file system.
var ErrFull = errors.New("no space left for it")

// For returns an error unless bytes more fit.
func (r Room) For(bytes int64) error {
	free, size, err := r.free()
	if err != nil {
		return err
	}
	kept := min(size/part, most)
	if bytes > free-kept {
		return fmt.Errorf("%w: %s has %d MiB free, %d MiB of which stay free for the host; free some space, or use a smaller image",
			ErrFull, r.dir, free>>20, kept>>20)
	}
	return nil
}

// checkEvery is the number of bytes written between two checks.
const checkEvery = 1 << 20

type writer struct {
	room      Room
	to        io.Writer
	limit     int64
	written   int64
	unchecked int64
}

// Writer passes on to a file of this file system what there is room for, and no more than limit bytes.
func (r Room) Writer(to io.Writer, limit int64) io.Writer {
	return &writer{room: r, to: to, limit: limit, unchecked: checkEvery}
}

// Write implements io.Writer.
func (w *writer) Write(data []byte) (int, error) {
	if w.written += int64(len(data)); w.written > w.limit {
		return 0, fmt.Errorf("it is longer than the limit of %d bytes", w.limit)
	}
	if w.unchecked += int64(len(data)); w.unchecked >= checkEvery {
		w.unchecked = 0
		if err := w.room.For(int64(max(checkEvery, len(data)))); err != nil { // until the next check
			return 0, err
		}
	}
	return w.to.Write(data)
}

// watchEvery is the pause between two looks at the free space while a program writes: no event reports it.
const watchEvery = 100 * time.Millisecond

// While calls f, which has a program write to this file system, and ends its context when there is no more room.
func (r Room) While(ctx context.Context, f func(context.Context) error) error {
	if err := r.For(0); err != nil {
		return err
	}
	within, cancel := context.WithCancelCause(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		ticker := time.NewTicker(watchEvery)
		defer ticker.Stop()
		for {
			select {
			case <-within.Done():
				return
			case <-ticker.C:
			}
			if err := r.For(0); err != nil {
				cancel(err)
			}
		}
	}()
	err := f(within)
	full := context.Cause(within)
	cancel(nil)
	<-watched
	if err != nil && errors.Is(full, ErrFull) {
		return full
	}
	return err
}
