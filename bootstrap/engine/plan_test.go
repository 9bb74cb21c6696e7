package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"cambium/internal/status"
)

// plans is a step that would make these changes, and would fail with err.
func plans(err error, texts ...string) func(context.Context, *Forecast) ([]Change, error) {
	return func(context.Context, *Forecast) (changes []Change, _ error) {
		for _, text := range texts {
			changes = append(changes, Change{Text: text})
		}
		return changes, err
	}
}

func never(context.Context, *Span) error { panic("a plan runs nothing") }

func TestPlanWalksTheTable(t *testing.T) {
	got, err := Plan(t.Context(), []Step{
		{Name: "settings", Plan: plans(nil), Run: never},
		{Name: "bus", Needs: []string{"settings"}, Run: never},
		{Name: "none", If: func() bool { return false }, Plan: plans(nil, "never"), Run: never},
		{Name: "keys", Optional: true, Plan: plans(errors.New("no\nuser"), "some"), Run: never},
		{Name: "disk", Needs: []string{"settings"}, Plan: plans(errors.New("refused")), Run: never},
		{Name: "directories", Needs: []string{"disk"}, Plan: plans(nil, "never"), Run: never},
		{Name: "jobs", Needs: []string{"directories"}, Plan: plans(nil, "never"), Run: never},
		{Name: "tools", Needs: []string{"keys"}, Plan: func(_ context.Context, f *Forecast) ([]Change, error) {
			f.Warn("%d of them", len(f.Planned()))
			return []Change{{Text: "remove", After: "keys"}}, nil
		}, Run: never},
	})
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, s := range got {
		lines = append(lines, fmt.Sprintf("%s %v %q %s", s.Step, s.Changes, s.Warnings, s.Error))
	}
	want := "settings [] [] \nkeys [some] [\"no; user\"] \ndisk [] [] refused\ntools [remove  (after keys)] [\"1 of them\"] "
	if text := strings.Join(lines, "\n"); text != want {
		t.Errorf("got\n%s\nwant\n%s", text, want)
	}
	if got[1].Changes[0].Step != "keys" {
		t.Errorf("a change of step %q, want keys", got[1].Changes[0].Step)
	}
	if _, err := Plan(t.Context(), []Step{{Name: "a", Needs: []string{"b"}, Run: never}}); !errors.Is(err, errTable) {
		t.Errorf("wrong table: got %v", err)
	}
}

// The states that a step wants are planned and brought about in their order; what it does besides comes last.
func TestGoals(t *testing.T) {
	for _, c := range []struct {
		name     string
		optional bool
		err      error
		changes  string
		warnings string
		failure  string
	}{
		{"done", false, nil, "first,second,ran", "", ""},
		{"optional fails", true, errors.New("no\nmount"), "first,second,ran", "no; mount", ""},
		{"fails", false, errors.New("no\nmount"), "first", "", "no; mount"},
	} {
		t.Run(c.name, func(t *testing.T) {
			goal := func(text string, err error, optional bool) Goal {
				changes := []Change{{Text: text}}
				return Goal{Optional: optional,
					Plan:     func(context.Context, *Forecast) ([]Change, error) { return changes, err },
					Converge: func(context.Context) ([]Change, error) { return changes, err }}
			}
			step := Step{Name: "tree",
				Wants: func(context.Context, Report) ([]Goal, error) {
					return []Goal{goal("first", c.err, c.optional), goal("second", nil, false)}, nil
				},
				Plan: plans(nil, "ran"),
				Run: func(_ context.Context, s *Span) error {
					s.Changed(Change{Text: "ran"})
					return nil
				}}
			steps, err := Plan(t.Context(), []Step{step})
			if err != nil {
				t.Fatal(err)
			}
			var texts []string
			for _, change := range steps[0].Changes {
				texts = append(texts, change.Text)
			}
			got, warnings, failure := strings.Join(texts, ","), strings.Join(steps[0].Warnings, ","), steps[0].Error
			if got != c.changes || warnings != c.warnings || failure != c.failure {
				t.Errorf("planned %s, warnings %q, error %q", got, warnings, failure)
			}
			e, _ := newEngine(t)
			v, rest, err := e.Run(t.Context(), []Step{step})
			if err != nil {
				t.Fatal(err)
			}
			rest()
			d := e.Status.Snapshot()
			got, failure = strings.Join(d.Steps[0].Changes, ","), d.Steps[0].Error
			warnings = strings.ReplaceAll(strings.Join(d.Warnings, ","), "tree: ", "")
			if got != c.changes || warnings != c.warnings || failure != c.failure {
				t.Errorf("made %s, warnings %q, error %q (%s)", got, warnings, failure, v.Line())
			}
		})
	}
}

// A part is there when its work has ended, with a length of its own.
func TestPart(t *testing.T) {
	e, _ := newEngine(t)
	_, _, err := e.Run(t.Context(), []Step{{Name: "ephemeral-disk", Run: func(_ context.Context, s *Span) error {
		for _, name := range []string{"make-file-system /dev/vdb1", "mount /dev/vdb1"} {
			end := s.Part(name)
			if n := len(e.Status.Snapshot().Steps[0].Parts); name[:4] == "make" && n != 0 {
				t.Errorf("%d parts before the first has ended", n)
			}
			end()
		}
		return nil
	}}})
	if err != nil {
		t.Fatal(err)
	}
	parts := e.Status.Snapshot().Steps[0].Parts
	if len(parts) != 2 || parts[0].Name != "make-file-system /dev/vdb1" || parts[0].End <= parts[0].Start ||
		parts[1].Start < parts[0].End {
		t.Errorf("the parts are %+v, want both, one after the other", parts)
	}
}

// Parts of a step replace those that began at the same time.
func TestPartsAreReplaced(t *testing.T) {
	e, _ := newEngine(t)
	_, _, err := e.Run(t.Context(), []Step{{Name: "settings", Run: func(_ context.Context, s *Span) error {
		first, second := time.Now(), time.Now().Add(time.Second)
		s.Parts(first, []status.Part{{Name: "drive", Outcome: "no answer"}, {Name: "HTTP", Outcome: "no answer"}})
		if parts := e.Status.Snapshot().Steps[0].Parts; len(parts) != 2 || parts[0].End != 0 {
			t.Errorf("while they run the parts are %+v, want two without an end", parts)
		}
		s.Parts(first, []status.Part{{Name: "drive", Outcome: "failed", End: 5}})
		s.Parts(second, []status.Part{{Name: "drive", Outcome: "used", End: 7}})
		return nil
	}}})
	if err != nil {
		t.Fatal(err)
	}
	parts := e.Status.Snapshot().Steps[0].Parts
	if len(parts) != 2 || parts[0].End-parts[0].Start != 5 || parts[1].Start-parts[0].Start < int64(time.Second) ||
		parts[1].Outcome != "used" {
		t.Errorf("the parts are %+v, want one of each beginning", parts)
	}
}

// What a step changes is in the status; also what a background step changes after the verdict.
func TestChangesAreRecorded(t *testing.T) {
	e, _ := newEngine(t)
	changes := func(texts ...string) func(context.Context, *Span) error {
		return func(_ context.Context, s *Span) error {
			for _, text := range texts {
				s.Changed(Change{Text: text, Detail: "not for the status"})
			}
			s.Changed()
			return nil
		}
	}
	_, rest, err := e.Run(t.Context(), []Step{
		{Name: "keys", Run: changes("one", "two")},
		{Name: "time", Background: true, Yields: []string{"keys"}, Run: changes("late")},
	})
	if err != nil {
		t.Fatal(err)
	}
	if d := e.Status.Snapshot(); d.Changes() != 2 || strings.Join(d.Steps[0].Changes, ",") != "one,two" {
		t.Errorf("%d changes, of keys %q; want one and two", d.Changes(), d.Steps[0].Changes)
	}
	if err := e.Status.Update(func(d *status.Document) { d.Unchanged = true }); err != nil {
		t.Fatal(err)
	}
	rest()
	if d := e.Status.Snapshot(); d.Unchanged || d.Changes() != 3 {
		t.Errorf("unchanged %v with %d changes; want it taken back", d.Unchanged, d.Changes())
	}
}
