package director

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// readyTimeout bounds how long the Director and create-env wait for a new machine.
const readyTimeout = 600 * time.Second

// WaitReady pings until the agent answers, like the caller that uses the transport. The Director waits one second for
// each ping, without a pause, and gives up at an exception other than that the agent is restarting. create-env pings
// every half second, and gives up at a certificate error.
func (a *Agent) WaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	patient := *a
	if patient.Timeout = a.Ping; patient.Timeout == 0 {
		patient.Timeout = time.Second
	}
	for {
		value, err := patient.Call(ctx, "ping")
		if err == nil {
			return pong(value)
		}
		if final := a.final(err); final {
			return err
		}
		if a.Protocol != 0 && errors.Is(err, ErrTimeout) {
			if ctx.Err() != nil {
				return fmt.Errorf("timed out pinging: %w", err)
			}
			continue
		}
		pause := time.Duration(0)
		if a.Protocol == 0 {
			pause = 500 * time.Millisecond
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("timed out pinging: %w", err)
		case <-time.After(pause):
		}
	}
}

func pong(value json.RawMessage) error {
	if string(value) != `"pong"` {
		return fmt.Errorf("ping: got %s, want \"pong\"", value)
	}
	return nil
}

// final reports whether the caller would give up after the error.
func (a *Agent) final(err error) bool {
	if a.Protocol == 0 {
		return strings.Contains(err.Error(), "x509: ")
	}
	var e *Exception
	return errors.As(err, &e) && !strings.HasPrefix(e.Message, "restarting agent")
}
