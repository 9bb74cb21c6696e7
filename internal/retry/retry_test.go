package retry

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestPauseGrowsToTheCap(t *testing.T) {
	b := Backoff{Min: time.Second, Max: 10 * time.Second}
	for attempt, want := range []time.Duration{1, 2, 4, 8, 10, 10} {
		if got := b.Pause(attempt); got != want*time.Second {
			t.Errorf("Pause(%d) = %v, want %v", attempt, got, want*time.Second)
		}
	}
	if got := (Backoff{}).Pause(1 << 20); got != time.Second {
		t.Errorf("zero value pauses %v, want 1s", got)
	}
	full := Backoff{Min: time.Second, Max: time.Second, Jitter: 1}
	seen := map[time.Duration]bool{}
	for range 100 {
		p := full.Pause(3)
		if p < 0 || p > time.Second {
			t.Fatalf("full jitter gave %v, want within 0..1s", p)
		}
		seen[p] = true
	}
	if len(seen) < 50 {
		t.Errorf("full jitter gave only %d different pauses of 100", len(seen))
	}
}

func TestDo(t *testing.T) {
	broken := errors.New("broken")
	synctest.Test(t, func(t *testing.T) {
		calls, start := 0, time.Now()
		err := Do(t.Context(), Backoff{Min: time.Second, Max: time.Minute}, func(context.Context) error {
			if calls++; calls < 4 {
				return broken
			}
			return nil
		})
		if err != nil || calls != 4 || time.Since(start) != 7*time.Second {
			t.Errorf("got %v after %d calls and %v, want success after 4 and 7s", err, calls, time.Since(start))
		}
	})
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		err := Do(t.Context(), Backoff{}, func(context.Context) error { calls++; return Final(broken) })
		if err != broken || calls != 1 {
			t.Errorf("a final error: got %v after %d calls, want it at once and unwrapped", err, calls)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		err := Do(ctx, Backoff{}, func(context.Context) error { return broken })
		if !errors.Is(err, broken) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want both the failure and the deadline", err)
		}
	})
}
