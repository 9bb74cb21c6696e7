package bounded

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"cambium/internal/eventually"
	"cambium/internal/skiptest"
	"cambium/lab/stucktest"
)

// TestCallsAreLeftBehind: a call that hangs costs its caller a bounded time, and the process a bounded number of
// threads; it is not made again before it has ended.
func TestCallsAreLeftBehind(t *testing.T) {
	t.Parallel()
	var g Group
	release := make(chan struct{})
	made := make(chan string, 2*maxLeft)
	call := func(name string, hangs bool) (int, error) {
		return Call(&g, name, func() (int, error) {
			made <- name
			if hangs {
				<-release
			}
			return 7, nil
		})
	}
	for range 3 {
		if _, err := call("first", true); !errors.Is(err, ErrHangs) || errors.Is(err, ErrTooMany) ||
			!strings.HasPrefix(err.Error(), "first: ") {
			t.Errorf("got %v", err)
		}
	}
	if len(made) != 1 {
		t.Errorf("the call was made %d times, want once", len(made))
	}
	if value, err := call("another", false); value != 7 || err != nil {
		t.Errorf("a call that answers: got %d, %v", value, err)
	}
	var others sync.WaitGroup
	for i := 1; i < maxLeft; i++ {
		others.Go(func() {
			if _, err := call(fmt.Sprint(i), true); !errors.Is(err, ErrHangs) || errors.Is(err, ErrTooMany) {
				t.Errorf("call %d: got %v", i, err)
			}
		})
	}
	others.Wait()
	if _, err := call("one more", false); !errors.Is(err, ErrTooMany) || !errors.Is(err, ErrHangs) {
		t.Errorf("beyond the bound: got %v", err)
	}
	close(release)
	eventually.True(t, "room for calls", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.sum == 0 && len(g.left) == 0
	})
	if value, err := call("first", false); value != 7 || err != nil {
		t.Errorf("afterwards: got %d, %v", value, err)
	}
}

// TestReadOfAHeldAddressSpace: what the package is for exists.
func TestReadOfAHeldAddressSpace(t *testing.T) {
	skiptest.WithoutRoot(t, "to mount FUSE")
	t.Parallel()
	p, err := stucktest.Start(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var g Group
	dir := fmt.Sprintf("/proc/%d", p.Pid)
	for _, name := range []string{"cmdline", "environ"} { // and maps, before Linux 6.17
		if _, err := ReadFile(&g, filepath.Join(dir, name)); !errors.Is(err, ErrHangs) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	for _, name := range []string{"stat", "status", "comm", "cgroup", "mountinfo"} { // which do not need the address space
		if _, err := os.ReadFile(filepath.Join(dir, name)); err != nil {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	eventually.True(t, "the end of the reads", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.sum == 0
	})
}
