package eventually

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// recorder is a test that notes how it ends.
type recorder struct {
	testing.TB
	failed string
}

func (r *recorder) Helper() {}
func (r *recorder) Fatalf(format string, args ...any) {
	r.failed = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// ends runs a wait and returns what it fails with.
func ends(wait func(t testing.TB)) string {
	r, done := &recorder{}, make(chan struct{})
	go func() {
		defer close(done)
		wait(r)
	}()
	<-done
	return r.failed
}

func TestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, after := range []time.Duration{0, 5 * time.Millisecond, limit - time.Second} {
			begin, looks := time.Now(), 0
			come := func() bool { looks++; return time.Since(begin) >= after }
			if failed := ends(func(t testing.TB) { True(t, "the change", come) }); failed != "" {
				t.Errorf("a change after %v: %s", after, failed)
			}
			if late := time.Since(begin) - after; late > max(after/10, shortest) || late > longest {
				t.Errorf("a change after %v was seen %v late, in %d looks", after, late, looks)
			}
		}
		n := 0
		failed := ends(func(t testing.TB) {
			Nil(t, "the file", func() error { n++; return errors.New("look " + strings.Repeat("x", n)) })
		})
		if want := "the file: timed out after 4m0s: look " + strings.Repeat("x", n); failed != want {
			t.Errorf("got %q, want %q", failed, want)
		}
	})
}
