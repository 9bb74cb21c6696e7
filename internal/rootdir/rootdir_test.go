package rootdir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func openRoot(t *testing.T) (*os.Root, string) {
	t.Helper()
	path := t.TempDir()
	root, err := os.OpenRoot(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return root, path
}

// soon fails a test whose function blocks.
func soon(t *testing.T, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("blocked for 10 seconds")
	}
}

func TestOpen(t *testing.T) {
	root, path := openRoot(t)
	if err := errors.Join(os.MkdirAll(filepath.Join(path, "a/b"), 0o700), os.Symlink("a", filepath.Join(path, "inside")),
		os.Symlink("/etc", filepath.Join(path, "outside")),
		unix.Mkfifo(filepath.Join(path, "pipe"), 0o600), os.Symlink("pipe", filepath.Join(path, "to-pipe")),
		os.WriteFile(filepath.Join(path, "file"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for name, works := range map[string]bool{"a": true, "a/b": true, "inside": true, "outside": false, "pipe": false,
		"to-pipe": false, "file": false, "none": false} {
		soon(t, func() {
			opened, err := Open(root, name)
			if (err == nil) != works {
				t.Errorf("%s: got %v", name, err)
			}
			if err == nil {
				if err := opened.Mkdir("made-in-"+filepath.Base(name), 0o700); err != nil {
					t.Error(err)
				}
				_ = opened.Close()
			}
		})
	}
	if _, err := os.Stat(filepath.Join(path, "a/made-in-inside")); err != nil {
		t.Error(err)
	}
}

func TestWalk(t *testing.T) {
	root, path := openRoot(t)
	if err := errors.Join(os.MkdirAll(filepath.Join(path, "a/b"), 0o700), os.Symlink("a", filepath.Join(path, "link")),
		unix.Mkfifo(filepath.Join(path, "pipe"), 0o600),
		os.WriteFile(filepath.Join(path, "a/b/f"), nil, 0o600),
		os.WriteFile(filepath.Join(path, "a/z"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	var got []string
	collect := func(_ *os.Root, name string, _ fs.DirEntry, err error) error {
		got = append(got, name)
		return err
	}
	if err := Walk(t.Context(), root, collect); err != nil {
		t.Fatal(err)
	}
	if want := []string{"a", "a/b", "a/b/f", "a/z", "link", "pipe"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	stop := errors.New("stop")
	if err := Walk(t.Context(), root, func(*os.Root, string, fs.DirEntry,
		error) error {
		return stop
	}); !errors.Is(err, stop) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stop)
	if err := Walk(ctx, root, collect); !errors.Is(err, stop) {
		t.Errorf("canceled: got %v", err)
	}
}

// TestReplacedWhileWalking: a directory becomes a FIFO after it was listed.
func TestReplacedWhileWalking(t *testing.T) {
	root, path := openRoot(t)
	dir := filepath.Join(path, "a")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	var failed error
	soon(t, func() {
		err := Walk(t.Context(), root, func(_ *os.Root, name string, _ fs.DirEntry, err error) error {
			if err == nil {
				return errors.Join(os.Remove(dir), unix.Mkfifo(dir, 0o600))
			}
			failed = err
			return nil
		})
		if err != nil || failed == nil {
			t.Errorf("got %v, visited with %v", err, failed)
		}
	})
}

// TestDeepAndWideTreesTakeLittleMemory: 500 levels of long names, which cannot be named by a path, and a directory of
// 20,000 entries.
func TestDeepAndWideTreesTakeLittleMemory(t *testing.T) {
	root, path := openRoot(t)
	deep(t, path, strings.Repeat("d", 200), 500)
	wide := filepath.Join(path, "wide")
	if err := os.Mkdir(wide, 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(wide, "0")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for n := 1; n < 20_000; n++ {
		if n%10_000 == 0 { // the kernel limits the names of one file
			file = filepath.Join(wide, fmt.Sprint(n))
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		} else if err := os.Link(file, filepath.Join(wide, fmt.Sprint(n))); err != nil {
			t.Fatal(err)
		}
	}
	visited, tooDeep, most := 0, 0, uint64(0)
	var before, now runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	if err := Walk(t.Context(), root, func(_ *os.Root, _ string, _ fs.DirEntry, err error) error {
		if visited++; errors.Is(err, ErrTooDeep) {
			tooDeep++
		} else if err != nil {
			return err
		}
		if visited%5_000 == 0 {
			runtime.GC()
			runtime.ReadMemStats(&now)
			most = max(most, now.HeapAlloc-min(before.HeapAlloc, now.HeapAlloc))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d visited, at most %d KiB in use", visited, most>>10)
	if tooDeep != 1 || visited < 20_000 {
		t.Errorf("visited %d, %d of them too deep; want one", visited, tooDeep)
	}
	if most > 2<<20 {
		t.Errorf("%d KiB in use, want at most 2 MiB", most>>10)
	}
}

// deep makes a chain of directories by handles: no path reaches its end.
func deep(t *testing.T, path, name string, levels int) {
	t.Helper()
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range levels {
		if err := unix.Mkdirat(fd, name, 0o700); err != nil {
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
}
