package cambium_test

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"cambium/internal/golden"
	"cambium/internal/testdoc"
)

// packageColumns are the places of the agent's packages in docs/packages.svg. A package imports only packages further
// right, and leaves below internal.
var packageColumns = [][]string{
	{"cmd/agent"},
	{"bootstrap", "blobstore", "agent"},
	{"infrastructure", "desired", "storage", "jobs", "mbus"},
	{"settings", "platform", "supervisor"},
}

// TestPackagesPicture draws the imports of the agent's packages, except those that others imply.
func TestPackagesPicture(t *testing.T) {
	imports := areaImports(t)
	boxes, columns := map[string]*testdoc.Box{}, make([][]*testdoc.Box, len(packageColumns))
	for i, names := range slices.Backward(packageColumns) {
		for _, from := range names {
			b := &testdoc.Box{Text: from}
			for _, to := range slices.Sorted(maps.Keys(imports[from])) {
				switch {
				case boxes[to] == nil:
					t.Errorf("%s imports %s, which is not further right in packageColumns", from, to)
				case !implied(imports, from, to):
					b.To = append(b.To, boxes[to])
				}
			}
			columns[i] = append(columns[i], b)
		}
		for _, b := range columns[i] {
			boxes[b.Text] = b
		}
	}
	for from := range imports {
		if boxes[from] == nil {
			t.Errorf("%s is not in packageColumns", from)
		}
	}
	if !t.Failed() {
		golden.Check(t, "../docs/packages.svg", testdoc.Picture("which package of the agent imports which", columns...))
	}
}

// areaImports returns what the agent's packages import, with subpackages as a part of their parent.
func areaImports(t *testing.T) map[string]map[string]bool {
	area := func(path string) string {
		path = strings.TrimPrefix(path, "cambium/")
		if rest, ok := strings.CutPrefix(path, "cmd/"); ok {
			return "cmd/" + strings.Split(rest, "/")[0]
		}
		return strings.Split(path, "/")[0]
	}
	all := map[string]map[string]bool{}
	for _, p := range linked(t) {
		from := area(p.ImportPath)
		if !p.ours() || from == "internal" {
			continue
		}
		if all[from] == nil {
			all[from] = map[string]bool{}
		}
		for _, imported := range p.Imports {
			if to := area(imported); strings.HasPrefix(imported, "cambium/") && to != from && to != "internal" {
				all[from][to] = true
			}
		}
	}
	return all
}

// implied reports whether something else that a package imports leads to another.
func implied(imports map[string]map[string]bool, from, to string) bool {
	for by := range imports[from] {
		if by != to && (imports[by][to] || implied(imports, by, to)) {
			return true
		}
	}
	return false
}

// TestSymptomsPicture draws the table of symptoms in docs/operating.md as a tree; an empty cell is the one above it.
func TestSymptomsPicture(t *testing.T) {
	page, err := os.ReadFile("docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "\n| symptom | command | cause |\n|---|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	columns := make([][]*testdoc.Box, 3)
	for line := range strings.SplitSeq(strings.ReplaceAll(table, "`", ""), "\n") {
		cells := strings.Split(strings.Trim(line, "|"), " | ")
		if len(cells) != len(columns) {
			t.Fatalf("a row has %d cells, want %d: %s", len(cells), len(columns), line)
		}
		for i, cell := range cells {
			if strings.TrimSpace(cell) == "" {
				continue
			}
			b := &testdoc.Box{Text: cell}
			columns[i] = append(columns[i], b)
			if i > 0 {
				before := columns[i-1][len(columns[i-1])-1]
				before.To = append(before.To, b)
			}
		}
	}
	golden.Check(t, "../docs/symptoms.svg", testdoc.Picture("symptom, command, cause", columns...))
	for _, command := range regexp.MustCompile("`(?:sudo )?(agent [a-z]+)").FindAllStringSubmatch(table, -1) {
		if !strings.Contains(string(page), "\n| `"+command[1]) {
			t.Errorf("the table of commands lacks %s", command[1])
		}
	}
}
