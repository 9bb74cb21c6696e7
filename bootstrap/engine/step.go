package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"cambium/internal/advice"
	"cambium/internal/oneline"
	"cambium/internal/status"
)

// Step is one row of the boot table.
type Step struct {
	Name string
	// Needs are the steps that must have ended well (or with a warning) before this one.
	Needs []string
	// Yields are steps that go first, however they end; no step waits longer than yieldLimit for
	// them. A background step that is still yielding at the verdict begins after its announcement.
	Yields []string
	// If decides, once Needs are done, whether there is anything to do; nil means always.
	If func() bool
	// Deadline bounds the step; zero means that only the boot's own context does. A step that
	// ignores it counts as failed hangGrace later.
	Deadline time.Duration
	// AnnounceAfter is for a step that waits without a deadline: when the step has run this long,
	// what it waits for is announced as the verdict, and the step goes on.
	AnnounceAfter time.Duration
	// Optional steps warn where others fail the boot.
	Optional bool
	// Background steps are not waited for when the boot is judged; they imply Optional.
	Background bool
	// Always lets the step run to its end although another has failed the boot: the verdict
	// reaches the Director only if there is a network and a bus.
	Always bool
	// Advice tells an operator what to do when the step fails.
	Advice string
	// Wants returns the states that the step brings about, in their order. It only reads: a plan calls it, too.
	Wants func(ctx context.Context, r Report) ([]Goal, error)
	// Run does the rest of the step after these states have been reached: it starts or records something.
	Run func(ctx context.Context, s *Span) error
	// Plan says what Run would change, and changes nothing; nil if Run changes nothing on the machine.
	Plan func(ctx context.Context, f *Forecast) ([]Change, error)
}

// Goal is a desired state of one domain.
type Goal struct {
	// Plan returns what Converge would change, given what is forecast, and only reads.
	Plan func(ctx context.Context, f *Forecast) ([]Change, error)
	// Converge brings the state about and returns the changes made.
	Converge func(ctx context.Context) ([]Change, error)
	// Optional goals warn where others fail the step.
	Optional bool
}

// Report takes the warnings and the evidence of a step, in a plan as in a boot.
type Report interface {
	// Warn records something that is wrong but does not keep the machine from being ready.
	Warn(format string, args ...any)
	// Evidence records a fact that helps to understand the outcome.
	Evidence(format string, args ...any)
}

// each calls do with the goals of a step, in their order, up to the first that fails.
func (s Step) each(ctx context.Context, r Report, do func(Goal) error) error {
	if s.Wants == nil {
		return nil
	}
	goals, err := s.Wants(ctx, r)
	if err != nil {
		return err
	}
	for _, g := range goals {
		err := do(g)
		if err != nil && !g.Optional {
			return err
		}
		if err != nil {
			r.Warn("%s", err)
		}
	}
	return nil
}

// plan puts what the step would change into the forecast.
func (s Step) plan(ctx context.Context, f *Forecast) error {
	err := s.each(ctx, f, func(g Goal) error {
		changes, err := g.Plan(ctx, f)
		f.add(changes)
		return err
	})
	if err != nil || s.Plan == nil {
		return err
	}
	changes, err := s.Plan(ctx, f)
	f.add(changes)
	return err
}

// run makes these changes.
func (s Step) run(ctx context.Context, span *Span) error {
	err := s.each(ctx, span, func(g Goal) error {
		made, err := g.Converge(WithSpan(ctx, span))
		span.Changed(made...)
		return err
	})
	if err != nil || s.Run == nil {
		return err
	}
	return s.Run(ctx, span)
}

// optional reports a step whose failure only warns.
func (s Step) optional() bool { return s.Optional || s.Background }

// Verdict is the result of a boot.
type Verdict struct {
	State    status.State
	Step     string // the step that failed
	Cause    error
	Advice   string
	Warnings []string
}

// Line is the one sentence for the operator: "step: cause: what to do".
func (v Verdict) Line() string {
	if v.Cause == nil {
		return string(v.State)
	}
	line := v.Step + ": " + oneline.Of(v.Cause.Error())
	if v.Advice != "" {
		line += ": " + v.Advice
	}
	return line
}

// errTable means that the table itself is wrong: a need that no step provides, or a cycle.
var errTable = errors.New("boot table")

// check proves that every step that is waited for is an earlier row, which also excludes cycles.
func check(steps []Step) error {
	seen := map[string]bool{}
	for _, s := range steps {
		if s.Name == "" || s.Wants == nil && s.Run == nil || seen[s.Name] {
			return fmt.Errorf("%w: row %q has no name, no function, or a name used before", errTable, s.Name)
		}
		for _, need := range slices.Concat(s.Needs, s.Yields) {
			if !seen[need] {
				return fmt.Errorf("%w: %s needs %q, which no earlier row provides", errTable, s.Name, need)
			}
		}
		seen[s.Name] = true
	}
	return nil
}

// thenRetry ends the advice of a verdict: the boot is retried after a pause, or when an operator asks for it.
func thenRetry(what string) string {
	return cmp.Or(what, "correct the cause") + ", then run 'agent retry'"
}

// adviceFor returns the advice of an error, else the one for its kind, else that of the step.
func adviceFor(err error, fallback string) string {
	if own := advice.Of(err); own != "" {
		return own
	}
	switch {
	// Root gets EPERM because of a container engine's profile, not because of the settings.
	case errors.Is(err, unix.EPERM):
		return "if this is a container, run it privileged"
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return "make room on its file system"
	case errors.Is(err, unix.EROFS), errors.Is(err, unix.EIO):
		return "look for errors of the disk in the kernel log ('journalctl -k'); repair or replace it, and reboot"
	}
	return fallback
}
