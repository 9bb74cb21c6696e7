package logs

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestCanceledBundleLeavesNothing cancels while a bundle is written.
func TestCanceledBundleLeavesNothing(t *testing.T) {
	c := collector(t)
	write(t, filepath.Join(c.Dirs.SysLog(), "a.log"), strings.Repeat("a line of a log that is long enough\n", 4<<20))
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("the caller has left")
	result := make(chan error, 1)
	go func() {
		_, err := c.Bundle(ctx, Selection{Types: "job"}, "")
		result <- err
	}()
	for begun := time.Now(); ; {
		partial, _ := filepath.Glob(filepath.Join(c.Dirs.Tmp(), partialPrefix+"*"))
		if len(partial) == 1 {
			if info, err := os.Stat(partial[0]); err == nil && info.Size() > 0 {
				break // in the middle of the file
			}
		}
		if time.Since(begun) > 10*time.Second {
			t.Fatal("no bundle is being written")
		}
	}
	cancel(gone)
	if err := <-result; !errors.Is(err, gone) {
		t.Errorf("got %v", err)
	}
	if left, err := os.ReadDir(c.Dirs.Tmp()); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestHostileLogTree: a job can make directories so deep that no path names them. They are left out, others are
// packed, and memory does not grow with the depth.
func TestHostileLogTree(t *testing.T) {
	c := collector(t)
	write(t, filepath.Join(c.Dirs.SysLog(), "a/a.log"), "before")
	write(t, filepath.Join(c.Dirs.SysLog(), "z/z.log"), "after")
	fd, err := unix.Open(c.Dirs.SysLog(), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.Repeat("d", 200)
	for range 500 {
		err := unix.Mkdirat(fd, name, 0o700)
		if err == nil {
			err = unix.Symlinkat("../"+name, fd, "l.log")
		}
		if err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(fd, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		_ = unix.Close(fd)
		fd = next
	}
	_ = unix.Close(fd)
	var archive bytes.Buffer
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := c.Collect(t.Context(), Selection{Types: "job"}, &archive); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	// The 500 paths alone would have 25 MB, and each is made several times.
	if used := after.TotalAlloc - before.TotalAlloc; used > 16<<20 {
		t.Errorf("%d MiB allocated", used>>20)
	}
	if got := names(files(t, archive.Bytes())); got != "a/a.log z/z.log" {
		t.Errorf("got %.200s", got)
	}
}
