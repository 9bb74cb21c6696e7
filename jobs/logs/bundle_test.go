package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
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
		partial, _ := filepath.Glob(filepath.Join(c.Dirs.Tmp(), "."+bundlePrefix+"*"))
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

// chain makes directories below each other by handles, and returns the last one.
func chain(t *testing.T, path string, levels int) *os.Root {
	t.Helper()
	root, err := os.OpenRoot(path)
	for range levels {
		if err == nil {
			err = root.Mkdir("d", 0o700)
		}
		if err != nil {
			t.Fatal(err)
		}
		var next *os.Root
		next, err = root.OpenRoot("d")
		_ = root.Close()
		root = next
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return root
}

// TestDeepLogs: collecting takes about as long for logs below many directories as for as many at the top, and does not
// go deeper than it can with few open files.
func TestDeepLogs(t *testing.T) {
	const count = 2000
	collect := func(levels int) (names int, took time.Duration) {
		t.Helper()
		c := collector(t)
		if err := os.MkdirAll(c.Dirs.SysLog(), 0o700); err != nil {
			t.Fatal(err)
		}
		dir := chain(t, c.Dirs.SysLog(), levels)
		for n := range count {
			file, err := dir.Create(fmt.Sprint(n))
			if err != nil {
				t.Fatal(err)
			}
			_ = file.Close()
		}
		var archive bytes.Buffer
		took = time.Hour
		for range 3 { // the shortest: the others may have waited for a processor
			archive.Reset()
			began := time.Now()
			if err := c.Collect(t.Context(), Selection{Types: "job"}, &archive); err != nil {
				t.Fatal(err)
			}
			took = min(took, time.Since(began))
		}
		for name := range files(t, archive.Bytes()) {
			if !strings.HasSuffix(name, "/") {
				names++
			}
		}
		return names, took
	}
	flat, short := collect(1)
	deep, long := collect(200)
	t.Logf("%d logs: %v at the top, %v below 200 directories", count, short, long)
	if flat != count || deep != count {
		t.Errorf("%d and %d logs are packed, want %d", flat, deep, count)
	}
	if long > 15*short {
		t.Errorf("logs below 200 directories took %v, those at the top %v", long, short)
	}
	if n, _ := collect(1950); n != 0 {
		t.Errorf("%d logs below 1950 directories are packed", n)
	}
}

// level records the priority at which it is written to.
type level struct{ nice int }

func (l *level) Write(b []byte) (int, error) {
	inverse, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	l.nice = 20 - inverse
	return len(b), err
}

func TestCollectingIsNice(t *testing.T) {
	c := collector(t)
	write(t, filepath.Join(c.Dirs.SysLog(), "a/a.log"), "text")
	own, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		t.Fatal(err)
	}
	var l level
	if err := c.Collect(t.Context(), Selection{Types: "job"}, &l); err != nil {
		t.Fatal(err)
	}
	if want := min(max(20-own+nice, 0), 19); l.nice != want {
		t.Errorf("collected at nice level %d, want %d as for scripts", l.nice, want)
	}
}

// TestManyLinksDoNotFillTheLog: a job can make any number of files that are left out.
func TestManyLinksDoNotFillTheLog(t *testing.T) {
	c := collector(t)
	var log bytes.Buffer
	c.Log.Logger.SetOutput(&log)
	if err := os.MkdirAll(c.Dirs.SysLog(), 0o700); err != nil {
		t.Fatal(err)
	}
	for n := range 1000 {
		if err := os.Symlink("/etc/passwd", filepath.Join(c.Dirs.SysLog(), fmt.Sprint(n))); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Collect(t.Context(), Selection{Types: "job"}, io.Discard); err != nil {
		t.Fatal(err)
	}
	lines := strings.Count(log.String(), "not added to the log archive")
	if lines != maxWarnings+1 || !strings.Contains(log.String(), "others=980") {
		t.Errorf("%d lines, want %d and how many others there are", lines, maxWarnings+1)
	}
}
