// Package retry repeats operations that may fail temporarily, with a capped, jittered and cancelable backoff. Do not
// use it to wait for the kernel, udev or a socket: those send events.
package retry

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Backoff defines the pauses between attempts. The zero value pauses for one second each time.
type Backoff struct {
	Min    time.Duration // first pause; one second if zero
	Max    time.Duration // longest pause; Min if zero
	Factor float64       // growth per attempt; 2 if zero
	// Jitter is the random share of each pause: 0.5 varies its second half, 1 the whole ("full jitter", for many peers
	// that have lost the same server).
	Jitter float64
}

// Pause returns the pause after an attempt, counted from 0.
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

// Sleep sleeps for d. If ctx ends first, it returns the cause.
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

// Final marks an error as permanent, so that Do does not retry.
func Final(err error) error {
	if err == nil {
		return nil
	}
	return final{err: err}
}

// IsFinal reports whether err contains an error marked by Final, and returns that.
func IsFinal(err error) (cause error, is bool) {
	f, is := errors.AsType[final](err)
	return f.err, is
}

// Do calls op until it succeeds, returns a Final error, or ctx ends. If ctx ends, the error has the cause and the last
// error of op, which operators need to know.
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
