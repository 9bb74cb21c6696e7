package jobs

import (
	"sync"
	"time"

	"cambium/jobs/monit"
)

// command records the times of the last start or stop that the agent gave to the supervisor. Starts and stops never
// overlap: they share a lane.
type command struct {
	mu    sync.Mutex
	begun time.Time
	ended time.Time // zero while it is under way
}

// begin records the begin of a command; the function it returns records its end.
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

// covers reports whether the command was under way at a time that is known to the second.
func (c *command) covers(at time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.begun.IsZero() && !at.Before(c.begun.Truncate(time.Second)) && (c.ended.IsZero() || !at.After(c.ended))
}

// Expected reports whether an alert is an effect of the agent's own start or stop. After a reload monit checks all services
// at once, and reports as missing those that the agent is about to start. The time of the event counts, not that of the
// mail: a service that is missing after the start has ended is a real alert.
func (i *Instance) Expected(a monit.Alert) bool {
	at := a.Date
	if at.IsZero() {
		at = time.Now()
	}
	return a.Missing() && i.command.covers(at)
}
