package action

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
)

// named remembers which disks were to be migrated.
type named struct {
	Disks
	from, to string
}

func (n *named) Migrate(_ context.Context, from, to string) error {
	n.from, n.to = from, to
	return nil
}

// The Director names both disks, the CLI neither.
func TestMigrateDiskArguments(t *testing.T) {
	for name, c := range map[string]struct{ arguments, from, to, fails string }{
		"both":     {`["old","new"]`, "old", "new", ""},
		"none":     {`[]`, "", "", ""},
		"surplus":  {`["old","new",3]`, "old", "new", ""},
		"null":     {`[null]`, "", "", "argument 1"},
		"a number": {`["old",3]`, "", "", "argument 2"},
		"empty":    {`["old",""]`, "", "", "argument 2"},
	} {
		t.Run(name, func(t *testing.T) {
			var arguments []json.RawMessage
			if err := json.Unmarshal([]byte(c.arguments), &arguments); err != nil {
				t.Fatal(err)
			}
			disks := &named{}
			run, err := diskRows(disks)["migrate_disk"].Bind(arguments)
			if c.fails != "" {
				if err == nil || !strings.Contains(err.Error(), c.fails) {
					t.Errorf("error %v, want one about %s", err, c.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, err := run(t.Context()); err != nil || disks.from != c.from || disks.to != c.to {
				t.Errorf("migrated %q to %q, %v; want %q to %q", disks.from, disks.to, err, c.from, c.to)
			}
		})
	}
}
