package logs

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestJournal: the journal stands in for the agent's log where that one has nothing of this boot, and nowhere else.
func TestJournal(t *testing.T) {
	says := func(text string, err error) func(context.Context, io.Writer) error {
		return func(_ context.Context, w io.Writer) error {
			_, writeErr := io.WriteString(w, text)
			return errors.Join(writeErr, err)
		}
	}
	entries := says("entries", nil)
	current := func(c Collector) string { return filepath.Join(c.Dirs.BoshLog(), "current") }
	anEarlierBoot := time.Unix(1, 0)
	for name, row := range map[string]struct {
		prepare func(t *testing.T, c Collector)
		journal func(context.Context, io.Writer) error
		types   string
		filters []string
		want    string
	}{
		"no log": {journal: entries, types: "agent", want: "current"},
		"no directory": {journal: entries, types: "agent", want: "current",
			prepare: func(t *testing.T, c Collector) { remove(t, c.Dirs.BoshLog()) }},
		"a log": {journal: entries, types: "agent", want: "current",
			prepare: func(t *testing.T, c Collector) { write(t, current(c), "log") }},
		"an empty log": {journal: entries, types: "agent", want: "current journal.log",
			prepare: func(t *testing.T, c Collector) { write(t, current(c), "") }},
		"a log of an earlier boot": {journal: entries, types: "agent", want: "current journal.log",
			prepare: func(t *testing.T, c Collector) {
				write(t, current(c), "old")
				if err := os.Chtimes(current(c), anEarlierBoot, anEarlierBoot); err != nil {
					t.Fatal(err)
				}
			}},
		"a rotated log": {journal: entries, types: "agent", want: "@400 current", prepare: func(t *testing.T, c Collector) {
			write(t, current(c), "")
			write(t, filepath.Join(c.Dirs.BoshLog(), "@400"), "log")
		}},
		"a link to the system's log": {journal: entries, types: "agent", want: "current",
			prepare: func(t *testing.T, c Collector) {
				write(t, filepath.Join(c.Root, "var/log/bosh-agent.log"), "log")
				link(t, filepath.Join(c.Root, "var/log/bosh-agent.log"), current(c))
			}},
		"a link to a log that is not there yet": {journal: entries, types: "agent", want: "current",
			prepare: func(t *testing.T, c Collector) {
				link(t, filepath.Join(c.Root, "var/log/bosh-agent.log"), current(c))
			}},
		"a filter for the log": {journal: entries, types: "agent", filters: []string{"current"},
			want: "current"},
		"a filter for something else": {journal: entries, types: "agent", filters: []string{"journal.log"}},
		"a filter does not hide that a log is there": {journal: entries, types: "agent", filters: []string{"journal.log"},
			prepare: func(t *testing.T, c Collector) { write(t, current(c), "log") }},
		"other logs":                    {journal: entries, types: "job,system"},
		"an empty journal":              {journal: says("", nil), types: "agent"},
		"a journal that cannot be read": {journal: says("half", errors.New("broken")), types: "agent"},
		"no journal":                    {types: "agent"},
	} {
		t.Run(name, func(t *testing.T) {
			c := collector(t)
			c.Journal = row.journal
			if row.prepare != nil {
				row.prepare(t, c)
			}
			got := collect(t, c, Selection{row.types, row.filters})
			if names(got) != row.want {
				t.Errorf("got %q, want %q", names(got), row.want)
			}
			for _, name := range []string{"./journal.log", "./current"} {
				if content, found := got[name]; found && content != "entries" && (name == "./journal.log" || row.prepare == nil) {
					t.Errorf("%s holds %q", name, content)
				}
			}
		})
	}
}

func TestJournalIsCanceled(t *testing.T) {
	c := collector(t)
	stop := errors.New("canceled by the Director")
	ctx, cancel := context.WithCancelCause(t.Context())
	c.Journal = func(ctx context.Context, _ io.Writer) error {
		cancel(stop)
		return ctx.Err()
	}
	if err := c.Collect(ctx, Selection{Types: "agent"}, io.Discard); !errors.Is(err, stop) {
		t.Errorf("got %v, want %v", err, stop)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func link(t *testing.T, target, name string) {
	t.Helper()
	if err := os.Symlink(target, name); err != nil {
		t.Fatal(err)
	}
}
