package jobs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"cambium/internal/retry"
	"cambium/internal/vcap"
	"cambium/jobs/monit"
	"cambium/jobs/script"
)

// Stages of a start that waits for scripts, recorded in the start request.
const (
	preStart  = "pre-start"  // the scripts run, and then the jobs are started
	postStart = "post-start" // the jobs were started, and the scripts run when all processes do
)

// HeldBack returns the monit files that must be gone before monit starts at boot, because current versions of monit
// start every service they find: those of a stopped instance and, if scripts is set, those of jobs that wait for their
// pre-start scripts.
func HeldBack(dirs vcap.Dirs, scripts bool) ([]string, error) {
	if !scripts && !isStopped(dirs) {
		return nil, nil
	}
	files, err := filepath.Glob(dirs.MonitFiles())
	if err != nil {
		return nil, fmt.Errorf("monit files: %w", err)
	}
	return files, nil
}

// HoldBack removes the files that HeldBack returns and records that jobs wait for their scripts. Jobs that the Director
// has stopped, or not started since the last apply, stay down. Call it before the supervisor starts. Instance.Start
// writes the files again.
func HoldBack(dirs vcap.Dirs, scripts bool) (removed []string, err error) {
	files, err := HeldBack(dirs, scripts)
	if err != nil {
		return nil, err
	}
	request := StartRequest{Dirs: dirs}
	record, _ := request.read() // one that cannot be read is replaced
	if scripts && !isStopped(dirs) && (len(files) > 0 || !record.Requested.IsZero()) {
		if err := request.setPending(preStart, time.Now()); err != nil {
			return nil, err
		}
	}
	for _, path := range files {
		if err := os.Remove(path); err != nil {
			return removed, fmt.Errorf("monit files: %w", err)
		}
		removed = append(removed, path)
	}
	return removed, nil
}

func isStopped(dirs vcap.Dirs) bool {
	_, err := os.Lstat(dirs.MonitStopped())
	return err == nil
}

// BootScripts starts the jobs that HoldBack has held back, as a deploy does: pre-start scripts, start, post-start
// scripts. It repeats a failed stage after a pause. The Director's start, stop, drain, apply or pre-start ends it.
type BootScripts struct {
	Instance *Instance
	// RunAll runs the scripts with that name of all jobs.
	RunAll func(ctx context.Context, jobs []string, name string, env map[string]string) error
	// Alone runs f while no request changes the instance. The context of f ends when such a request comes, which then
	// waits for f.
	Alone func(ctx context.Context, f func(context.Context))
	// Show is called with the error of each failed try, and with nil when it no longer applies.
	Show func(why error)

	settled atomic.Bool // nothing is held back for the rest of this process
	failed  atomic.Bool // the last try failed
}

// Pauses between two tries. What a script needs, such as a peer, may be available late.
var bootScriptsPause = retry.Backoff{Min: 5 * time.Second, Max: 5 * time.Minute, Jitter: 0.2}

const (
	// withheldPause is the interval at which Run checks whether jobs may start.
	withheldPause = time.Second
	// requestPause is the pause after a request of the Director that has not ended Run.
	requestPause = 3 * time.Second
	// comeUpLimit bounds the wait for all processes before the post-start scripts. comeUpPause is the interval of
	// polling.
	comeUpLimit = 5 * time.Minute
	comeUpPause = time.Second
)

// State returns the state of jobs that are held back: "starting", or "failing" after a failure. It returns "" if none
// are held back.
func (b *BootScripts) State() string {
	if b == nil || b.settled.Load() || b.stage() != preStart {
		return ""
	}
	if b.failed.Load() {
		return monit.StateFailing
	}
	return monit.StateStarting
}

func (b *BootScripts) stage() string {
	b.Instance.requests.Lock()
	defer b.Instance.requests.Unlock()
	record, err := b.Instance.startRequest().read()
	if err != nil {
		b.Instance.Log.WithError(err).Warn("cannot read whether jobs wait for their scripts; they do not")
	}
	return record.Pending
}

// Run returns when nothing is held back any more, or when ctx ends.
func (b *BootScripts) Run(ctx context.Context) {
	for b.Instance.CheckStart() != nil {
		if retry.Sleep(ctx, withheldPause) != nil {
			return
		}
	}
	for failures := 0; b.stage() != "" && ctx.Err() == nil; {
		pause := requestPause // another request may follow, such as stop after drain
		b.Alone(ctx, func(alone context.Context) {
			err := b.once(alone)
			if err == nil || alone.Err() != nil { // it failed because a request has come, or the agent stops
				return
			}
			b.failed.Store(true)
			b.Show(err)
			b.Instance.JobState(ctx)
			pause = bootScriptsPause.Pause(failures)
			failures++
		})
		if b.stage() == "" {
			break
		}
		if retry.Sleep(ctx, pause) != nil {
			return
		}
	}
	b.settled.Store(true)
	b.Show(nil)
}

// ErrRequest is the cause with which Alone cancels its context because a request has come.
var ErrRequest = errors.New("the Director has sent a request")

// once performs the remaining stages.
func (b *BootScripts) once(ctx context.Context) error {
	i := b.Instance
	if err := i.CheckStart(); err != nil {
		return err
	}
	spec, err := i.Spec()
	if err != nil {
		return err
	}
	stage := b.stage()
	if stage == preStart {
		if err := b.scripts(ctx, spec, preStart); err != nil {
			return fmt.Errorf("%w; no job is started", err)
		}
		if err := i.startAll(ctx, postStart); err != nil {
			return err
		}
		stage = postStart
		b.failed.Store(false)
		b.Show(nil)
	}
	if stage != postStart {
		return nil
	}
	if err := b.awaitProcesses(ctx); err != nil {
		return fmt.Errorf("post-start scripts wait: %w", err)
	}
	if err := b.scripts(ctx, spec, postStart); err != nil {
		return err
	}
	return i.changeRequest(func(r StartRequest) error { return r.setPending("", time.Now()) })
}

// scripts runs the scripts with that name. The error of failed scripts lists their logs.
func (b *BootScripts) scripts(ctx context.Context, spec Spec, name string) error {
	b.Instance.Log.WithField("script", name).Info("running the scripts of the jobs after the boot of the machine")
	err := b.RunAll(ctx, spec.JobNames(), name, map[string]string{})
	failed, is := errors.AsType[*script.Failed](err)
	if !is {
		return err
	}
	return fmt.Errorf("%w See %s", err, strings.Join(failed.Logs, ", "))
}

// awaitProcesses waits until all processes run.
func (b *BootScripts) awaitProcesses(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, comeUpLimit, fmt.Errorf("not all processes run after %s", comeUpLimit))
	defer cancel()
	for b.Instance.JobState(ctx) != monit.StateRunning {
		if err := retry.Sleep(ctx, comeUpPause); err != nil {
			return err
		}
	}
	return nil
}

// TakeOver cancels the start that the boot has begun, because the Director now starts or stops the jobs. No script of
// the boot may be running.
func (i *Instance) TakeOver() error {
	b := i.Boot
	if b == nil || b.settled.Load() {
		return nil
	}
	if b.stage() == "" {
		return nil
	}
	if err := i.changeRequest(StartRequest.forget); err != nil {
		return err
	}
	i.Log.Info("the Director takes over: the boot starts no job")
	b.Show(nil)
	return nil
}

// changeRequest changes the start request while no other goroutine uses it.
func (i *Instance) changeRequest(change func(StartRequest) error) error {
	i.requests.Lock()
	defer i.requests.Unlock()
	return change(i.startRequest())
}

// unsupervised reports whether the supervisor has a service that it does not supervise.
func unsupervised(processes []Process) bool {
	return slices.ContainsFunc(processes, func(p Process) bool { return p.State == monit.StateUnknown })
}
