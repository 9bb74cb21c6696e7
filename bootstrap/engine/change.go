package engine

import (
	"context"
	"fmt"
	"slices"
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

// Changes turns a domain's changes into the boot's.
func Changes[C fmt.Stringer](changes []C) []Change {
	var all []Change
	for _, c := range changes {
		all = append(all, Change{Text: c.String(), Detail: c})
	}
	return all
}

// PlannedStep is what one step of the table would change.
type PlannedStep struct {
	Step     string   `json:"step"`
	Changes  []Change `json:"changes"`
	Warnings []string `json:"warnings,omitempty"`
	// Notes are what the boot does not do and an operator may want to know.
	Notes []string `json:"notes,omitempty"`
	// Error is why the step would fail the boot, or why its changes cannot be known.
	Error string `json:"error,omitempty"`
}

// Plan walks the table in order and asks each step what it would change; it changes nothing. After
// a step that would fail, only the steps that need it are left out: the plan shows everything that
// is wrong at once.
func Plan(ctx context.Context, steps []Step) ([]PlannedStep, error) {
	if err := check(steps); err != nil {
		return nil, err
	}
	f := &Forecast{planned: map[string][]Change{}}
	failed := map[string]bool{} // steps that would fail, or need one that would
	var all []PlannedStep
	for _, s := range steps {
		if slices.ContainsFunc(s.Needs, func(need string) bool { return failed[need] }) {
			failed[s.Name] = true
			continue
		}
		if s.Plan == nil || s.If != nil && !s.If() {
			continue
		}
		f.step, f.warnings, f.notes = s.Name, nil, nil
		changes, err := s.Plan(ctx, f)
		for i := range changes {
			changes[i].Step = s.Name
		}
		f.planned[s.Name] = changes
		planned := PlannedStep{Step: s.Name, Changes: slices.Concat([]Change{}, changes), Warnings: f.warnings, Notes: f.notes}
		switch {
		case err == nil:
		case s.optional():
			planned.Warnings = append(planned.Warnings, OneLine(err.Error()))
		default:
			planned.Error = OneLine(err.Error())
			failed[s.Name] = true
		}
		all = append(all, planned)
	}
	return all, nil
}
