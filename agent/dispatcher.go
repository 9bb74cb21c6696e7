// Package agent serves the Director's requests and reports to the Health Monitor. The dispatcher takes requests from
// any transport, holds them until the agent is ready, and runs them in lanes, so that no slow call keeps the agent from
// answering others.
package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/agent/action"
	"cambium/agent/task"
	"cambium/internal/defect"
	"cambium/mbus"
)

// Calls of a lane that may run at the same time. Immediate calls are not counted.
const (
	fastWidth     = 64
	overlapWidth  = 16
	transferWidth = 16
)

// Dispatcher implements mbus.Handler.
type Dispatcher struct {
	ctx   context.Context
	log   *logrus.Entry
	lanes map[action.Lane]*lane
	group sync.WaitGroup

	// AnswerHold returns how long the answer about a running task may be delayed; nil or 0 disables the delay. It is
	// called for each request, because settings can change the time.
	AnswerHold  func() time.Duration
	heldAnswers atomic.Int64

	// EarlyPings reports whether pings are answered before the agent is ready; nil means yes. If not, they time out,
	// as with an agent that is not on the bus yet.
	EarlyPings func() bool

	// Narrate, if set, is called for each request of a known method before it is served.
	Narrate func(r mbus.Request, async bool)

	opened  chan struct{}
	methods action.Table // the rows without dependencies, for requests that arrive before the agent is ready

	// mu guards the fields below.
	mu      sync.Mutex
	phase   phase
	step    string
	verdict string
	judged  chan struct{} // closed when the boot fails
	held    []*held
	pings   int
	table   action.Table
	tasks   *task.Tasks
	// interrupt cancels the function that RunAlone runs or is about to run; nil if there is none.
	interrupt context.CancelCauseFunc
}

// NewDispatcher returns a dispatcher that holds requests until OpenGate is called. Actions run until ctx ends.
func NewDispatcher(ctx context.Context, log *logrus.Entry) *Dispatcher {
	d := &Dispatcher{ctx: ctx, log: log, step: "starting", methods: action.Actions(action.Deps{}),
		opened: make(chan struct{}), judged: make(chan struct{})}
	d.lanes = map[action.Lane]*lane{
		action.Fast:     {width: fastWidth, group: &d.group},
		action.Instance: {width: 1, group: &d.group},
		action.Overlap:  {width: overlapWidth, group: &d.group},
		action.Transfer: {width: transferWidth, group: &d.group},
	}
	return d
}

// Wait returns when all running calls have ended.
func (d *Dispatcher) Wait() { d.group.Wait() }

// Handle serves or holds a request; it never blocks.
func (d *Dispatcher) Handle(ctx context.Context, r mbus.Request, reply func(mbus.Reply)) {
	if d.isReady() || !d.hold(ctx, r, reply) {
		d.serve(ctx, r, reply)
	}
}

// request is one request being served.
type request struct {
	mbus.Request
	row     action.Row
	run     action.Run
	begun   time.Time
	arrived context.Context // the transport's context; ends when the caller has given up
	reply   func(mbus.Reply)
	task    *task.Task // nil for a synchronous call
}

func (d *Dispatcher) serve(ctx context.Context, r mbus.Request, reply func(mbus.Reply)) {
	row, known := d.table[r.Method]
	if known && d.Narrate != nil {
		d.Narrate(r, row.Mode.Async(r.Protocol))
	}
	if known && row.Lane == action.Immediate {
		if row.Await != nil && d.holdAnswer(ctx, r, row, reply) {
			return
		}
		d.serveNow(request{Request: r, row: row, begun: time.Now(), reply: reply})
		return
	}
	q := &request{Request: r, row: row, begun: time.Now(), arrived: ctx, reply: reply}
	if !known {
		d.answer(q, mbus.Exception("unknown message "+r.Method))
		return
	}
	run, err := d.bind(q)
	if err != nil {
		d.answer(q, failure(r.Method, err))
		return
	}
	q.run = run
	if row.Mode.Async(r.Protocol) {
		d.startTask(q)
		return
	}
	queued := d.submit(row.Lane, func() {
		if q.expired() {
			d.answer(q, mbus.Silence())
			return
		}
		ctx, stop := d.callContext(q)
		defer stop()
		value, err := d.execute(q, ctx)
		d.answer(q, d.result(r.Method, value, err))
	})
	if !queued {
		d.answer(q, failure(r.Method, errBusy))
	}
}

var errCallerLeft = errors.New("the caller has disconnected")

// callContext returns the context of a synchronous call. It ends when the caller no longer waits, which frees the
// call's lane. Calls of the instance lane are not canceled: half a change is worse than a late one.
func (d *Dispatcher) callContext(q *request) (context.Context, func()) {
	if q.row.Lane == action.Instance {
		return d.ctx, func() {}
	}
	deadline := q.begun.Add(q.row.EffectiveReplyTimeout())
	if q.KeepsWaiting {
		deadline = time.Now().Add(q.row.EffectiveReplyTimeout())
	}
	late := fmt.Errorf("it has not ended within %s", q.row.EffectiveReplyTimeout())
	ctx, cancel := context.WithDeadlineCause(d.ctx, deadline, late)
	if !q.KeepsWaiting || !q.row.EndsWithCaller {
		return ctx, cancel
	}
	ctx, left := context.WithCancelCause(ctx)
	forget := context.AfterFunc(q.arrived, func() { left(errCallerLeft) })
	return ctx, func() {
		forget()
		left(nil)
		cancel()
	}
}

// serveNow answers on the transport's goroutine. q does not escape to the heap: most requests are
// pings and polls.
func (d *Dispatcher) serveNow(q request) {
	run, err := d.bind(&q)
	if err != nil {
		d.answer(&q, failure(q.Method, err))
		return
	}
	q.run = run
	value, err := d.execute(&q, d.ctx)
	d.answer(&q, d.result(q.Method, value, err))
}

// expired reports whether the caller no longer waits. A call that has not begun is then dropped.
func (q *request) expired() bool {
	if q.KeepsWaiting {
		return q.arrived.Err() != nil
	}
	return time.Since(q.begun) >= q.row.EffectiveReplyTimeout()
}

var errBusy = fmt.Errorf("busy: %d requests are queued", queueLength)

func (d *Dispatcher) startTask(q *request) {
	begun := make(chan struct{})
	queued := d.submit(q.row.Lane, func() {
		<-begun
		q.task.Persist()
		d.runTask(q)
	})
	if !queued {
		d.answer(q, failure(q.Method, errBusy))
		return
	}
	q.task = d.tasks.Begin(q.Method, q.row.Cancelable)
	close(begun)
	// In another goroutine: this one is the transport's, and an fsync blocks.
	d.group.Go(func() {
		q.task.Persist()
		d.answer(q, mbus.Value(action.RunningTask(q.task.ID)))
	})
}

func (d *Dispatcher) runTask(q *request) {
	run := q.run
	if q.task.Canceled() {
		run = q.row.Canceled
		if run == nil {
			run = func(context.Context) (any, error) { return nil, task.ErrCanceled }
		}
	}
	q.run = run
	start := time.Now()
	value, err := d.execute(q, q.task.Context())
	// The error of a canceled action, such as a script's exit code, does not say that it was
	// canceled.
	if err != nil && q.task.Canceled() && !errors.Is(err, task.ErrCanceled) {
		err = fmt.Errorf("%w: %w", task.ErrCanceled, err)
	}
	q.task.Finish(value, err)
	d.logTask(q, time.Since(start), err)
}

// resume continues or fails a task that an earlier process of the agent had begun.
func (d *Dispatcher) resume(t *task.Task, row action.Row) {
	q := &request{Request: mbus.Request{Method: t.Method}, row: row, task: t, begun: time.Now()}
	if row.Resume == nil {
		t.Finish(nil, task.ErrRestarted)
		d.logTask(q, 0, task.ErrRestarted)
		return
	}
	q.run = func(ctx context.Context) (any, error) { return row.Resume(ctx, t.Checkpoint()) }
	if !d.submit(row.Lane, func() { d.runTask(q) }) {
		t.Finish(nil, errBusy)
	}
}

// bind decodes the arguments. It returns a panic as an error.
func (d *Dispatcher) bind(q *request) (run action.Run, err error) {
	defer d.recovered(q, &err)
	if q.BadArguments {
		return nil, errors.New("arguments: expected an array")
	}
	return q.row.Bind(q.Arguments)
}

// execute runs the action. It returns a panic as an error.
func (d *Dispatcher) execute(q *request, ctx context.Context) (value any, err error) {
	defer d.recovered(q, &err)
	if q.row.Lane == action.Immediate {
		return q.run(ctx) // does not use action.callOf
	}
	call := action.Call{Method: q.Method, Protocol: q.Protocol}
	if q.task != nil {
		call.TaskID, call.SaveCheckpoint = q.task.ID, q.task.SaveCheckpoint
	}
	return q.run(action.WithCall(ctx, call))
}

// recovered turns a panic into an error with an id; the log entry has the same id. The value of the panic stays out of
// the reply, because it may contain a secret.
func (d *Dispatcher) recovered(q *request, err *error) {
	p := recover()
	if p == nil {
		return
	}
	*err = fmt.Errorf("internal error %s, see the agent's log", defect.Report(d.log.WithField("action", q.Method), p))
}

// result returns the reply to a call. The error of a sensitive task is private in the answer to get_task, too.
func (d *Dispatcher) result(method string, value any, err error) mbus.Reply {
	if err == nil {
		return mbus.Value(value)
	}
	reply := failure(method, err)
	if failed := (action.TaskFailed{}); errors.As(err, &failed) && d.table[failed.Method].Sensitive {
		reply = reply.Private()
	}
	return reply
}

func failure(method string, err error) mbus.Reply {
	return mbus.Exception("Action Failed " + method + ": " + err.Error())
}

func (d *Dispatcher) answer(q *request, reply mbus.Reply) {
	if q.row.Sensitive {
		reply = reply.Private()
	}
	q.reply(reply)
	level := logrus.InfoLevel
	if q.row.Lane == action.Immediate || q.row.Lane == action.Fast {
		level = logrus.DebugLevel
	}
	if !d.log.Logger.IsLevelEnabled(level) {
		return
	}
	fields := logrus.Fields{
		"action":  q.Method,
		"request": requestID(q.ReplyTo),
		"took":    time.Since(q.begun).String(),
		"outcome": "ok",
	}
	if text, failed := reply.ExceptionText(); failed {
		fields["outcome"] = "exception"
		fields["error"] = text
	} else if reply.Silent() {
		fields["outcome"] = "not answered"
	}
	if q.task != nil {
		fields["task"] = q.task.ID
	}
	d.log.WithFields(fields).Log(level, "request")
}

func (d *Dispatcher) logTask(q *request, took time.Duration, err error) {
	entry := d.log.WithFields(logrus.Fields{"action": q.Method, "task": q.task.ID, "took": took.String()})
	switch {
	case err == nil:
		entry.Info("task done")
	case q.row.Sensitive:
		entry.Error("task failed")
	default:
		entry.WithError(err).Error("task failed")
	}
}

// requestID returns the Director's id of a request: the last token of its reply subject.
func requestID(replyTo string) string { return replyTo[strings.LastIndexByte(replyTo, '.')+1:] }
