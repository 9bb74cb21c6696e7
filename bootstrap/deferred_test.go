package bootstrap

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestDeferredWorkRunsAfterTheVerdictOrItsLimit(t *testing.T) {
	for name, c := range map[string]struct {
		verdict bool
		after   time.Duration
	}{"the verdict comes": {verdict: true}, "it does not come": {after: deferLimit}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &Deferred{Go: func(f func(context.Context)) { go f(t.Context()) }}
				var did atomic.Int32
				for range 2 {
					d.UntilVerdict(func(context.Context) { did.Add(1) })
				}
				time.Sleep(deferLimit - time.Nanosecond)
				if n := did.Load(); n != 0 {
					t.Errorf("%d ran before the verdict", n)
				}
				if c.verdict {
					d.Run()
				}
				time.Sleep(c.after)
				synctest.Wait()
				if n := did.Load(); n != 2 {
					t.Errorf("%d of 2 ran", n)
				}
				d.Run()
				time.Sleep(2 * deferLimit)
				if n := did.Load(); n != 2 {
					t.Errorf("%d ran, of 2", n)
				}
			})
		})
	}
}
