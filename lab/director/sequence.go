package director

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// readyTimeout bounds the wait of the Director and of create-env for a new machine.
const readyTimeout = 600 * time.Second

// WaitReady pings until the agent answers, as the caller of that transport does it: the
// Director with one second per ping and no pause, ending at any exception that does not say
// that the agent is restarting; create-env every half second, ending at a certificate error.
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

// final reports an error after which the caller gives up waiting.
func (a *Agent) final(err error) bool {
	if a.Protocol == 0 {
		return strings.Contains(err.Error(), "x509: ")
	}
	var e *Exception
	return errors.As(err, &e) && !strings.HasPrefix(e.Message, "restarting agent")
}
