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
	check(t, testdoc.Generated("../docs/protocol.md", "contract", page.String(), *update))
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
	var tests strings.Builder
	for name := range strings.FieldsSeq(string(must[[]byte](t)(list.Output()))) {
		if !strings.HasPrefix(name, "agent/contract_") {
			tests.WriteString(read(t, filepath.Join("..", name)))
		}
	}
	for _, n := range numbers {
		// In a comment, in the name of a case, in that of a test.
		named := `Contract ([A-Z0-9.]+(, | and ))*` + regexp.QuoteMeta(n) + `\b|"` + regexp.QuoteMeta(n) + `\b`
		if letter, number, ok := strings.Cut(n, "."); ok && letter > "9" {
			named += fmt.Sprintf(`|func Test\w*%s%02s`, letter, number)
		}
		if !shown[n] && !regexp.MustCompile(named).MatchString(tests.String()) {
			t.Errorf("no test names rule %s", n)
		}
	}
}
