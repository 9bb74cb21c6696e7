package tempfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cambium/internal/atomicfile"
)

func TestUnnamedLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	file, err := Unnamed(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteString("x"); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("got %v, %v; want no file", entries, err)
	}

	named, err := os.CreateTemp(dir, prefix) // as on another file system, if the process is killed before it removes it
	if err != nil {
		t.Fatal(err)
	}
	defer named.Close()
	if err := atomicfile.Sweep(dir); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("after Sweep: got %v, %v; want no file", entries, err)
	}
}

// TestWriterLeavesSpace writes to a file system of 100 MiB, 40 MiB of which are used.
func TestWriterLeavesSpace(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	w, err := newWriter(file, func() (uint64, error) {
		info, err := file.Stat()
		return 60<<20 - uint64(info.Size()), err
	})
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 1<<20)
	written := 0
	for err == nil && written < 100 {
		if _, err = w.Write(data); err == nil {
			written++
		}
	}
	if err == nil || !strings.Contains(err.Error(), "free some space") {
		t.Errorf("got %v, want an error that says what to do", err)
	}
	// 57 would leave the twentieth; the last look was at most four before.
	if written < 53 || written > 57 {
		t.Errorf("wrote %d MiB of 60, want 53 to 57", written)
	}
}
