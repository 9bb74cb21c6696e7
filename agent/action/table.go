// Package action implements the Director's requests: one file per method (or family of methods) and one table. A row of
// the table says how a method's arguments are bound, whether it runs as a task, what it must not overlap with, and
// whether it may be canceled or logged. Each action declares the interfaces through which it changes the machine in its
// own file.
package action

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Lane decides which calls may run at the same time.
type Lane int

const (
	// Immediate calls run on the transport's goroutine, so they must not wait for a disk, a process or a peer.
	Immediate Lane = iota
	// Fast calls only read. They run at the same time as other calls, and may take long.
	Fast
	// Instance calls change the instance: one at a time, in arrival order.
	Instance
	// Overlap calls run at the same time as all others, up to a limit. Each ends when its caller no longer waits.
	Overlap
	// Transfer calls are like Overlap calls, but move logs or blobs and take as long as that needs.
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

// Mode decides whether a caller gets the result or a task to poll.
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

// Run is a call whose arguments are bound. It returns soon after ctx ends.
type Run func(ctx context.Context) (any, error)

// Bind checks and decodes the arguments of a request. It has no side effects. Its error is sent to the caller.
type Bind func(arguments []json.RawMessage) (Run, error)

// Row is one method.
type Row struct {
	Bind Bind
	Mode Mode
	Lane Lane
	// Sensitive means that the arguments may hold secrets: errors are sent to the caller, but not logged.
	Sensitive bool
	// Cancelable means that cancel_task cancels the task's context, and the task returns soon after.
	Cancelable bool
	// EndsWithCaller is set for a synchronous call whose result only its caller can use: the call is canceled when a
	// caller over HTTPS disconnects.
	EndsWithCaller bool
	// Canceled returns the outcome of a task that was canceled before it began. If it is nil, the task fails with
	// task.ErrCanceled.
	Canceled Run
	// Resume continues a task that a restart of the agent interrupted. checkpoint is the last one that it saved, or
	// nil. If Resume is nil, such a task fails.
	Resume func(ctx context.Context, checkpoint json.RawMessage) (any, error)
	// Await, if set, delays the answer of an Immediate call. done reports that the call can be answered at once. wait
	// returns when it can be answered or ctx ends, and is called in a goroutine of its own. The dispatcher limits the
	// delay and the number of delayed answers.
	Await func(arguments []json.RawMessage) (done func() bool, wait func(ctx context.Context))
	// ReplyTimeout bounds the caller's wait for the first reply; 45 seconds if zero. A request that has not begun by
	// then is dropped. A synchronous one outside the instance lane is canceled.
	ReplyTimeout time.Duration
}

// DefaultReplyTimeout is the Director's reply timeout, DNSReplyTimeout that of its DNS broadcaster. BundleReplyTimeout
// is longer than any caller of bundle_logs waits.
const (
	DefaultReplyTimeout = 45 * time.Second
	DNSReplyTimeout     = 10 * time.Second
	BundleReplyTimeout  = 10 * time.Minute
)

// EffectiveReplyTimeout returns how long a caller of this method waits.
func (r Row) EffectiveReplyTimeout() time.Duration {
	if r.ReplyTimeout > 0 {
		return r.ReplyTimeout
	}
	return DefaultReplyTimeout
}

// Table maps method names to rows.
type Table map[string]Row

// Names lists the methods in alphabetical order.
func (t Table) Names() []string { return slices.Sorted(maps.Keys(t)) }
