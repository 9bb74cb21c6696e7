package action

import (
	"context"
	"encoding/json"
)

// Call describes the request that a running action serves.
type Call struct {
	Method   string
	Protocol int    // 0 for create-env, 3 for a Director
	TaskID   string // empty for a synchronous call
	// Note makes a checkpoint durable; nil for a synchronous call.
	Note func(json.RawMessage) error
}

type callKey struct{}

// WithCall returns a context for the run of one call.
func WithCall(ctx context.Context, c Call) context.Context {
	return context.WithValue(ctx, callKey{}, c)
}

// callOf returns the call that ctx was made for, or the zero Call.
func callOf(ctx context.Context) Call {
	c, _ := ctx.Value(callKey{}).(Call)
	return c
}

// checkpoint makes the progress of a resumable task durable. After a restart of the agent, Resume
// gets the last checkpoint. For a synchronous call it does nothing.
func checkpoint(ctx context.Context, note json.RawMessage) error {
	if record := callOf(ctx).Note; record != nil {
		return record(note)
	}
	return nil
}
