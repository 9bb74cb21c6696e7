package agent

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"cambium/internal/testdoc"
)

// contractSection is a part of the contract: rules, each with its number and its text.
type contractSection struct {
	Section string
	Rules   [][2]string
}

// TestContract: docs/protocol.md has the rules, each rule is shown by a test, and the cases name no other.
func TestContract(t *testing.T) {
	var contract []contractSection
	check(t, json.Unmarshal([]byte(read(t, "testdata/contract.json")), &contract))
	var page strings.Builder
	var numbers []string
	for _, s := range contract {
		fmt.Fprintf(&page, "### %s\n\n| rule | |\n|---|---|\n", s.Section)
		for _, r := range s.Rules {
			fmt.Fprintf(&page, "| %s | %s |\n", r[0], r[1])
			numbers = append(numbers, r[0])
		}
		page.WriteString("\n")
	}
	check(t, testdoc.CheckPart("../docs/protocol.md", "contract", page.String(), *update))
	shown := map[string]bool{}
	for _, c := range conformanceCases(t) {
		for n := range strings.SplitSeq(regexp.MustCompile(`^[A-Z0-9.]+(, [A-Z0-9.]+)*`).FindString(c.Rule), ", ") {
			shown[n] = true
			if !slices.Contains(numbers, n) {
				t.Errorf("%q: the contract has no rule %q", c.Rule, n)
			}
		}
	}
	list := exec.Command("git", "ls-files", "*_test.go")
	list.Dir = ".."
	for name := range strings.FieldsSeq(string(must[[]byte](t)(list.Output()))) {
		for _, m := range namedRule.FindAllStringSubmatch(read(t, filepath.Join("..", name)), -1) {
			for n := range strings.SplitSeq(strings.ReplaceAll(m[1], " and ", ", "), ", ") {
				shown[n] = true
			}
			shown[m[2]], shown[m[3]+"."+m[4]] = true, true
		}
	}
	for _, n := range numbers {
		if !shown[n] {
			t.Errorf("no test names rule %s", n)
		}
	}
}

// namedRule finds the rules that tests name: in a comment, in the name of a case, in their own name.
var namedRule = regexp.MustCompile(`Contract ([A-Z0-9.]*[0-9](?:(?:, | and )[A-Z0-9.]*[0-9])*)|` +
	`["(]([A-Z0-9]+(?:\.[0-9]+)+)\b|func Test[A-Z][a-z]+([A-Z])0?([0-9]{1,2})[A-Z]`)
