// Package action holds what the Director can ask an agent to do: one file per method (or per
// family of methods) and one table. A row says how a method's arguments are bound, whether it
// runs as a task, what it must not overlap with, and whether it may be stopped or logged.
// Behavior comes in through small interfaces that the action's own file declares.
package action

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Lane says what a call may overlap with.
type Lane int

const (
	// Immediate calls run on the transport's own goroutine, so they must never wait for
	// anything: no disk, no process, no peer.
	Immediate Lane = iota
	// Fast calls only read. They wait for no other call, and may take a while themselves.
	Fast
	// Instance calls change the instance: one at a time, in arrival order.
	Instance
	// Overlap calls run beside everything, a bounded number at a time. Each ends when its caller no longer waits.
	Overlap
	// Transfer calls are as Overlap ones, and may take as long as there are logs and blobs to move.
	Transfer
)

func (l Lane) String() string {
	switch l {
	case Immediate:
		return "immediate"
	case Fast:
		return "fast"
	case Instance:
		return "instance"
	case Overlap:
		return "overlap"
	case Transfer:
		return "transfer"
	}
	return fmt.Sprintf("lane %d", int(l))
}

// Mode says whether a caller gets the result as the reply or a task to poll.
type Mode int

const (
	// Sync answers with the result.
	Sync Mode = iota
	// Async answers with a task handle.
	Async
	// AsyncSince3 is Async for callers of protocol 3 and later, Sync for older ones.
	AsyncSince3
)

// Async reports how a caller of the given protocol is served.
func (m Mode) Async(protocol int) bool { return m == Async || m == AsyncSince3 && protocol >= 3 }

// Run is a call with its arguments bound. It ends soon after ctx does.
type Run func(ctx context.Context) (any, error)

// Bind checks and decodes a request's arguments. It has no side effects; its error becomes the
// caller's exception.
type Bind func(arguments []json.RawMessage) (Run, error)

// Row is one method.
type Row struct {
	Bind Bind
	Mode Mode
	Lane Lane
	// Sensitive arguments may hold secrets: errors about them go to the caller, but not to the log.
	Sensitive bool
	// Cancelable tasks have their context canceled by cancel_task and return soon after.
	Cancelable bool
	// EndsWithCaller marks a synchronous call whose result is of use to its caller alone: it is also canceled when a
	// caller over HTTPS disconnects.
	EndsWithCaller bool
	// Canceled is the outcome of a task that was canceled before it began; where nil, it
	// fails with an exception that says so.
	Canceled Run
	// Resume continues a task that the agent's restart interrupted, from the last note it made
	// with checkpoint (nil if it made none). Where nil, such a task fails.
	Resume func(ctx context.Context, checkpoint json.RawMessage) (any, error)
	// Await, where set, holds the answer of an Immediate call back: done reports that there is nothing
	// to wait for, and wait, called in a goroutine of its own, returns when the answer is worth
	// giving or ctx ends. The dispatcher bounds how long and how many.
	Await func(arguments []json.RawMessage) (done func() bool, wait func(ctx context.Context))
	// ReplyTimeout is the time that a caller waits for the first reply; 45 seconds if zero. A request that has not
	// begun by then is dropped, and a synchronous one outside the instance lane is canceled: nobody waits for the
	// answer.
	ReplyTimeout time.Duration
}

// DefaultReplyTimeout is the Director's reply timeout, DNSReplyTimeout that of its DNS broadcaster. No caller waits for
// bundle_logs as long as BundleReplyTimeout.
const (
	DefaultReplyTimeout = 45 * time.Second
	DNSReplyTimeout     = 10 * time.Second
	BundleReplyTimeout  = 10 * time.Minute
)

// Wait returns how long the caller of this row waits.
func (r Row) Wait() time.Duration {
	if r.ReplyTimeout > 0 {
		return r.ReplyTimeout
	}
	return DefaultReplyTimeout
}

// Table maps method names to rows.
type Table map[string]Row

// Names lists the methods in order.
func (t Table) Names() []string { return slices.Sorted(maps.Keys(t)) }
