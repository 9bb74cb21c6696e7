package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"

	"cambium/agent"
	"cambium/bootstrap"
	"cambium/internal/atomicfile"
	"cambium/internal/command"
	"cambium/internal/status"
	"cambium/internal/vcap"
	"cambium/jobs"
	"cambium/jobs/monit"
	"cambium/jobs/script"
)

// holdBack decides which jobs the supervisor does not start when it starts.
type holdBack struct {
	machine *bootstrap.Machine
	manager monitServices
}

// due reports whether the machine has just booted and its jobs must wait for their scripts.
func (h holdBack) due(ctx context.Context) bool {
	return h.machine.Settings.Effective().ScriptsOnBoot(h.machine.Linux.ScriptsOnBoot) &&
		!atomicfile.Exists(vcap.RunDir.HeldBack()) && !h.manager.Running(ctx, monit.UnitName)
}

// files returns the files that remove would delete.
func (h holdBack) files(ctx context.Context) ([]string, error) {
	return jobs.HeldBack(h.machine.Dirs, h.due(ctx))
}

// remove deletes the monit files of jobs that must not start yet: those of a stopped instance, or those that wait for
// their scripts. Call it before the supervisor reads the files.
func (h holdBack) remove(ctx context.Context) ([]string, error) {
	removed, err := jobs.HoldBack(h.machine.Dirs, h.due(ctx))
	if err != nil {
		return removed, err
	}
	if err := mark(vcap.RunDir.HeldBack()); err != nil {
		h.machine.Log.WithError(err).Warn("cannot record that the jobs of this boot have been held back or not")
	}
	return removed, nil
}

func mark(path string) error {
	return errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o600))
}

// newBootScripts reports failures in the status, and the first one also in an alert.
func newBootScripts(b *booting, instance *jobs.Instance, scripts script.Runner) *jobs.BootScripts {
	var told atomic.Bool
	run := func(ctx context.Context, jobs []string, name string, env map[string]string) error {
		if err := command.AwaitEnded(ctx, name); err != nil {
			return err
		}
		return scripts.RunAll(ctx, jobs, name, env)
	}
	return &jobs.BootScripts{Instance: instance, RunAll: run, Alone: b.dispatcher.RunAlone, Show: func(why error) {
		b.display.warn(status.ScriptsOnBoot, "scripts of jobs failed after the boot; repeating them", why)
		if why != nil && !told.Swap(true) {
			b.alerts.Send(agent.ScriptsAlert(why.Error()))
		}
	}}
}
