package action

import (
	"context"
	"errors"
	"fmt"

	"cambium/agent/task"
	"cambium/jobs"
	"cambium/jobs/script"
)

// Scripts runs the scripts of releases.
type Scripts interface {
	RunAll(ctx context.Context, jobs []string, name string, env map[string]string) error
	Drain(ctx context.Context, jobs []string, args script.DrainArgs) error
	Errand(ctx context.Context, job string) (script.Outcome, error)
}

// drain always answers 0, because it waits for a dynamic drain itself.
func drain(d Deps) func(context.Context, string, *jobs.Spec) (int, error) {
	return func(ctx context.Context, kind string, next *jobs.Spec) (int, error) {
		current, err := d.Instance.Spec()
		if err != nil {
			return 0, err
		}
		args, err := drainArgs(kind, current, next)
		if err != nil {
			return 0, err
		}
		if kind == "shutdown" {
			d.NotifyShutdown(ctx)
		}
		err = d.Instance.Unmonitor(ctx)
		if err == nil {
			_, err = detached(ctx, func(ctx context.Context) (struct{}, error) {
				return struct{}{}, d.Scripts.Drain(ctx, current.JobNames(), args)
			})
		}
		// The caller that canceled ignores the result; the scripts have ended.
		if errors.Is(context.Cause(ctx), task.ErrCanceled) {
			return 0, nil
		}
		return 0, err
	}
}

func drainArgs(kind string, current jobs.Spec, next *jobs.Spec) (script.DrainArgs, error) {
	args := script.DrainArgs{PersistentDisk: current.PersistentDisk}
	if next != nil {
		args.NextPersistentDisk = &next.PersistentDisk
	}
	switch kind {
	case "shutdown":
		args.JobChange, args.HashChange = "job_shutdown", "hash_unchanged"
		return args, nil
	case "update":
		if next == nil {
			return args, errors.New("drain update needs the new apply spec")
		}
	default:
		return args, fmt.Errorf("unknown drain type %q: expected shutdown or update", kind)
	}
	args.JobChange = "job_changed"
	if len(current.JobNames()) == 0 {
		args.JobChange = "job_new"
	}
	switch current.ConfigurationHash {
	case "":
		args.HashChange = "hash_new"
	case next.ConfigurationHash:
		args.HashChange = "hash_unchanged"
	default:
		args.HashChange = "hash_changed"
	}
	for _, name := range next.PackageNames() {
		have, installed := current.Packages[name]
		if !installed || have.Digest != next.Packages[name].Digest {
			args.UpdatedPackages = append(args.UpdatedPackages, name)
		}
	}
	return args, nil
}
