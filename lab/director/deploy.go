package director

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Report is called after each step.
type Report func(step string, took time.Duration, err error)

// Plan is a sequence of steps of a Director.
type Plan struct{ steps []planned }

type planned struct {
	name string
	do   func(ctx context.Context) error
}

// Add appends a step.
func (p *Plan) Add(name string, do func(ctx context.Context) error) {
	p.steps = append(p.steps, planned{name, do})
}

// Run performs the steps in order. It stops at the first error.
func (p *Plan) Run(ctx context.Context, report Report) error {
	if report == nil {
		report = func(string, time.Duration, error) {}
	}
	for _, s := range p.steps {
		start := time.Now()
		err := s.do(ctx)
		report(s.name, time.Since(start), err)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

// CPI has the methods of a CPI that a Director needs for a plan.
type CPI interface {
	// AttachDisk returns the hint for the agent.
	AttachDisk(ctx context.Context, cid string) (hint any, err error)
	DetachDisk(ctx context.Context, cid string) error
}

// Deployment is the desired state of an instance.
type Deployment struct {
	// Spec is the complete apply spec. If it has no "configuration_hash", nothing is installed.
	Spec map[string]any
	// Settings is the argument of update_settings.
	Settings map[string]any
	// Disk is the CID of the persistent disk, or "" for none.
	Disk string
	// WatchTime bounds the wait for running processes; five minutes if zero.
	WatchTime time.Duration
}

// expect returns a step that calls a method and fails unless it returns want, which callers compare literally.
func (a *Agent) expect(want, method string, arguments ...any) func(context.Context) error {
	return func(ctx context.Context) error {
		value, err := a.Do(ctx, method, arguments...)
		if err == nil && want != "" && string(value) != want {
			err = fmt.Errorf("%s: got %.200s, want %s", method, value, want)
		}
		return err
	}
}

// optional returns a step that ignores that old agents do not have the method.
func (a *Agent) optional(do func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		err := do(ctx)
		var e *Exception
		if errors.As(err, &e) && strings.Contains(e.Message, "unknown message ") {
			return nil
		}
		return err
	}
}

// NewVM adds the steps after create_vm: wait, disk, settings, first apply, state.
func (a *Agent) NewVM(p *Plan, cpi CPI, d Deployment) {
	p.Add("ping", a.WaitReady)
	if d.Disk != "" {
		a.addDisk(p, cpi, d.Disk)
	}
	p.Add("update_settings", a.optional(a.expect(`"ok"`, "update_settings", d.Settings)))
	first := map[string]any{}
	for _, key := range []string{"networks", "deployment", "job", "index", "id"} {
		first[key] = d.Spec[key]
	}
	p.Add("apply (no jobs)", a.expect(`"applied"`, "apply", first))
	p.Add("get_state", func(ctx context.Context) error {
		_, err := a.State(ctx)
		return err
	})
}

func (a *Agent) addDisk(p *Plan, cpi CPI, cid string) {
	var hint any
	p.Add("attach_disk", func(ctx context.Context) (err error) {
		hint, err = cpi.AttachDisk(ctx, cid)
		return err
	})
	p.Add("ping", a.WaitReady)
	p.Add("add_persistent_disk", func(ctx context.Context) error {
		if hint == nil {
			return nil
		}
		return a.optional(a.expect("", "add_persistent_disk", cid, hint))(ctx)
	})
	p.Add("mount_disk", a.expect("", "mount_disk", cid))
}

func (a *Agent) dropDisk(p *Plan, cpi CPI, cid string) {
	p.Add("unmount_disk "+cid, a.expect("", "unmount_disk", cid))
	p.Add("remove_persistent_disk "+cid, a.optional(a.expect("", "remove_persistent_disk", cid)))
	p.Add("detach_disk "+cid, func(ctx context.Context) error { return cpi.DetachDisk(ctx, cid) })
}

// Start adds the last steps of every update: apply, scripts, processes, wait, scripts.
func (a *Agent) Start(p *Plan, d Deployment) {
	a.applyAndStart(p, d)
	a.awaitRunning(p, d)
}

func (a *Agent) applyAndStart(p *Plan, d Deployment) {
	p.Add("apply", a.expect(`"applied"`, "apply", d.Spec))
	p.Add("pre-start", a.script("pre-start", nil))
	p.Add("start", a.expect(`"started"`, "start"))
}

func (a *Agent) awaitRunning(p *Plan, d Deployment) {
	p.Add("get_state until running", func(ctx context.Context) error { return a.WaitRunning(ctx, d.WatchTime) })
	p.Add("post-start", a.script("post-start", nil))
}

// PostDeploy adds the step that runs on every instance after the whole deployment.
func (a *Agent) PostDeploy(p *Plan) { p.Add("post-deploy", a.script("post-deploy", nil)) }

func (a *Agent) script(name string, env map[string]string) func(context.Context) error {
	options := map[string]any{}
	if env != nil {
		options["env"] = env
	}
	return a.optional(a.expect("", "run_script", name, options))
}

// Stop adds the steps to stop an instance. shutdown is for machines that are deleted or get another disk.
func (a *Agent) Stop(p *Plan, d Deployment, shutdown bool) {
	next := "keep"
	if shutdown {
		next = "delete"
	}
	p.Add("pre-stop", a.script("pre-stop", map[string]string{
		"BOSH_VM_NEXT_STATE": next, "BOSH_INSTANCE_NEXT_STATE": "keep", "BOSH_DEPLOYMENT_NEXT_STATE": "keep"}))
	p.Add("drain", func(ctx context.Context) error {
		kind, spec := "update", d.Spec
		if shutdown {
			kind, spec = "shutdown", map[string]any{}
		}
		var seconds *int
		if err := a.Into(ctx, &seconds, "drain", kind, spec); err != nil {
			return err
		}
		if seconds == nil {
			return errors.New("drain: the value is not a number")
		}
		return nil
	})
	p.Add("stop", a.stop)
	p.Add("post-stop", a.script("post-stop", nil))
}

// stopTimeout is the time after which the Director stops to poll a stop task, without an error.
const stopTimeout = 300 * time.Second

func (a *Agent) stop(ctx context.Context) error {
	within, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	err := a.expect(`"stopped"`, "stop")(within)
	var e *Exception
	if within.Err() != nil && ctx.Err() == nil ||
		errors.As(err, &e) && strings.Contains(e.Message, "Timed out waiting for service") {
		return nil
	}
	return err
}

// Update adds the steps to update an instance on the same machine.
func (a *Agent) Update(p *Plan, cpi CPI, d Deployment, mounted string) {
	p.Add("get_state", func(ctx context.Context) error {
		_, err := a.State(ctx)
		return err
	})
	p.Add("prepare", a.expect(`"prepared"`, "prepare", d.Spec))
	a.Stop(p, d, mounted != d.Disk)
	p.Add("list_disk", func(ctx context.Context) error { return a.checkDisks(ctx, mounted) })
	switch {
	case mounted == d.Disk:
	case mounted == "":
		a.addDisk(p, cpi, d.Disk)
	case d.Disk == "":
		a.dropDisk(p, cpi, mounted)
	default:
		a.addDisk(p, cpi, d.Disk)
		// The Director names both disks though the method takes no arguments.
		p.Add("migrate_disk", a.expect("", "migrate_disk", mounted, d.Disk))
		a.dropDisk(p, cpi, mounted)
	}
	settings := map[string]any{}
	for key, value := range d.Settings {
		if key != "mbus" { // only new machines and changed servers get it
			settings[key] = value
		}
	}
	p.Add("update_settings", a.optional(a.expect(`"ok"`, "update_settings", settings)))
	a.Start(p, d)
}

func (a *Agent) checkDisks(ctx context.Context, want string) error {
	var cids []string
	if err := a.Into(ctx, &cids, "list_disk"); err != nil {
		return err
	}
	switch {
	case want == "" && len(cids) == 0, len(cids) > 0 && cids[0] == want:
		return nil
	}
	return fmt.Errorf("list_disk: got %v, want %q first", cids, want)
}

// State is the part of the get_state result that a Director reads.
type State struct {
	AgentID   string                     `json:"agent_id"`
	JobState  string                     `json:"job_state"`
	Networks  map[string]json.RawMessage `json:"networks"`
	Processes []struct {
		Name  string `json:"name"`
		State string `json:"state"`
	} `json:"processes"`
	VM struct {
		Name string `json:"name"`
	} `json:"vm"`
}

// State calls get_state.
func (a *Agent) State(ctx context.Context) (s State, err error) {
	err = a.Into(ctx, &s, "get_state")
	if err == nil && s.Networks == nil {
		err = errors.New("get_state: networks is null, which a Director cannot read")
	}
	return s, err
}

// WaitRunning polls the job state until it is "running", as a Director does during its watch time. The interval doubles
// from one to fifteen seconds.
func (a *Agent) WaitRunning(ctx context.Context, watch time.Duration) error {
	if watch == 0 {
		watch = 5 * time.Minute
	}
	ctx, cancel := context.WithTimeout(ctx, watch)
	defer cancel()
	pause := time.Second
	if a.Poll != 0 {
		pause = a.Poll
	}
	for {
		s, err := a.State(ctx)
		if err != nil {
			return err
		}
		if s.JobState == "running" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("job state is %q after %v, want \"running\"", s.JobState, watch)
		case <-time.After(pause):
		}
		pause = min(2*pause, 15*time.Second)
	}
}
