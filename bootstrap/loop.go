package bootstrap

import (
	"context"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/bootstrap/engine"
	"cambium/internal/retry"
)

// Loop runs the boot table until the machine is ready. A failure may be temporary, so the table is run again as soon as
// the machine has other disks or links, or after a pause.
type Loop struct {
	Engine  *engine.Engine
	Machine *Machine
	Log     *logrus.Entry
	// Go runs f in a goroutine for which the agent waits before it exits.
	Go func(f func())
	// Ready is called with the verdict of a successful boot.
	Ready func(ctx context.Context, v engine.Verdict) error
	// Retrying is called before a retry because of other hardware or a request, since the last verdict may no longer
	// apply.
	Retrying func()
}

// retryPauses are the pauses between attempts if no change was noticed.
var retryPauses = retry.Backoff{Min: 15 * time.Second, Max: time.Minute, Jitter: 0.2}

// pauseOver is the reason for an attempt without a noticed change.
const pauseOver = "pause"

// backgroundGrace bounds how long a retry waits for background steps to end. A step that takes longer continues, and is
// not started a second time.
const backgroundGrace = 10 * time.Second

// Run returns when the machine is ready or ctx ends. It fails if the boot table is invalid or Ready fails.
func (l *Loop) Run(ctx context.Context) error {
	for attempt := 0; ; attempt++ {
		before := l.Machine.hardware()
		within, cancel := context.WithCancel(ctx)
		verdict, rest, err := l.Engine.Run(within, Steps(l.Machine))
		if err != nil {
			cancel()
			return err
		}
		backgroundOver := make(chan struct{})
		background := func() {
			l.Machine.Deferred.Run()
			rest()
			cancel()
			close(backgroundOver)
		}
		if ctx.Err() != nil {
			l.Go(background)
			return context.Cause(ctx)
		}
		if verdict.Cause == nil {
			defer l.Go(background) // after the verdict has been announced
			return l.Ready(ctx, verdict)
		}
		l.Go(background)
		pause := retryPauses.Pause(attempt)
		l.Engine.AnnounceNextTry(time.Now().Add(pause))
		because := l.pause(ctx, pause, before)
		// Background steps of this attempt would be in the way of the next.
		cancel()
		select {
		case <-backgroundOver:
		case <-ctx.Done():
		case <-time.After(backgroundGrace):
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if because != pauseOver {
			l.Retrying()
		}
		l.Log.WithFields(logrus.Fields{"attempt": attempt + 2, "reason": because}).Info("retrying the boot")
	}
}

// pause waits for a change of the hardware since before the attempt, or for the given time, and returns the reason. It
// ignores carriers that came during the attempt, because the attempt itself brings links up.
func (l *Loop) pause(ctx context.Context, while time.Duration, before Hardware) string {
	before.Carriers = l.Machine.hardware().Carriers
	within, cancel := context.WithTimeout(ctx, while)
	defer cancel()
	if changed := l.Machine.awaitHardware(within, before); changed != "" {
		return changed
	}
	return pauseOver
}
