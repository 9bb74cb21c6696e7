package agent

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/jobs/monit"
)

// Alert is a message that the Health Monitor passes on to operators. It drops alerts with an id that it has seen
// before, so each alert has its own.
type Alert struct {
	ID       string `json:"id"`
	Severity int    `json:"severity"`
	Title    string `json:"title"`
	Summary  string `json:"summary"`
	Created  int64  `json:"created_at"`
}

// Severities of the Health Monitor.
const (
	severityAlert    = monit.SeverityAlert
	severityCritical = monit.SeverityCritical
	severityError    = monit.SeverityError
	severityWarning  = monit.SeverityWarning
)

// newAlert returns an alert with a new id.
func newAlert(severity int, title, summary string) Alert {
	return Alert{ID: rand.Text(), Severity: severity, Title: title, Summary: summary, Created: time.Now().Unix()}
}

// MonitAlert translates a mail of monit. The sorted ips say where it comes from. The result is false for an event that
// reports no problem.
func MonitAlert(a monit.Alert, ips []string) (Alert, bool) {
	severity := a.Severity()
	if severity == monit.SeverityIgnored {
		return Alert{}, false
	}
	alert := newAlert(severity, a.Title(ips), a.Description)
	if a.ID != "" {
		alert.ID = a.ID
	}
	if !a.Date.IsZero() {
		alert.Created = a.Date.Unix()
	}
	return alert, true
}

// PortAlert reports the process that has taken monit's port; the operators must decide what to do with it.
func PortAlert(held error) Alert {
	return newAlert(severityCritical, "jobs cannot be started or stopped: monit's port is taken", held.Error())
}

// DuplicateAlert reports that another machine uses an address of this one.
func DuplicateAlert(text string) Alert {
	return newAlert(severityCritical, "another machine uses an address of this one", text)
}

// ShortfallAlert reports that a file system does not fill its disk. Its id depends only on agentID and text, so that
// operators are not told again at each start.
func ShortfallAlert(agentID, text string) Alert {
	alert := newAlert(severityWarning, "a file system is smaller than its disk", text)
	alert.ID = fmt.Sprintf("%x", sha256.Sum256([]byte(agentID+" "+text)))[:32]
	return alert
}

// ScriptsAlert reports that scripts failed after a reboot.
func ScriptsAlert(text string) Alert {
	return newAlert(severityCritical, "scripts of jobs failed after the boot", text)
}

// RebootAlert reports a reboot and its cause.
func RebootAlert(text string) Alert {
	return newAlert(severityWarning, "the machine was rebooted", text)
}

// maxAlerts bounds the alerts that wait for a bus connection. The oldest are dropped first.
const maxAlerts = 100

// Alerts sends alerts once the bus is connected.
type Alerts struct {
	log  *logrus.Entry
	wake chan struct{}

	mu      sync.Mutex // guards the fields below
	waiting []Alert
	verdict string // why the machine is not ready; not sent yet
	told    bool   // a verdict was sent
}

// NewAlerts returns an empty queue of alerts.
func NewAlerts(log *logrus.Entry) *Alerts {
	return &Alerts{log: log, wake: make(chan struct{}, 1)}
}

// Send queues an alert, unless it is waiting already; it never blocks.
func (a *Alerts) Send(alert Alert) {
	a.mu.Lock()
	if slices.ContainsFunc(a.waiting, func(w Alert) bool { return w.ID == alert.ID }) {
		a.mu.Unlock()
		return
	}
	if len(a.waiting) >= maxAlerts {
		a.log.WithField("alert", a.waiting[0].Title).Warn("alert dropped")
		a.waiting = a.waiting[1:]
	}
	a.waiting = append(a.waiting, alert)
	a.mu.Unlock()
	a.Wake()
}

// Verdict queues the alert that says why the machine is not ready, instead of one that still waits. An empty text only
// drops that one. A process sends one such alert.
func (a *Alerts) Verdict(text string) {
	a.mu.Lock()
	a.verdict = text
	a.mu.Unlock()
	a.Wake()
}

// Wake makes Run try again, for instance because the bus is connected.
func (a *Alerts) Wake() { putToken(a.wake) }

// Run sends the queued alerts over bus until ctx ends.
func (a *Alerts) Run(ctx context.Context, bus Publisher) {
	for {
		select {
		case <-a.wake:
			a.flush(ctx, bus)
		case <-ctx.Done():
			return
		}
	}
}

func (a *Alerts) flush(ctx context.Context, bus Publisher) {
	if !bus.Connected() {
		return
	}
	a.mu.Lock()
	waiting := a.waiting
	if a.verdict != "" && !a.told {
		waiting, a.told = append(waiting, newAlert(severityAlert, "bosh-agent is not ready", a.verdict)), true
	}
	a.waiting, a.verdict = nil, ""
	a.mu.Unlock()
	for _, alert := range waiting {
		if err := bus.Publish(ctx, "hm", "alert", alert); err != nil {
			a.log.WithError(err).WithField("alert", alert.Title).Warn("cannot send an alert")
		}
	}
}
