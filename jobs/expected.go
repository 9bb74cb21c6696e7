package jobs

import (
	"sync"
	"time"

	"cambium/jobs/monit"
)

// command records the times of the last start or stop by the agent. Starts and stops never overlap, because they share
// a lane.
type command struct {
	mu    sync.Mutex
	begun time.Time
	ended time.Time // zero while it is running
}

// begin records the start of a command. Call end when it has ended.
func (c *command) begin() (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begun, c.ended = time.Now(), time.Time{}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.ended = time.Now()
	}
}

// covers reports whether the command was running at a time, which is only precise to the second.
func (c *command) covers(at time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.begun.IsZero() && !at.Before(c.begun.Truncate(time.Second)) && (c.ended.IsZero() || !at.After(c.ended))
}

// Expected reports whether an alert results from the agent's own start or stop. After a reload, monit checks all
// services at once, and reports those as missing that the agent is about to start. The time of the event counts, and
// not that of the mail: a service that is missing after the start has ended is a real alert.
func (i *Instance) Expected(a monit.Alert) bool {
	at := a.Date
	if at.IsZero() {
		at = time.Now()
	}
	return a.Missing() && i.command.covers(at)
}
