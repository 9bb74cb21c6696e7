package director

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// MissedAfter is the age of the last heartbeat after which the Health Monitor considers an agent timed out.
const MissedAfter = 60 * time.Second

// Event is a message that an agent has published for the Health Monitor.
type Event struct {
	Time  time.Time       `json:"time"`
	Kind  string          `json:"kind"` // "heartbeat", "alert", "shutdown"
	Agent string          `json:"agent"`
	Body  json.RawMessage `json:"body"`
}

// Heartbeat is the part of a heartbeat that the Health Monitor reads.
type Heartbeat struct {
	Job       *string         `json:"job"`
	JobState  string          `json:"job_state"`
	Processes *int            `json:"number_of_processes"`
	Vitals    json.RawMessage `json:"vitals"`
}

// Alert is an alert with the fields that the Health Monitor requires.
type Alert struct {
	ID        string  `json:"id"`
	Severity  *int    `json:"severity"`
	Title     string  `json:"title"`
	Summary   string  `json:"summary"`
	CreatedAt float64 `json:"created_at"`
}

// Valid returns the reason why the Health Monitor would drop the alert, or nil.
func (a Alert) Valid() error {
	switch {
	case a.ID == "":
		return fmt.Errorf("alert without id")
	case a.Severity == nil || *a.Severity < 0:
		return fmt.Errorf("alert without severity")
	case a.Title == "":
		return fmt.Errorf("alert without title")
	case a.CreatedAt == 0:
		return fmt.Errorf("alert without created_at")
	}
	return nil
}

// Monitor plays the Health Monitor. It keeps what agents have published.
type Monitor struct {
	conn *nats.Conn

	mu        sync.Mutex
	events    []Event
	last      map[string]time.Time
	listeners map[chan Event]struct{}
}

// kept bounds the number of events that a monitor keeps.
const kept = 10000

// NewMonitor subscribes to the events. The connection must have the Health Monitor's certificate.
func NewMonitor(conn *nats.Conn) (*Monitor, error) {
	m := &Monitor{conn: conn, last: map[string]time.Time{}, listeners: map[chan Event]struct{}{}}
	for _, kind := range []string{"heartbeat", "alert", "shutdown"} {
		if _, err := conn.Subscribe("hm.agent."+kind+".*", m.receive); err != nil {
			return nil, fmt.Errorf("health monitor: %w", err)
		}
	}
	return m, conn.Flush()
}

// Close ends the connection.
func (m *Monitor) Close() { m.conn.Close() }

func (m *Monitor) receive(message *nats.Msg) {
	parts := strings.SplitN(message.Subject, ".", 4)
	e := Event{Time: time.Now(), Kind: parts[2], Agent: parts[3], Body: json.RawMessage(message.Data)}
	m.mu.Lock()
	defer m.mu.Unlock()
	if e.Kind == "heartbeat" {
		m.last[e.Agent] = e.Time
	}
	if m.events = append(m.events, e); len(m.events) > kept {
		m.events = m.events[len(m.events)-kept:]
	}
	for l := range m.listeners {
		select {
		case l <- e:
		default: // a listener that does not keep up misses events; the record has them
		}
	}
}

// Events returns the events so far.
func (m *Monitor) Events() []Event {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]Event(nil), m.events...)
}

// Listen returns a channel of future events, until stop is called.
func (m *Monitor) Listen() (events <-chan Event, stop func()) {
	l := make(chan Event, 256)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listeners[l] = struct{}{}
	return l, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.listeners, l)
	}
}

// Wait returns the first event after since for which want returns true. It may have arrived before the call.
func (m *Monitor) Wait(ctx context.Context, since time.Time, want func(Event) bool) (Event, error) {
	events, stop := m.Listen()
	defer stop()
	for _, e := range m.Events() {
		if e.Time.After(since) && want(e) {
			return e, nil
		}
	}
	for {
		select {
		case e := <-events:
			if want(e) {
				return e, nil
			}
		case <-ctx.Done():
			return Event{}, ctx.Err()
		}
	}
}

// Missed returns the agents whose last heartbeat is older than MissedAfter at now, with its age. It ignores agents
// without a heartbeat.
func (m *Monitor) Missed(now time.Time) map[string]time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	missed := map[string]time.Duration{}
	for agent, last := range m.last {
		if age := now.Sub(last); age > MissedAfter {
			missed[agent] = age
		}
	}
	return missed
}
