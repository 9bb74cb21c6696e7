package action

import (
	"context"
	"encoding/json"
)

// Call describes the request of a running action.
type Call struct {
	Method   string
	Protocol int    // 0 from create-env, 3 from a Director
	TaskID   string // empty for a synchronous call
	// SaveCheckpoint saves a checkpoint; nil for a synchronous call.
	SaveCheckpoint func(json.RawMessage) error
}

type callKey struct{}

// WithCall returns a context from which an action can read its call.
func WithCall(ctx context.Context, c Call) context.Context {
	return context.WithValue(ctx, callKey{}, c)
}

// callOf returns the call in ctx, or the zero Call.
func callOf(ctx context.Context) Call {
	c, _ := ctx.Value(callKey{}).(Call)
	return c
}

// checkpoint saves the progress of a resumable task. If the agent restarts, Resume gets the last checkpoint. For a
// synchronous call it does nothing.
func checkpoint(ctx context.Context, note json.RawMessage) error {
	if record := callOf(ctx).SaveCheckpoint; record != nil {
		return record(note)
	}
	return nil
}
