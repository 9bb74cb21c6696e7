// Package retry repeats an operation whose failure may be temporary, with capped, jittered and
// cancelable backoff. Waits for the kernel, udev or a socket do not belong here: those send events.
package retry

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Backoff says how the pauses grow. The zero value pauses one second each time.
type Backoff struct {
	Min    time.Duration // first pause; one second if zero
	Max    time.Duration // longest pause; Min if zero
	Factor float64       // growth per attempt; 2 if zero
	// Jitter is the share of each pause that is random: 0.5 spreads over the last half,
	// 1 over all of it ("full jitter", for many peers that lost the same server).
	Jitter float64
}

// Pause returns how long to wait after the given attempt, counted from 0.
func (b Backoff) Pause(attempt int) time.Duration {
	low, high, factor := b.Min, b.Max, b.Factor
	if low <= 0 {
		low = time.Second
	}
	if high < low {
		high = low
	}
	if factor < 1 {
		factor = 2
	}
	pause := float64(low)
	for range attempt {
		if pause *= factor; pause >= float64(high) {
			pause = float64(high)
			break
		}
	}
	jitter := min(max(b.Jitter, 0), 1)
	return time.Duration(pause * (1 - jitter*rand.Float64()))
}

// Sleep waits for d or until ctx ends, and then returns its cause.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

type final struct{ err error }

func (f final) Error() string { return f.err.Error() }
func (f final) Unwrap() error { return f.err }

// Final marks err as permanent: Do returns it without a retry.
func Final(err error) error {
	if err == nil {
		return nil
	}
	return final{err: err}
}

// IsFinal reports whether err holds one that Final has marked, and returns that.
func IsFinal(err error) (cause error, is bool) {
	f, is := errors.AsType[final](err)
	return f.err, is
}

// Do calls op until it succeeds, fails for good or ctx ends. When ctx ends, the error names
// both why and the last failure, since the failure is what the operator needs to know.
func Do(ctx context.Context, b Backoff, op func(context.Context) error) error {
	for attempt := 0; ; attempt++ {
		err := op(ctx)
		if err == nil {
			return nil
		}
		if cause, final := IsFinal(err); final {
			return cause
		}
		if ended := Sleep(ctx, b.Pause(attempt)); ended != nil {
			return fmt.Errorf("%w (gave up after %d tries: %w)", err, attempt+1, ended)
		}
	}
}
