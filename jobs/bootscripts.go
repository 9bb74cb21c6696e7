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

// Stages of a start that waits for its scripts, in the record of the start request.
const (
	preStart  = "pre-start"  // the scripts run, then the jobs are started
	postStart = "post-start" // the jobs were started; their scripts run when all processes do
)

// HoldBack makes the jobs of a machine that has just booted wait for their pre-start scripts: it records that, and
// removes the files that the supervisor would start the jobs by. Jobs that the Director has stopped, or not started
// since the last apply, are not started by the boot either. Call it before the supervisor is started.
func HoldBack(dirs vcap.Dirs) (removed []string, err error) {
	files, held, err := heldBack(dirs)
	if err != nil || !held {
		return nil, err
	}
	if err := (StartRequest{Dirs: dirs}).pend(preStart, time.Now()); err != nil {
		return nil, err
	}
	for _, path := range files {
		if err := os.Remove(path); err != nil {
			return removed, fmt.Errorf("monit files: %w", err)
		}
		removed = append(removed, path)
	}
	return removed, nil
}

// FilesHeldBack are the files that HoldBack removes.
func FilesHeldBack(dirs vcap.Dirs) ([]string, error) {
	files, _, err := heldBack(dirs)
	return files, err
}

func heldBack(dirs vcap.Dirs) (files []string, held bool, err error) {
	if _, err := os.Lstat(dirs.MonitStopped()); err == nil {
		return nil, false, nil
	}
	files, err = filepath.Glob(dirs.MonitFiles())
	if err != nil {
		return nil, false, fmt.Errorf("monit files: %w", err)
	}
	// A record that cannot be read is replaced.
	record, _ := (StartRequest{Dirs: dirs}).read()
	return files, len(files) > 0 || !record.Requested.IsZero(), nil
}

// BootScripts starts the jobs that HoldBack has held back, as a deploy does: pre-start scripts, start, post-start
// scripts. What fails is repeated after a pause. The Director's start, stop, drain, apply or pre-start ends it.
type BootScripts struct {
	Instance *Instance
	// RunAll runs the script of that name of all jobs.
	RunAll func(ctx context.Context, jobs []string, name string, env map[string]string) error
	// Alone runs f while no request changes the instance. f's context ends when such a request comes, which then waits
	// for the end of f.
	Alone func(ctx context.Context, f func(context.Context))
	// Show is called with the failure of each try, and with nil when there is nothing to tell any more.
	Show func(why error)

	settled atomic.Bool // nothing is held back, for the rest of this process
	failed  atomic.Bool // the last try failed
}

// Pauses between two tries: what a script waits for, such as a peer, may come late.
var bootScriptsPause = retry.Backoff{Min: 5 * time.Second, Max: 5 * time.Minute, Jitter: 0.2}

const (
	// withheldPause is the interval at which Run asks whether jobs may be started.
	withheldPause = time.Second
	// requestPause is the pause after a request of the Director that did not end Run.
	requestPause = 3 * time.Second
	// comeUpLimit bounds the wait of the post-start scripts for the processes, comeUpPause is the interval of asking.
	comeUpLimit = 5 * time.Minute
	comeUpPause = time.Second
)

// State is the state of jobs that are held back: "starting", or "failing" after a failure; empty if none are.
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

// Run returns when nothing is held back any more, or with ctx.
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

// ErrRequest is the cause of the end of the context that Alone gives, when a request has come.
var ErrRequest = errors.New("the Director has sent a request")

// once goes through the stages that are left.
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
	return i.changeRequest(func(r StartRequest) error { return r.pend("", time.Now()) })
}

// scripts runs the scripts of that name. The error of failed ones says where their logs are.
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

// TakeOver ends what the boot has begun: the Director starts the jobs, or does not. Call it only while no script of the
// boot runs.
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

// changeRequest has the record of the start request to itself.
func (i *Instance) changeRequest(change func(StartRequest) error) error {
	i.requests.Lock()
	defer i.requests.Unlock()
	return change(i.startRequest())
}

// unsupervised reports whether the supervisor lists a service that it does not supervise.
func unsupervised(processes []Process) bool {
	return slices.ContainsFunc(processes, func(p Process) bool { return p.State == monit.StateUnknown })
}
