package faults

import (
	"flag"
	"fmt"
	"strings"
	"testing"

	"cambium/internal/testdoc"
)

var update = flag.Bool("update", false, "rewrite the table of docs/operating.md")

// TestTableOfThePage generates the table in docs/operating.md.
func TestTableOfThePage(t *testing.T) {
	var text strings.Builder
	text.WriteString("| fault | `agent status` | `--wait` | `agent doctor`, first finding | `agent metrics` | console |" +
		" what differs for `vcap` and for logins by `bosh ssh` |\n|---|---|---|---|---|---|---|\n")
	for _, f := range Table {
		fmt.Fprintf(&text, "| %s | %s | %d | %s | `%s` | %s | %s |\n", f.Name, f.Status.cell(), f.Wait, f.Doctor.cell(),
			strings.TrimSpace(f.Metrics), strings.TrimSpace(f.Console), f.Vcap.cell())
	}
	if err := testdoc.CheckPart("../../docs/operating.md", "faults", text.String(), *update); err != nil {
		t.Error(err)
	}
}

func (s Screen) cell() string { return fmt.Sprintf("%d, %s", s.Code, strings.TrimSpace(s.Text)) }

func (o Other) cell() string {
	var parts []string
	if o.Status.Text != "" {
		parts = append(parts, "status "+o.Status.cell())
	}
	if o.Doctor.Text != "" {
		parts = append(parts, "doctor "+o.Doctor.cell())
	}
	if o.NoSample {
		parts = append(parts, "no sample")
	}
	return strings.Join(parts, "; ")
}

// TestContains: the parts of a cell must be in order.
func TestContains(t *testing.T) {
	for _, c := range []struct {
		text, pattern string
		want          bool
	}{
		{"a b c", "a … c", true}, {"a b c", "c … a", false}, {"a", "", true}, {"a a", "a … a", true},
		{"a", "a … a", false},
	} {
		if got := contains(c.text, c.pattern); got != c.want {
			t.Errorf("contains(%q, %q) = %v", c.text, c.pattern, got)
		}
	}
}
