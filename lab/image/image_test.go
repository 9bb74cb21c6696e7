package image

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// TestGuestProgramIsBuiltBySeveralAtOnce: the tests of one process ask for it in parallel, on a machine that has never seen it.
func TestGuestProgramIsBuiltBySeveralAtOnce(t *testing.T) {
	c := Cache{Dir: filepath.Join(t.TempDir(), "cache")}
	var all sync.WaitGroup
	for range 12 {
		all.Go(func() {
			path, err := c.program(t.Context(), labGuest)
			if err != nil {
				t.Errorf("guest program: %v", err)
				return
			}
			if info, err := os.Stat(path); err != nil || info.Mode() != 0o755 || info.Size() == 0 {
				t.Errorf("guest program: %v, %v, want an executable", info, err)
			}
		})
	}
	all.Wait()
	left, err := os.ReadDir(c.Dir)
	if err != nil || len(left) != 1 {
		t.Errorf("the cache holds %v (%v), want the program alone", left, err)
	}
}
