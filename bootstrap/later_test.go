package bootstrap

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestLater(t *testing.T) {
	for name, c := range map[string]struct {
		verdict bool
		after   time.Duration
	}{"the verdict comes": {verdict: true}, "it does not come": {after: yieldLimit}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &Machine{Beside: func(f func(context.Context)) { go f(t.Context()) }}
				var did atomic.Int32
				for range 2 {
					m.Later(func(context.Context) { did.Add(1) })
				}
				time.Sleep(yieldLimit - time.Nanosecond)
				if n := did.Load(); n != 0 {
					t.Errorf("%d were done before the verdict", n)
				}
				if c.verdict {
					m.Settle()
				}
				time.Sleep(c.after)
				synctest.Wait()
				if n := did.Load(); n != 2 {
					t.Errorf("%d of 2 were done", n)
				}
				m.Settle()
				time.Sleep(2 * yieldLimit)
				if n := did.Load(); n != 2 {
					t.Errorf("%d were done, of 2", n)
				}
			})
		})
	}
}
