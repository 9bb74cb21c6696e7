package device

import (
	"os"
	"path/filepath"
	"testing"
)

// A context that ends while a watch is closed must not write to what has the descriptor's number by then.
func TestWakeAfterCloseWritesNowhere(t *testing.T) {
	w, err := newWatch()
	if err != nil {
		t.Fatal(err)
	}
	w.close()
	var files []*os.File
	for range 8 { // the lowest free numbers, those of the watch among them
		f, err := os.Create(filepath.Join(t.TempDir(), "disk"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files = append(files, f)
	}
	w.wake()
	for _, f := range files {
		if info, err := f.Stat(); err != nil || info.Size() != 0 {
			t.Errorf("descriptor %d was written to: %v, %v", f.Fd(), info.Size(), err)
		}
	}
}
