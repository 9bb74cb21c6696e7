package status

import (
	"fmt"
	"math"
	"time"
)

// BusState is the state of the agent's connection to the Director.
type BusState string

// The states of a bus. BusRefused means that one side rejected the other's identity: the server does not admit the
// agent, or one of them does not trust the other's certificate. If a TCP connection is refused, the state is
// BusConnecting, or BusLost if there was a connection before. Only an HTTPS bus is BusListening.
const (
	BusConnecting BusState = "connecting"
	BusConnected  BusState = "connected"
	BusRefused    BusState = "refused"
	BusLost       BusState = "lost"
	BusListening  BusState = "listening"
)

// Bus describes the agent's connection to the Director.
type Bus struct {
	State BusState `json:"state"`
	// Server is the address of the server, or the one on which the agent listens, without credentials.
	Server string `json:"server"`
	// Reason says why the last attempt failed.
	Reason string `json:"reason,omitempty"`
	// Since is the time at which the connection was made or lost. If there was none yet, it is the time of the first
	// attempt.
	Since time.Time `json:"since"`
	// SinceNS is the same time on the clock of Step, because Since is wrong if the clock was set.
	SinceNS int64 `json:"since_ns,omitempty"`
	// Tries is the number of failed attempts to connect since then.
	Tries int `json:"tries,omitempty"`
	// Overdue means that the connection has been missing for so long that the agent is degraded.
	Overdue bool `json:"overdue,omitempty"`
}

// Reachable reports whether a Director can reach the agent.
func (b *Bus) Reachable() bool {
	return b != nil && (b.State == BusConnected || b.State == BusListening)
}

// String describes the bus in one line.
func (b *Bus) String() string {
	if b == nil {
		return "not started"
	}
	return b.describe("since " + b.Since.Format(time.RFC3339))
}

// Summary is like String, but says how long ago and not when.
func (b *Bus) Summary(passed time.Duration) string {
	if b == nil {
		return b.String()
	}
	return b.describe("for " + FormatDuration(passed))
}

// BusAge returns how long the bus has been in its state.
func (d Document) BusAge(now time.Time) time.Duration {
	switch {
	case d.Bus == nil:
		return 0
	case d.Bus.SinceNS > 0:
		return max(0, d.Elapsed(now)-time.Duration(d.Bus.SinceNS))
	}
	return max(0, now.Sub(d.Bus.Since))
}

// Elapsed returns the time since the start of the process. If that was in this boot, it uses a clock that cannot be
// set.
func (d Document) Elapsed(now time.Time) time.Duration {
	if d.Origin != nil && d.BootID == bootID() {
		return time.Duration(bootTime() - d.Origin.BootTime)
	}
	return now.Sub(d.Started)
}

// FormatDuration formats a duration in its largest unit.
func FormatDuration(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%d days", int(math.Round(d.Hours()/24)))
	case d >= 2*time.Hour:
		return fmt.Sprintf("%d hours", int(math.Round(d.Hours())))
	case d >= 2*time.Minute:
		return fmt.Sprintf("%d minutes", int(math.Round(d.Minutes())))
	}
	return fmt.Sprintf("%d seconds", int(d.Seconds()))
}

// busWords has the text before the server, by state.
var busWords = map[BusState]string{
	BusConnecting: "connecting to ",
	BusConnected:  "connected to ",
	BusRefused:    "refused, ",
	BusLost:       "lost, ",
	BusListening:  "listening at ",
}

func (b *Bus) describe(since string) string {
	text := busWords[b.State] + b.Server + " " + since
	switch {
	case b.Reachable():
		return text
	case b.Tries == 1:
		text += ", 1 try"
	default:
		text += fmt.Sprintf(", %d tries", b.Tries)
	}
	if b.Reason != "" {
		text += ": " + b.Reason
	}
	return text
}
