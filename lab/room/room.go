// Package room keeps uploads and what is made of them from filling the host's file system.
package room

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"
)

// A twentieth of the file system, and at most 10 GiB, is kept free for the host. It is a part of the whole and not of
// the free space, so that several uploads together respect it, too.
const (
	part = 20
	most = 10 << 30
)

// Room limits the use of a directory's file system.
type Room struct {
	dir  string
	free func() (free, size int64, err error) // in bytes
}

// At returns the room on the file system of dir.
func At(dir string) Room {
	return Room{dir, func() (int64, int64, error) {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			return 0, 0, fmt.Errorf("free space of %s: %w", dir, err)
		}
		return int64(st.Bavail) * int64(st.Bsize), int64(st.Blocks) * int64(st.Bsize), nil
	}}
}

// ErrFull means that the rest of the file system is kept free for the host.
var ErrFull = errors.New("no space left for it")

// Check returns an error if bytes more do not fit.
func (r Room) Check(bytes int64) error {
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

// Writer returns a writer to a file on this file system that fails when there is no more room, or after limit bytes.
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
		if err := w.room.Check(int64(max(checkEvery, len(data)))); err != nil { // until the next check
			return 0, err
		}
	}
	return w.to.Write(data)
}

// watchEvery is the interval at which While checks the free space, since no event reports it.
const watchEvery = 100 * time.Millisecond

// While calls f, which runs a program that writes to this file system. It cancels the context of f when there is no
// more room.
func (r Room) While(ctx context.Context, f func(context.Context) error) error {
	if err := r.Check(0); err != nil {
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
			if err := r.Check(0); err != nil {
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
