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

// Step is a row of the boot table.
type Step struct {
	Name string
	// Needs lists the steps that must have succeeded, with or without warnings, before this one starts.
	Needs []string
	// Yields lists steps that should end first, whether they succeed or not. The step waits for them for at most
	// yieldLimit. A background step that is still waiting at the verdict starts after the announcement.
	Yields []string
	// If reports whether the step has anything to do. It is called when all Needs are done; nil means always.
	If func() bool
	// Deadline bounds the duration of the step; zero means no limit. A step that ignores it counts as failed after
	// hangGrace.
	Deadline time.Duration
	// AnnounceAfter is for a step that waits without a deadline. When the step has run this long, what it is waiting
	// for is announced as the verdict, and the step continues.
	AnnounceAfter time.Duration
	// Optional steps only warn if they fail.
	Optional bool
	// Background steps do not delay the verdict. They are also Optional.
	Background bool
	// Always lets the step run to its end even if another one has failed the boot, because the verdict reaches the
	// Director only if there are a network and a bus.
	Always bool
	// Advice says what an operator can do if the step fails.
	Advice string
	// Wants returns the desired states of the step, in order. It only reads, because a plan calls it, too.
	Wants func(ctx context.Context, r Report) ([]Goal, error)
	// Run does the rest of the step, after the desired states are reached: it starts or records something.
	Run func(ctx context.Context, s *Span) error
	// Plan returns what Run would change. It may be nil if Run does not change the machine.
	Plan func(ctx context.Context, f *Forecast) ([]Change, error)
}

// Goal is a desired state of one domain.
type Goal struct {
	// Plan returns what Converge would change after the forecast changes. It only reads.
	Plan func(ctx context.Context, f *Forecast) ([]Change, error)
	// Converge establishes the state and returns the changes made.
	Converge func(ctx context.Context) ([]Change, error)
	// Optional goals only warn if they fail.
	Optional bool
}

// Report receives the warnings and the evidence of a step, both in a plan and in a boot.
type Report interface {
	// Warn records a problem that does not keep the machine from being ready.
	Warn(format string, args ...any)
	// Evidence records a fact that helps to understand the result.
	Evidence(format string, args ...any)
}

// each calls do with the goals of a step in order, until one fails.
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

// plan adds what the step would change to the forecast.
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

// run performs the step.
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

// optional reports whether a failure of the step only warns.
func (s Step) optional() bool { return s.Optional || s.Background }

// Verdict is the result of a boot.
type Verdict struct {
	State    status.State
	Step     string // the failed step
	Cause    error
	Advice   string
	Warnings []string
}

// Line returns the verdict as one line for operators: "step: cause: advice".
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

// errTable means that the table is invalid: a step needs an unknown step, or there is a cycle.
var errTable = errors.New("boot table")

// check returns an error unless each step waits only for steps in earlier rows, which also excludes cycles.
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

// thenRetry appends to an advice that the boot is retried after a pause or on request.
func thenRetry(what string) string {
	return cmp.Or(what, "correct the cause") + ", then run 'agent retry'"
}

// adviceFor returns the advice of an error, or that for its kind, or fallback.
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
