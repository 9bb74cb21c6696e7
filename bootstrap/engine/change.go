package engine

import (
	"context"
	"fmt"
	"slices"

	"cambium/internal/oneline"
)

// Change is a planned or completed change of the machine. Both have the same text, so that they can be compared. The
// text has no values that are generated during the change, such as identifiers, leases and passwords.
type Change struct {
	Step string `json:"step"`
	Text string `json:"text"`
	// After is the step that the plan presumes has been done: for example, a directory on a disk that is not formatted
	// yet. It is empty for a completed change.
	After string `json:"after,omitempty"`
	// Runs means that a program or service is started, whose own changes are unknown.
	Runs bool `json:"runs,omitempty"`
	// Detail is the change of the domain.
	Detail any `json:"detail,omitempty"`
}

// String formats the change for people.
func (c Change) String() string {
	if c.After != "" {
		return c.Text + "  (after " + c.After + ")"
	}
	return c.Text
}

// DomainChange is a change of a domain.
type DomainChange interface {
	fmt.Stringer
	// Runs reports whether the change starts a program or service.
	Runs() bool
}

// Changes converts the changes of a domain.
func Changes[C DomainChange](changes []C) []Change {
	var all []Change
	for _, c := range changes {
		all = append(all, Change{Text: c.String(), Runs: c.Runs(), Detail: c})
	}
	return all
}

// PlannedStep has the changes that a step would make.
type PlannedStep struct {
	Step     string   `json:"step"`
	Changes  []Change `json:"changes"`
	Warnings []string `json:"warnings,omitempty"`
	// Notes tell an operator what the boot would not do.
	Notes []string `json:"notes,omitempty"`
	// Error says why the step would fail, or why its changes are unknown.
	Error string `json:"error,omitempty"`
}

// Plan returns what each step would change. If a step would fail, only the steps that need it are omitted, so that the
// plan shows all problems at once.
func Plan(ctx context.Context, steps []Step) ([]PlannedStep, error) {
	if err := check(steps); err != nil {
		return nil, err
	}
	f := &Forecast{}
	failed := map[string]bool{} // steps that would fail, or need one that would
	var all []PlannedStep
	for _, s := range steps {
		if slices.ContainsFunc(s.Needs, func(need string) bool { return failed[need] }) {
			failed[s.Name] = true
			continue
		}
		if s.Wants == nil && s.Plan == nil || s.If != nil && !s.If() {
			continue
		}
		f.step = PlannedStep{Step: s.Name, Changes: []Change{}}
		switch err := s.plan(ctx, f); {
		case err == nil:
		case s.optional():
			f.Warn("%s", err)
		default:
			f.step.Error = oneline.Of(err.Error())
			failed[s.Name] = true
		}
		all = append(all, f.step)
	}
	return all, nil
}

// Forecast collects the changes that earlier steps and goals of a plan would make.
type Forecast struct {
	step    PlannedStep // the step that is being planned
	planned []Change
}

// add adds changes of the current step.
func (f *Forecast) add(changes []Change) {
	for _, c := range changes {
		c.Step = f.step.Step
		f.step.Changes, f.planned = append(f.step.Changes, c), append(f.planned, c)
	}
}

// Planned returns the changes of all earlier steps and goals.
func (f *Forecast) Planned() []Change { return f.planned }

// Warn adds a warning that the boot would report.
func (f *Forecast) Warn(format string, args ...any) {
	f.step.Warnings = append(f.step.Warnings, oneline.Of(fmt.Sprintf(format, args...)))
}

// Evidence adds a note about what the boot would not do.
func (f *Forecast) Evidence(format string, args ...any) {
	f.step.Notes = append(f.step.Notes, oneline.Of(fmt.Sprintf(format, args...)))
}
