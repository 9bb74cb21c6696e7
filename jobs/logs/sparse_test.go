package logs

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// sparseFile makes a file with a word at each offset and a size that may be beyond.
func sparseFile(t testing.TB, path string, size int64, words map[int64]string) {
	t.Helper()
	write(t, path, "")
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for offset, word := range words {
		if _, err := file.WriteAt([]byte(word), offset); err != nil {
			t.Fatal(err)
		}
	}
	if err := file.Truncate(size); err != nil {
		t.Fatal(err)
	}
}

// TestSparseLog packs a log of 4 TiB that holds three words. It takes no time and no room, other logs beside it
// are whole, and a plain tar makes the same file of it.
func TestSparseLog(t *testing.T) {
	c := collector(t)
	const size = 4 << 40
	long := strings.Repeat("n", 120) + ".log"
	words := map[int64]string{0: "first", 1 << 40: "middle", size - 4: "last"}
	sparseFile(t, filepath.Join(c.Dirs.SysLog(), "j", long), size, words)
	sparseFile(t, filepath.Join(c.Dirs.SysLog(), "j", "ends-in-a-hole.log"), size, map[int64]string{1 << 20: "word"})
	sparseFile(t, filepath.Join(c.Dirs.SysLog(), "j", "small.log"), 100_000, map[int64]string{99_000: "word"})
	write(t, filepath.Join(c.Dirs.SysLog(), "a", "a.log"), "before")
	write(t, filepath.Join(c.Dirs.SysLog(), "z", "z.log"), "after")
	var archive bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := c.Collect(ctx, Selection{Types: "job"}, &archive); err != nil {
		t.Fatal(err)
	}
	if archive.Len() > 64<<10 {
		t.Errorf("the archive has %d bytes", archive.Len())
	}
	sizes := map[string]int64{}
	z, err := gzip.NewReader(bytes.NewReader(archive.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		sizes[h.Name] = h.Size
	}
	for name, want := range map[string]int64{"./j/" + long: size, "./j/ends-in-a-hole.log": size,
		"./j/small.log": 100_000, "./a/a.log": 6, "./z/z.log": 5} {
		if sizes[name] != want {
			t.Errorf("%s: got %d bytes, want %d; all: %v", name, sizes[name], want, sizes)
		}
	}
	out := t.TempDir()
	cmd := exec.Command("tar", "-xzf", "-", "-C", out)
	cmd.Stdin = &archive
	if reported, err := cmd.CombinedOutput(); err != nil || len(reported) != 0 {
		t.Fatalf("tar: %v, reported %s", err, reported)
	}
	file, err := os.Open(filepath.Join(out, "j", long))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for offset, word := range words {
		got := make([]byte, len(word))
		if _, err := file.ReadAt(got, offset); err != nil || string(got) != word {
			t.Errorf("at %d: got %q, %v; want %q", offset, got, err, word)
		}
	}
	if data, err := os.ReadFile(filepath.Join(out, "z/z.log")); err != nil || string(data) != "after" {
		t.Errorf("after the sparse files: got %q, %v", data, err)
	}
	if small, err := os.ReadFile(filepath.Join(out, "j/small.log")); err != nil || len(small) != 100_000 ||
		string(small[99_000:99_004]) != "word" {
		t.Errorf("small.log: %v", err)
	}
}

// TestManyHoles bounds the memory for a file with a hole after each block.
func TestManyHoles(t *testing.T) {
	c := collector(t)
	path := filepath.Join(c.Dirs.SysLog(), "j.log")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	const blocks = maxExtents + 100
	for n := range int64(blocks) {
		if _, err := file.WriteAt([]byte("x"), n*16384); err != nil {
			t.Fatal(err)
		}
	}
	var archive bytes.Buffer
	if err := c.Collect(t.Context(), Selection{Types: "job"}, &archive); err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(&archive)
	if err != nil {
		t.Fatal(err)
	}
	r := tar.NewReader(z)
	for {
		h, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if h.Name == "./j.log" {
			if want := int64(maxExtents-1)*16384 + 4096; h.Size != want {
				t.Errorf("got %d bytes, want %d", h.Size, want)
			}
			return
		}
	}
}

// TestCanceledPadding cancels while a file that has become short is filled up.
func TestCanceledPadding(t *testing.T) {
	c := collector(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("the caller has left")
	p := &packing{c: c, ctx: ctx, tar: tar.NewWriter(io.Discard), buffer: make([]byte, 10), progress: newReporter(c)}
	if err := p.tar.WriteHeader(&tar.Header{Name: "x", Size: 1 << 50, Format: tar.FormatGNU}); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(20*time.Millisecond, func() { cancel(gone) })
	if err := p.pad(p.tar, 1<<50); !errors.Is(err, gone) {
		t.Errorf("got %v", err)
	}
}

func TestSweep(t *testing.T) {
	c := collector(t)
	b, err := c.Bundle(t.Context(), Selection{Types: "job"}, "")
	if err != nil {
		t.Fatal(err)
	}
	partial := filepath.Join(c.Dirs.Tmp(), ".logs-x.tgz.cambium-tmp-0a")
	write(t, partial, "half")
	write(t, filepath.Join(c.Dirs.Tmp(), "other"), "stays")
	for range 2 {
		if err := c.Sweep(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(partial); !os.IsNotExist(err) {
			t.Errorf("a partial bundle is left: %v", err)
		}
		if _, err := os.Stat(b.Path); err != nil {
			t.Errorf("a bundle that may still be fetched: %v", err)
		}
	}
	old := time.Now().Add(-2 * bundleLife)
	if err := os.Chtimes(b.Path, old, old); err != nil {
		t.Fatal(err)
	}
	if err := c.Sweep(); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(c.Dirs.Tmp())
	if err != nil || len(left) != 1 || left[0].Name() != "other" {
		t.Errorf("left: %v, %v", left, err)
	}
}

// Times that an ordinary header cannot hold, before 1970 and after 2242, are those of the file in the archive, be it
// sparse or not.
func TestTimesBeyondAnOrdinaryHeader(t *testing.T) {
	c := collector(t)
	for _, year := range []int{1960, 1970, 2242, 2300} {
		dir := filepath.Join(c.Dirs.SysLog(), strconv.Itoa(year))
		write(t, filepath.Join(dir, "dense.log"), "word")
		sparseFile(t, filepath.Join(dir, "sparse.log"), 4<<20, map[int64]string{0: "word"})
		for _, name := range []string{"dense.log", "sparse.log", "."} {
			// os.Chtimes counts in nanoseconds, which end in 2262.
			at := unix.Timespec{Sec: time.Date(year, 1, 2, 3, 4, 5, 0, time.UTC).Unix()}
			if err := unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(dir, name), []unix.Timespec{at, at}, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	var archive bytes.Buffer
	if err := c.Collect(t.Context(), Selection{Types: "job"}, &archive); err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(archive.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(h.Name, ".log") {
			continue
		}
		found++
		if year := strconv.Itoa(h.ModTime.UTC().Year()); !strings.Contains(h.Name, "/"+year+"/") {
			t.Errorf("%s is of %s", h.Name, h.ModTime.UTC())
		}
	}
	if found != 8 {
		t.Errorf("%d logs in the archive, want 8", found)
	}
	list := exec.Command("tar", "--list", "--gzip", "--verbose", "--utc")
	list.Stdin = &archive
	if out, err := list.CombinedOutput(); err != nil || strings.Count(string(out), ".log") != 8 {
		t.Errorf("tar lists %v\n%s", err, out)
	}
}
