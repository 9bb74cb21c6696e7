package qemu

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cambium/lab/guest"
	"cambium/lab/machine"
)

// guestInProcess connects the host's side to a guest that is this very process.
func guestInProcess(t *testing.T) (h *guestConn, cut func()) {
	t.Helper()
	near, far, err := connection()
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = guest.ServeOn(far) // ends with the connection
	}()
	h = newGuestConn(near, func() {})
	cut = func() { _ = near.Close(); _ = far.Close() }
	t.Cleanup(func() { cut(); <-ended })
	return h, cut
}

func TestHandRunsPrograms(t *testing.T) {
	h, _ := guestInProcess(t)
	for _, c := range []struct {
		name, script, stdin, stdout, stderr string
		status                              int
	}{
		{"output and status", "echo out; echo err >&2; exit 7", "", "out\n", "err\n", 7},
		{"environment", "echo $COLOR", "", "blue\n", "", 0},
		{"input", "tr a-z A-Z", "hello", "HELLO", "", 0},
		{"input that is not read", "exit 0", strings.Repeat("x", 1<<20), "", "", 0},
		{"much output", "head -c 300000 /dev/zero | tr '\\0' x", "", strings.Repeat("x", 300000), "", 0},
		{"a signal", "kill -9 $$", "", "", "", 128 + 9},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var out, words bytes.Buffer
			r, err := h.call(t.Context(), guest.Request{Op: "run", Args: []string{"sh", "-c", c.script},
				Env: []string{"COLOR=blue"}},
				strings.NewReader(c.stdin), &out, &words)
			if err != nil || r.Error != "" || r.Status != c.status || out.String() != c.stdout || words.String() != c.stderr {
				t.Errorf("status %d (%q, %v), %d bytes, %q; want status %d, %d bytes, %q", r.Status, r.Error, err, out.Len(),
					words.String(), c.status, len(c.stdout), c.stderr)
			}
		})
	}
}

func TestHandTellsWhatFails(t *testing.T) {
	h, cut := guestInProcess(t)
	if r, err := h.call(t.Context(), guest.Request{Op: "run", Args: []string{"/nowhere"}}, nil, nil, nil); err != nil ||
		r.Error == "" {
		t.Errorf("a program that is not there: %+v, %v", r, err)
	}
	if r, err := h.call(t.Context(), guest.Request{Op: "dance"}, nil, nil, nil); err != nil || r.Error == "" {
		t.Errorf("an unknown request: %+v, %v", r, err)
	}
	mark := filepath.Join(t.TempDir(), "mark")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := h.call(ctx, guest.Request{Op: "run", Args: []string{"sh", "-c", "sleep 5; touch " + mark}}, nil, nil,
		nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a program that takes too long: %v", err)
	}
	begin := time.Now()
	go func() { time.Sleep(50 * time.Millisecond); cut() }()
	if _, err := h.call(t.Context(), guest.Request{Op: "run", Args: []string{"sleep", "10"}}, nil, nil,
		nil); !errors.Is(err, machine.ErrNotRunning) || time.Since(begin) > 9*time.Second {
		t.Errorf("a machine that goes away: %v after %v", err, time.Since(begin))
	}
	time.Sleep(time.Until(begin.Add(5200 * time.Millisecond)))
	if _, err := os.Stat(mark); err == nil {
		t.Error("the abandoned program went on")
	}
}

func TestHandFiles(t *testing.T) {
	h, _ := guestInProcess(t)
	path := filepath.Join(t.TempDir(), "new", "file")
	data := bytes.Repeat([]byte("0123456789"), 20_000)
	if err := h.writeFile(t.Context(), machine.File{Path: path, Data: data, Mode: 0o640}); err != nil {
		t.Fatal(err)
	}
	got, err := h.readFile(t.Context(), path)
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes came back (%v), want %d", len(got), err, len(data))
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("the file has mode %v (%v)", info.Mode(), err)
	}
	if _, err := h.readFile(t.Context(), path+"x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}

// TestHandRewound: what was under way is lost, and the next request works.
func TestHandRewound(t *testing.T) {
	h, _ := guestInProcess(t)
	lost := make(chan error, 1)
	started := make(chan struct{})
	go func() {
		_, err := h.call(t.Context(), guest.Request{Op: "run", Args: []string{"sh", "-c", "echo; sleep 10"}}, nil,
			signalWriter{started}, nil)
		lost <- err
	}()
	<-started
	h.park()
	if err := <-lost; !errors.Is(err, errRewound) {
		t.Errorf("a program of the time before: %v", err)
	}
	h.resume()
	var out bytes.Buffer
	if _, err := h.call(t.Context(), guest.Request{Op: "run", Args: []string{"echo", "hello"}}, nil, &out,
		nil); err != nil || out.String() != "hello\n" {
		t.Errorf("after that: %q, %v", out.String(), err)
	}
}

type signalWriter struct{ c chan struct{} }

func (w signalWriter) Write(p []byte) (int, error) { close(w.c); return len(p), nil }
