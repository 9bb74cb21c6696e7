// Package dummysupervisor replaces monit for agents without processes, of which the test suites of Directors run
// hundreds ("-M dummy" and "-M dummy-nats"). It implements jobs.Supervisor without any effect.
package dummysupervisor

import (
	"cmp"
	"context"
	"errors"
	"sync"

	"cambium/jobs/monit"
)

// failTask is the status after which every start fails.
const failTask = "fail_task"

// Dummy keeps the state of the last start, stop or SetStatus. The zero value is for -M dummy: the state is unknown
// until the first start or stop, and there are no processes.
type Dummy struct {
	// Applied, if set, is for -M dummy-nats: there are three processes, and the state is running once a spec was
	// applied, and unknown before.
	Applied func() bool

	mu     sync.Mutex // guards status
	status string     // "" until it is set
}

// Reload does nothing.
func (d *Dummy) Reload(ctx context.Context) error { return ctx.Err() }

// StartAll sets the state to running, unless a test has set it to failing. After fail_task it returns an error.
func (d *Dummy) StartAll(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch d.status {
	case failTask:
		// The specs of the Director's suite search for this sentence in the output of the deployment.
		return errors.New("fake-task-fail-error")
	case monit.StateFailing:
	default:
		d.status = monit.StateRunning
	}
	return ctx.Err()
}

// StopAll sets the state to stopped, unless a test has set it.
func (d *Dummy) StopAll(ctx context.Context, _ bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.status != failTask && d.status != monit.StateFailing {
		d.status = monit.StateStopped
	}
	return ctx.Err()
}

// UnmonitorAll does nothing.
func (d *Dummy) UnmonitorAll(ctx context.Context) error { return ctx.Err() }

// SetStatus sets the state for a test.
func (d *Dummy) SetStatus(status string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.status = status
}

// Observe returns the current state. There are no processes or, for -M dummy-nats, the three of
// cloudfoundry/bosh-agent, which the specs of the Director's suite expect in the output of `bosh instances --ps`: the
// third is failing.
func (d *Dummy) Observe(context.Context) (state string, processes []monit.Process, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	state = d.status
	if d.Applied != nil {
		if state == "" && d.Applied() {
			state = monit.StateRunning
		}
		processes = []monit.Process{
			process("process-1", monit.StateRunning, 144987, 100, 0.1),
			process("process-2", monit.StateRunning, 144988, 200, 0.2),
			process("process-3", monit.StateFailing, 144989, 300, 0.3),
		}
	}
	return cmp.Or(state, monit.StateUnknown), processes, nil
}

func process(name, state string, uptime, kb int, percent float64) monit.Process {
	p := monit.Process{Name: name, State: state}
	p.Uptime.Seconds, p.Memory.KB, p.Memory.Percent, p.CPU.Total = uptime, kb, percent, percent
	return p
}
