// Package dummysupervisor stands in for monit where there are no processes to run: in the test
// suites of Directors, which drive hundreds of agents without machines ("-M dummy" and
// "-M dummy-nats"). It has the methods of jobs.Supervisor and touches nothing.
package dummysupervisor

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"sync"

	"cambium/jobs/monit"
)

// Dummy answers that everything runs until it is stopped.
type Dummy struct {
	// StatusFile, where set, overrides the answers ("-M dummy-nats"): {"status":"failing",
	// "processes":[…]} with the members of get_state's processes. A test writes it; a missing
	// file changes nothing.
	StatusFile string

	mu      sync.Mutex // guards stopped
	stopped bool
}

type override struct {
	Status    string          `json:"status"`
	Processes []monit.Process `json:"processes"`
}

func (d *Dummy) override() (o override, found bool) {
	if d.StatusFile == "" {
		return o, false
	}
	data, err := os.ReadFile(d.StatusFile)
	if err != nil {
		return o, false
	}
	return o, json.Unmarshal(data, &o) == nil
}

// Reload has nothing to read.
func (d *Dummy) Reload(ctx context.Context) error { return ctx.Err() }

// StartAll makes the state running. An override of "fail_task" makes it fail, for tests of
// failing deployments.
func (d *Dummy) StartAll(ctx context.Context) error {
	if o, found := d.override(); found && o.Status == "fail_task" {
		return errors.New("the dummy was told to fail")
	}
	d.set(false)
	return ctx.Err()
}

// StopAll makes the state stopped.
func (d *Dummy) StopAll(ctx context.Context, _ bool) error {
	d.set(true)
	return ctx.Err()
}

// UnmonitorAll has nothing to leave alone.
func (d *Dummy) UnmonitorAll(ctx context.Context) error { return ctx.Err() }

func (d *Dummy) set(stopped bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stopped = stopped
}

// State is "running", "stopped", or what the status file says.
func (d *Dummy) State(context.Context) string {
	if o, found := d.override(); found && o.Status != "" {
		return o.Status
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped {
		return monit.StateStopped
	}
	return monit.StateRunning
}

// Processes are those of the status file.
func (d *Dummy) Processes(context.Context) ([]monit.Process, error) {
	o, _ := d.override()
	return o.Processes, nil
}
