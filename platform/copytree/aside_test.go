package copytree

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

func TestWorkersLeaveNothingBehind(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(from, "f"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := runtime.GOMAXPROCS(0)
	if err := Copy(t.Context(), from, to, Options{Workers: 3}); err != nil {
		t.Fatal(err)
	}
	if after := runtime.GOMAXPROCS(0); after != before {
		t.Errorf("%d processors afterwards, want %d", after, before)
	}
}

func TestWorkersHaveTheDefaultPriority(t *testing.T) {
	for own, want := range map[int]int{-5: 0, 0: 0, 5: 5} {
		got := make(chan int)
		go func() {
			runtime.LockOSThread() // and never unlocked: the thread ends with the test
			if err := unix.Setpriority(unix.PRIO_PROCESS, 0, own); err != nil {
				got <- want // only root may be more important than others
				return
			}
			stepAside()
			level, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
			if err != nil {
				t.Error(err)
			}
			got <- 20 - level
		}()
		if level := <-got; level != want {
			t.Errorf("a worker of a process at %d runs at %d, want %d", own, level, want)
		}
	}
}
