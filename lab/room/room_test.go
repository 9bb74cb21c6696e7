package room

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// limited is a file system of 100 MiB on which so many bytes are used.
func limited(used *atomic.Int64) Room {
	return Room{"/dir", func() (int64, int64, error) { return 100<<20 - used.Load(), 100 << 20, nil }}
}

type counter struct{ n *atomic.Int64 }

func (c counter) Write(p []byte) (int, error) { c.n.Add(int64(len(p))); return len(p), nil }

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// TestWritersLeaveRoom: two uploads at once leave a twentieth, too.
func TestWritersLeaveRoom(t *testing.T) {
	var used atomic.Int64
	used.Store(40 << 20)
	r := limited(&used)
	first, second := r.Writer(counter{&used}, 1<<40), r.Writer(counter{&used}, 1<<40)
	for range 20 {
		if _, err := first.Write(make([]byte, 1<<20)); err != nil {
			t.Fatalf("after %d MiB: %v", used.Load()>>20, err)
		}
	}
	for _, w := range []io.Writer{second, first} {
		if _, err := io.Copy(w, endless{}); !errors.Is(err, ErrFull) || !strings.Contains(err.Error(), "free some space") {
			t.Errorf("an endless upload: %v", err)
		}
	}
	if n := used.Load() >> 20; n < 93 || n > 95 {
		t.Errorf("%d MiB of 100 are used, want 93 to 95", n)
	}
}

func TestWritersHaveALimit(t *testing.T) {
	var used atomic.Int64
	var got bytes.Buffer
	w := limited(&used).Writer(&got, 10)
	if n, err := io.Copy(w, strings.NewReader("0123456789")); n != 10 || err != nil {
		t.Errorf("as long as the limit: %d, %v", n, err)
	}
	if _, err := w.Write([]byte("x")); err == nil || !strings.Contains(err.Error(), "10 bytes") {
		t.Errorf("longer: %v", err)
	}
}

// TestProgramsEndWithoutRoom: what a program writes is seen while it runs.
func TestProgramsEndWithoutRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var used atomic.Int64
		err := limited(&used).While(t.Context(), func(ctx context.Context) error {
			used.Store(96 << 20)
			<-ctx.Done()
			return ctx.Err()
		})
		if !errors.Is(err, ErrFull) {
			t.Errorf("got %v, want %v", err, ErrFull)
		}
		failed := errors.New("failed")
		if err := limited(new(atomic.Int64)).While(t.Context(),
			func(context.Context) error { return failed }); !errors.Is(err, failed) {
			t.Errorf("got %v, want the program's error", err)
		}
	})
}
