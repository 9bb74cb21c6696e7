package engine

import (
	"context"
	"fmt"
	"slices"

	"cambium/internal/oneline"
)

// Change is one thing that a boot changes on the machine, planned or done. A change that is
// planned has the same text as the same change done, so that the two can be compared: values that
// are generated while it is done (identifiers, leases, passwords) do not occur in it.
type Change struct {
	Step string `json:"step"`
	Text string `json:"text"`
	// After is the step whose result the plan presumes: a directory on a disk that is yet to be
	// formatted. It is empty in what was done.
	After string `json:"after,omitempty"`
	// Runs marks a program or service that is started: what it changes in turn is not known.
	Runs bool `json:"runs,omitempty"`
	// Detail is the change as its domain knows it, for programs.
	Detail any `json:"detail,omitempty"`
}

// String is the line for people.
func (c Change) String() string {
	if c.After != "" {
		return c.Text + "  (after " + c.After + ")"
	}
	return c.Text
}

// DomainChange is a change as a domain knows it.
type DomainChange interface {
	fmt.Stringer
	// Runs reports whether it starts a program or service.
	Runs() bool
}

// Changes turns a domain's changes into the boot's.
func Changes[C DomainChange](changes []C) []Change {
	var all []Change
	for _, c := range changes {
		all = append(all, Change{Text: c.String(), Runs: c.Runs(), Detail: c})
	}
	return all
}

// PlannedStep lists the changes that one step of the table would make.
type PlannedStep struct {
	Step     string   `json:"step"`
	Changes  []Change `json:"changes"`
	Warnings []string `json:"warnings,omitempty"`
	// Notes tell an operator what the boot leaves undone.
	Notes []string `json:"notes,omitempty"`
	// Error says why the step would fail the boot, or why its changes cannot be known.
	Error string `json:"error,omitempty"`
}

// Plan walks the table in order and asks each step what it would change; it changes nothing. After
// a step that would fail, only the steps that need it are left out: the plan shows everything that
// is wrong at once.
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

// Forecast collects the changes that earlier steps and goals of a plan will make.
type Forecast struct {
	step    PlannedStep // that is being planned
	planned []Change
}

// add appends changes of the step that is being planned.
func (f *Forecast) add(changes []Change) {
	for _, c := range changes {
		c.Step = f.step.Step
		f.step.Changes, f.planned = append(f.step.Changes, c), append(f.planned, c)
	}
}

// Planned are the changes of all earlier steps and goals.
func (f *Forecast) Planned() []Change { return f.planned }

// Warn adds what the boot would warn of.
func (f *Forecast) Warn(format string, args ...any) {
	f.step.Warnings = append(f.step.Warnings, oneline.Of(fmt.Sprintf(format, args...)))
}

// Evidence adds what is worth knowing though the boot does not do it, as a note.
func (f *Forecast) Evidence(format string, args ...any) {
	f.step.Notes = append(f.step.Notes, oneline.Of(fmt.Sprintf(format, args...)))
}
