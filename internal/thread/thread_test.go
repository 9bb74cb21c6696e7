package thread

import (
	"errors"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Which thread a goroutine gets is up to the runtime, so many are tried, some of them at the same time.
func TestTheFirstThreadIsNeverUsed(t *testing.T) {
	wrong := errors.New("wrong")
	for range 100 {
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				err := Run(func() error {
					if unix.Gettid() == unix.Getpid() {
						t.Error("the first thread is used")
					}
					return wrong
				})
				if err != wrong {
					t.Errorf("got %v, want what the work returned", err)
				}
			})
		}
		all.Wait()
	}
}
