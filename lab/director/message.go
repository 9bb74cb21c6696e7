// Package director plays the peers of the agent: the Director with its timeouts, retries and polling of tasks over
// NATS, create-env over HTTPS, the sequences of requests of both, and the Health Monitor, which receives heartbeats and
// alerts.
package director

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// protocol is the protocol version of current Directors. create-env sends none.
const protocol = 3

// Request is a request to an agent.
type Request struct {
	Protocol  int    `json:"protocol,omitempty"`
	Method    string `json:"method"`
	Arguments []any  `json:"arguments"`
	ReplyTo   string `json:"reply_to"`
}

// reply is an agent's reply.
type reply struct {
	Value     json.RawMessage `json:"value"`
	Exception *struct {
		Message string `json:"message"`
	} `json:"exception"`
}

// Exception is a reply that reports a failed request.
type Exception struct{ Method, Message string }

func (e *Exception) Error() string { return fmt.Sprintf("%s: agent says: %s", e.Method, e.Message) }

// ErrTimeout means that no answer came in time.
var ErrTimeout = errors.New("no answer in time")

// Transport sends a request to an agent and returns the bytes of the reply. It returns ErrTimeout if ctx ends first.
type Transport interface {
	RoundTrip(ctx context.Context, r Request) ([]byte, error)
	Close()
}

// Agent sends requests to an agent.
type Agent struct {
	Transport Transport
	Protocol  int // 0 over HTTPS
	// Timeout bounds the wait for a reply; DefaultTimeout if zero.
	Timeout time.Duration
	// Poll is the pause between two polls of a task; one second if zero, as in a Director.
	Poll time.Duration
	// Ping bounds the wait of WaitReady and unresponsive for an answer. If zero, it is as in a Director: one second for
	// WaitReady, ten for unresponsive.
	Ping time.Duration
	// Progress, if set, is called at each poll of a running task.
	Progress func(method, task string, elapsed time.Duration)
	// Ended, if set, is called when a poll finds that a task has ended.
	Ended func(method, task string)
}

// DefaultTimeout is the Director's reply timeout.
const DefaultTimeout = 45 * time.Second

// retries has the number of the Director's retries after a timeout. Other methods are not retried.
var retries = map[string]int{"get_state": 2, "get_task": 4, "upload_blob": 3}

// Call sends a request and returns the value of the reply, as compact JSON. It does not wait for a task.
func (a *Agent) Call(ctx context.Context, method string, arguments ...any) (json.RawMessage, error) {
	if arguments == nil {
		arguments = []any{}
	}
	timeout := a.Timeout
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	for attempt := 0; ; attempt++ {
		value, err := a.once(ctx, timeout, method, arguments)
		if errors.Is(err, ErrTimeout) && ctx.Err() == nil && attempt < retries[method] {
			continue
		}
		return value, err
	}
}

func (a *Agent) once(ctx context.Context, timeout time.Duration, method string, arguments []any) (json.RawMessage,
	error) {
	within, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	data, err := a.Transport.RoundTrip(within, Request{Protocol: a.Protocol, Method: method, Arguments: arguments})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", method, err)
	}
	var r reply
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("%s: reply is not JSON: %w", method, err)
	}
	if r.Exception != nil {
		return nil, &Exception{Method: method, Message: r.Exception.Message}
	}
	return r.Value, nil
}

// task is the handle of a task.
type task struct {
	ID    string `json:"agent_task_id"`
	State string `json:"state"`
}

// running returns the handle if value is one. As in the Director, that is a map with both keys.
func running(value json.RawMessage) (task, bool) {
	var t task
	if json.Unmarshal(value, &t) != nil {
		return t, false
	}
	return t, t.ID != "" && t.State == "running"
}

// Do sends a request. If that starts a task, it polls the task until it ends: at once and then after each pause, as the
// Director and the CLI do.
func (a *Agent) Do(ctx context.Context, method string, arguments ...any) (json.RawMessage, error) {
	start := time.Now()
	value, err := a.Call(ctx, method, arguments...)
	pause := a.Poll
	if pause == 0 {
		pause = time.Second
	}
	failures, polls, id := 0, 0, ""
	for {
		t, unfinished := running(value)
		if id != "" && (err != nil || !unfinished) && a.Ended != nil {
			a.Ended(method, id)
		}
		if err != nil {
			return nil, err
		}
		if !unfinished {
			return value, nil
		}
		if id = t.ID; a.Progress != nil {
			a.Progress(method, t.ID, time.Since(start))
		}
		if polls++; polls > 1 {
			select {
			case <-ctx.Done():
				return nil, fmt.Errorf("%s: task %s: %w", method, t.ID, ctx.Err())
			case <-time.After(pause):
			}
		}
		value, err = a.Call(ctx, "get_task", t.ID)
		// create-env tolerates ten failures in a row; over NATS the retries are those of Call.
		if err != nil && a.Protocol == 0 && failures < 10 && ctx.Err() == nil {
			failures++
			value, err = json.Marshal(t)
			continue
		}
		if err == nil {
			failures = 0
		}
	}
}

// Into is like Do, and decodes the value into result.
func (a *Agent) Into(ctx context.Context, result any, method string, arguments ...any) error {
	value, err := a.Do(ctx, method, arguments...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(value, result); err != nil {
		return fmt.Errorf("%s: unexpected value: %w", method, err)
	}
	return nil
}
