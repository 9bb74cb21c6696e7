package metrics

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"cambium/internal/testdoc"
)

var update = flag.Bool("update", false, "write the table into docs/operating.md")

// TestOperatingPageListsTheMetrics writes the table from what a machine with a sample of each metric prints.
func TestOperatingPageListsTheMetrics(t *testing.T) {
	print := func(root bool) []byte {
		m, out := everything(), bytes.Buffer{}
		m.Superuser = root
		write(&out, m)
		return out.Bytes()
	}
	everyone, page := parsed(t, print(false)), strings.Builder{}
	page.WriteString("\n| metric | labels | meaning | needs root |\n|---|---|---|---|\n")
	families := parsed(t, print(true))
	for _, name := range slices.Sorted(maps.Keys(families)) {
		f, root := families[name], ""
		if everyone[name] == nil {
			root = "yes"
		}
		var labels []string
		for _, l := range f.Metric[0].GetLabel() {
			labels = append(labels, "`"+l.GetName()+"`")
		}
		fmt.Fprintf(&page, "| `%s` | %s | %s | %s |\n", name, strings.Join(labels, ", "), f.GetHelp(), root)
	}
	page.WriteString("\n")
	if err := testdoc.CheckPart("../../../docs/operating.md", "metrics", page.String(), *update); err != nil {
		t.Error(err)
	}
}
