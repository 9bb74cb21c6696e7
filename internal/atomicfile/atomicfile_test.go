package atomicfile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

func TestWriteSetsContentModeAndKeepsPrevious(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "settings.json")
	for _, content := range []string{"one", "two", "three", "three"} {
		if err := Write(path, []byte(content), 0o600, KeepPrevious()); err != nil {
			t.Fatal(err)
		}
	}
	if got := read(t, path) + " " + read(t, path+PreviousSuffix); got != "three three" {
		t.Errorf("current and previous are %q, want the last two written", got)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v; want 0600", info.Mode(), err)
	}
	if got := names(t, dir); len(got) != 2 {
		t.Errorf("directory holds %v, want the file and its previous generation only", got)
	}
}

func TestFailedWriteLeavesTheOldFileAndNothingElse(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "busy")
	// A directory with content cannot be replaced by rename.
	if err := os.MkdirAll(filepath.Join(path, "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, []byte("new"), 0o600); err == nil {
		t.Fatal("replacing a directory succeeded")
	}
	if err := WriteFrom(filepath.Join(dir, "new"), 0o600, func(file *os.File) error {
		_, err := file.WriteString("half")
		return errors.Join(err, io.ErrUnexpectedEOF)
	}); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("content that ends too early: got %v", err)
	}
	if got := names(t, dir); len(got) != 1 {
		t.Errorf("directory holds %v, want only the old files", got)
	}
}

func TestWriteIfChanged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	for i, step := range []struct {
		data string
		mode fs.FileMode
		want bool
	}{{"a", 0o600, true}, {"a", 0o600, false}, {"a", 0o644, true}, {"b", 0o644, true}, {"b", 0o644, false}} {
		changed, err := WriteIfChanged(path, []byte(step.data), step.mode)
		if err != nil || changed != step.want {
			t.Errorf("step %d: changed %v, %v; want %v", i, changed, err, step.want)
		}
	}
}

func TestReadersNeverSeeAMixture(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	contents := []string{string(make([]byte, 1<<16)), "short"}
	if err := Write(path, []byte(contents[0]), 0o600); err != nil {
		t.Fatal(err)
	}
	var writers sync.WaitGroup
	for _, c := range contents {
		writers.Go(func() {
			for range 50 {
				if err := Write(path, []byte(c), 0o600, KeepPrevious()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { writers.Wait(); close(done) }()
	for {
		got := read(t, path)
		if got != contents[0] && got != contents[1] {
			t.Fatalf("read %d bytes that were not written", len(got))
		}
		select {
		case <-done:
			return
		default:
		}
	}
}

func TestSymlinkReplacesAndSweepCleans(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "current")
	for _, target := range []string{"/a", "/b", "/b"} {
		if err := Symlink(target, link); err != nil {
			t.Fatal(err)
		}
		if got, err := os.Readlink(link); err != nil || got != target {
			t.Errorf("link is %q, %v; want %q", got, err, target)
		}
	}
	left := filepath.Join(dir, ".x"+tempMark+"00")
	if err := os.WriteFile(left, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Sweep(dir); err != nil {
		t.Fatal(err)
	}
	if got := names(t, dir); len(got) != 1 || got[0] != "current" {
		t.Errorf("after Sweep the directory holds %v, want the link only", got)
	}
}
