package mbus

import (
	"context"
	"log/syslog"
	"slices"
	"time"

	"cambium/internal/retry"
)

const (
	auditTag = "vcap.agent"
	// auditQueue limits the lines of each severity that wait for a slow or missing syslog daemon. Further lines are
	// dropped, because the agent must not wait for its own audit.
	auditQueue = 1000
)

// Syslog is an Auditor that writes lines in the Common Event Format to the system's log, with facility daemon and
// priority debug, or error for failures.
type Syslog struct {
	// Network and Address are those of net.Dial; if empty, the local daemon is used.
	Network, Address string
	// Program identifies the agent and the supervisor of this machine at the end of each line.
	Program Program

	failures, others chan Event
}

// NewSyslog returns an auditor for the local syslog daemon. Run writes what it records.
func NewSyslog(p Program) *Syslog {
	return &Syslog{Program: p, failures: make(chan Event, auditQueue), others: make(chan Event, auditQueue)}
}

// Program identifies the agent of a machine and the supervisor of its jobs.
type Program struct{ Version, Supervisor string }

// line formats the event and the program.
func (s *Syslog) line(e Event) string {
	e.extensions = append(slices.Clip(e.extensions), extension{"cs5", s.Program.Version},
		extension{"cs5Label", "agentVersion"}, extension{"cs6", s.Program.Supervisor},
		extension{"cs6Label", "supervisor"})
	return e.String()
}

// Record queues an event. The line is formatted when it is written.
func (s *Syslog) Record(e Event) {
	queue := s.others
	if e.Failed {
		queue = s.failures
	}
	select {
	case queue <- e:
	default:
	}
}

// Run writes the queued events until ctx ends.
func (s *Syslog) Run(ctx context.Context) error {
	backoff := retry.Backoff{Min: 100 * time.Millisecond, Max: 10 * time.Second, Jitter: 0.5}
	for attempt := 0; ctx.Err() == nil; attempt++ {
		w, err := syslog.Dial(s.Network, s.Address, syslog.LOG_DAEMON|syslog.LOG_DEBUG, auditTag)
		if err == nil {
			attempt = 0
			s.write(ctx, w)
			_ = w.Close() // nothing is buffered in it
		}
		if retry.Sleep(ctx, backoff.Pause(attempt)) != nil {
			break
		}
	}
	return nil
}

// write writes events until ctx ends or the daemon cannot be reached. The event that could not be written is lost.
func (s *Syslog) write(ctx context.Context, w *syslog.Writer) {
	for err := error(nil); err == nil; {
		select {
		case e := <-s.failures:
			err = w.Err(s.line(e))
		case e := <-s.others:
			err = w.Debug(s.line(e))
		case <-ctx.Done():
			return
		}
	}
}
