package action

import (
	"context"
	"fmt"
	"time"

	"cambium/jobs"
)

// Jobs reports the applied spec and the state of the machine's jobs and processes.
type Jobs interface {
	// Spec returns the spec that was applied last, or an empty one.
	Spec() (jobs.Spec, error)
	Observe(ctx context.Context) (state string, processes []jobs.Process, err error)
}

// StateSource collects the result of get_state.
type StateSource struct {
	AgentID string
	VMName  func() string
	Jobs    Jobs
	// Vitals measures the machine; its result is encoded as returned. It returns soon after ctx ends.
	Vitals func(ctx context.Context) (any, error)
}

// InstanceState is the result of get_state: the applied spec, and the state of the machine.
type InstanceState struct {
	jobs.Spec
	AgentID   string         `json:"agent_id"`
	JobState  string         `json:"job_state"`
	VM        VM             `json:"vm"`
	Vitals    any            `json:"vitals,omitempty"`
	Processes []jobs.Process `json:"processes,omitempty"`
}

// VM holds the IaaS's name of the machine.
type VM struct {
	Name string `json:"name"`
}

// stateTimeout bounds the wait for the supervisor and for a measurement. `bosh vms` shows the state "unknown", but
// fails if it gets no answer within five seconds.
const stateTimeout = 3 * time.Second

// unknown is the state of jobs if the supervisor does not answer.
const unknown = "unknown"

func (s StateSource) state(ctx context.Context, format *string) (InstanceState, error) {
	ctx, cancel := context.WithTimeout(ctx, stateTimeout)
	defer cancel()
	full := format != nil && *format == "full"
	var vitals <-chan BackgroundResult[any]
	if full {
		vitals = RunInBackground(func() (any, error) { return s.Vitals(ctx) })
	}
	job, processes, _ := ObserveJobs(ctx, s.Jobs)
	spec, err := s.Jobs.Spec()
	if err != nil {
		return InstanceState{}, fmt.Errorf("applied spec: %w", err)
	}
	state := InstanceState{Spec: spec, AgentID: s.AgentID, JobState: job, VM: VM{s.VMName()}, Processes: processes}
	if full {
		select {
		case m := <-vitals:
			if m.Err != nil {
				return InstanceState{}, fmt.Errorf("vitals: %w", m.Err)
			}
			state.Vitals = m.Value
		case <-ctx.Done(): // the state without vitals is worth more than an error
		}
	}
	return state, nil
}

// ObserveJobs asks the supervisor for the state of the jobs. If it does not answer within stateTimeout, the state is
// "unknown" and ok is false.
func ObserveJobs(ctx context.Context, j Jobs) (state string, processes []jobs.Process, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, stateTimeout)
	defer cancel()
	type observed struct {
		state     string
		processes []jobs.Process
	}
	answer := RunInBackground(func() (o observed, err error) {
		o.state, o.processes, err = j.Observe(ctx)
		return o, err
	})
	select {
	case o := <-answer:
		if o.Err != nil {
			return unknown, nil, false
		}
		return o.Value.state, o.Value.processes, true
	case <-ctx.Done():
		return unknown, nil, false
	}
}

// BackgroundResult is the result of a function run by RunInBackground.
type BackgroundResult[T any] struct {
	Value T
	Err   error
}

// RunInBackground runs f in a goroutine, so that the caller can give up on a function that ignores its context. It
// returns a panic as an error.
func RunInBackground[T any](f func() (T, error)) <-chan BackgroundResult[T] {
	done := make(chan BackgroundResult[T], 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				done <- BackgroundResult[T]{Err: fmt.Errorf("internal error: %T", p)}
			}
		}()
		value, err := f()
		done <- BackgroundResult[T]{value, err}
	}()
	return done
}
