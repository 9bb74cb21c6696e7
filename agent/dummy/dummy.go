// Package dummy replaces the machine of an agent that runs without one (-P dummy). The Director's integration suite
// runs hundreds of such agents. It reads the files that this package writes below the base directory and, with -M
// dummy-nats, sets the state of their jobs over the bus.
package dummy

import (
	"context"
	"encoding/json"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/internal/speclog"
	"cambium/jobs/monit"
	"cambium/mbus"
)

// Statuses sets the state of the dummy jobs.
type Statuses interface{ SetStatus(status string) }

// Handler serves the two messages that only tests send, and passes others to Next.
type Handler struct {
	Next mbus.Handler
	Jobs Statuses
	// Alert receives the failure of a job, in place of a mail of monit.
	Alert func(monit.Alert)
}

// Handle implements mbus.Handler.
func (h Handler) Handle(ctx context.Context, r mbus.Request, reply func(mbus.Reply)) {
	switch r.Method {
	case "set_dummy_status":
		status, ok := h.set(r, reply)
		if !ok {
			return
		}
		if status == monit.StateFailing {
			h.Alert(failure())
		}
		reply(mbus.Value("ok"))
	case "set_task_fail":
		if _, ok := h.set(r, reply); ok {
			reply(mbus.Silence())
		}
	default:
		h.Next.Handle(ctx, r, reply)
	}
}

// set passes the request's status to the jobs. If the status is invalid, it answers with an error and returns false.
func (h Handler) set(r mbus.Request, reply func(mbus.Reply)) (status string, ok bool) {
	if json.Unmarshal(r.Status, &status) != nil || status == "" {
		reply(mbus.Exception("Action Failed " + r.Method + ": status is not a string"))
		return "", false
	}
	h.Jobs.SetStatus(status)
	return status, true
}

// failure returns the alert that the Director's Health Monitor specs expect.
func failure() monit.Alert {
	return monit.Alert{ID: "fake-monit-alert", Service: "fake-monit-service", Event: "failing", Action: "start",
		Date: time.Date(2011, 5, 22, 15, 7, 41, 0, time.UTC), Description: "fake-monit-description"}
}

// Narrate logs what the suite's specs search the log for: each request, and the arguments of some.
func Narrate(log *logrus.Entry) func(r mbus.Request, async bool) {
	log = log.WithField("component", "dispatcher")
	return func(r mbus.Request, async bool) {
		log.Info(speclog.Action(r.Method, async))
		if line, read := speclog.Request(r.Method, r.Arguments); read {
			log.Info(line)
		}
	}
}
