package fetch

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"cambium/infrastructure"
	"cambium/platform/network"
)

// The settings store asks the error of the sources whether it was expected.
var _ interface{ Spent() bool } = (*infrastructure.Failure)(nil)

// A machine whose link is down asks for a network that never comes. With a cached copy it goes on without;
// one that has nothing else waits.
func TestANetworkForTheSourcesIsNotWaitedForLongerThanTheCacheIsWorth(t *testing.T) {
	need := &infrastructure.NeedNetwork{}
	down := func(ctx context.Context, _ json.RawMessage) (bool, error) {
		<-ctx.Done()
		return false, context.Cause(ctx)
	}
	late := func(ctx context.Context, _ json.RawMessage) (bool, error) {
		select {
		case <-time.After(time.Hour):
			return true, nil
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
	for _, c := range []struct {
		name        string
		bringUp     func(context.Context, json.RawMessage) (bool, error)
		dispensable bool
		took        time.Duration
		want        error
	}{
		{"down, with a cached copy", down, true, infrastructure.DefaultCacheBudget, context.DeadlineExceeded},
		{"late, with a cached copy", late, true, infrastructure.DefaultCacheBudget, context.DeadlineExceeded},
		{"late, without one", late, false, time.Hour, nil},
		{"not ours", func(context.Context, json.RawMessage) (bool, error) { return false, nil }, false, 0, need},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asked, begin := 0, time.Now()
				err := withNetwork(t.Context(), c.bringUp, c.dispensable, func() error {
					if asked++; asked > 1 {
						return nil
					}
					return need
				})
				if took := time.Since(begin); took != c.took || !errors.Is(err, c.want) {
					t.Errorf("got %v after %v, want %v after %v", err, took, c.want, c.took)
				}
			})
		})
	}
}

// A read-only network is not made: the caller asks once more, for the sources that need none.
func TestAReadOnlyNetworkIsNotMade(t *testing.T) {
	n := NewNetwork(nil, true, nil, nil)
	for _, want := range []bool{true, false, false} {
		if made, err := n.bringUp(t.Context(), nil); made != want || err != nil || n.made.Load() {
			t.Errorf("ask again: %v, %v; want %v", made, err, want)
		}
	}
}

// One network is made at a time, and a caller that waits for that gives up when its own time is over.
func TestTheTurnToMakeANetworkEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waits := make(chan string, 2)
		f := NewNetwork(&network.Kernel{}, false, func(_ context.Context, text string) { waits <- text }, nil)
		f.turn <- struct{}{}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if made, err := f.bringUp(ctx, nil); made || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, %v; want the end of the caller's time", made, err)
		}
		if begin, end := <-waits, <-waits; begin == "" || end != "" {
			t.Errorf("announced %q and %q, want the wait and its end", begin, end)
		}
	})
}
