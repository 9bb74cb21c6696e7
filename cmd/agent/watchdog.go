package main

import (
	"context"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/mbus"
)

// feedWatchdog sends WATCHDOG=1 to systemd as long as the dispatcher answers a ping, because a Director cannot use an
// agent whose dispatcher hangs.
func feedWatchdog(ctx context.Context, period time.Duration, dispatcher mbus.Handler, alive func() error,
	log *logrus.Entry) {
	if period <= 0 {
		return
	}
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		answered := make(chan struct{})
		dispatcher.Handle(ctx, mbus.Request{Method: "ping"}, func(mbus.Reply) { close(answered) })
		select {
		case <-answered:
			if err := alive(); err != nil {
				log.WithError(err).Warn("cannot notify the watchdog")
			}
		case <-time.After(period):
			log.Error("dispatcher does not respond; the watchdog will restart the agent")
		case <-ctx.Done():
			return
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}
