package action

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"cambium/jobs/script"
)

// canceledErrand is the exit code of an errand that was canceled before it began: that of a process ended by SIGTERM.
const canceledErrand = 143

func runErrand(d Deps) func(context.Context, *string) (script.Outcome, error) {
	return func(ctx context.Context, name *string) (script.Outcome, error) {
		if err := d.Instance.CheckStart(); err != nil {
			return script.Outcome{}, err
		}
		spec, err := d.Instance.Spec()
		if err != nil {
			return script.Outcome{}, err
		}
		job := spec.ErrandName()
		if name != nil && *name != "" {
			job = *name
		}
		if job == "" || len(spec.JobNames()) == 0 {
			return script.Outcome{}, errors.New("no job is applied, so there is no errand to run")
		}
		if !slices.Contains(spec.JobNames(), job) {
			return script.Outcome{}, fmt.Errorf("could not find errand %s: no such job is applied", job)
		}
		return detached(ctx, func(ctx context.Context) (script.Outcome, error) { return d.Scripts.Errand(ctx, job) })
	}
}
