package skiptest

import (
	"runtime"
	"testing"
)

// recorder is a test that notes how it ends.
type recorder struct {
	testing.TB
	ended string
}

func (r *recorder) Helper()               {}
func (r *recorder) Fatalf(string, ...any) { r.ended = "failed"; runtime.Goexit() }
func (r *recorder) Skip(...any)           { r.ended = "skipped"; runtime.Goexit() }

func TestSkipFailsWhereCIIsSet(t *testing.T) {
	for ci, want := range map[string]string{"": "skipped", "true": "failed"} {
		t.Setenv("CI", ci)
		r := &recorder{TB: t}
		over := make(chan struct{})
		go func() {
			defer close(over)
			Skip(r, "nothing at hand")
		}()
		<-over
		if r.ended != want {
			t.Errorf("with CI=%q the test is %s, want %s", ci, r.ended, want)
		}
	}
}
