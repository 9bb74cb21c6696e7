package tree

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestHeldEntriesAreNotFreed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "entry")
	if err := Hold(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("holding what is not there: %v, want %v", err, fs.ErrNotExist)
	}
	make := func() {
		t.Helper()
		then := time.Now().Add(-time.Hour)
		if err := errors.Join(os.Mkdir(path, 0o755), os.Chtimes(path, then, then)); err != nil {
			t.Fatal(err)
		}
	}
	remove := func() error { return os.Remove(path) }
	make()
	if free, err := UnlessHeld(path, remove); !free || err != nil {
		t.Errorf("an entry that no process holds is free: %v, %v", free, err)
	}
	make()
	for range 2 {
		if err := Hold(path); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(path); err != nil || time.Since(info.ModTime()) > time.Minute {
		t.Errorf("an entry in use was used last at %v, %v; want now", info.ModTime(), err)
	}
	if free, err := UnlessHeld(path, remove); free || err != nil {
		t.Errorf("an entry in use is free: %v, %v", free, err)
	}
	// One that was removed and made again is another.
	if err := remove(); err != nil {
		t.Fatal(err)
	}
	make()
	if err := Hold(path); err != nil {
		t.Fatal(err)
	}
	if free, err := UnlessHeld(path, remove); free || err != nil {
		t.Errorf("an entry that was made again is free: %v, %v", free, err)
	}
}
