package cambium_test

import (
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// How a test cites a rule of docs/contract.md; see the page's first paragraph.
var (
	inTable   = regexp.MustCompile(`(?m)^ \{"rule": "((?:[0-9B][0-9.]*, )*[0-9B][0-9.]*) `)
	inComment = regexp.MustCompile(`(?m)^\s*// Contract ((?:[A-Z]\.[0-9]+, )*[A-Z]\.[0-9]+)`)
	inCase    = regexp.MustCompile(`\(([A-Z]\.[0-9]+)\)`)
	inName    = regexp.MustCompile(`func TestRoot([A-Z])([0-9]{2})[A-Z]`)
	ruleRow   = regexp.MustCompile(`(?m)^\| ([0-9A-Z]+(?:\.[0-9]+)+) \| .+ \|$`)
)

// cited returns the numbers that a test's source cites.
func cited(source string) (numbers []string) {
	for _, citation := range []*regexp.Regexp{inTable, inComment, inCase} {
		for _, m := range citation.FindAllStringSubmatch(source, -1) {
			numbers = append(numbers, strings.Split(m[1], ", ")...)
		}
	}
	for _, m := range inName.FindAllStringSubmatch(source, -1) {
		n, _ := strconv.Atoi(m[2])
		numbers = append(numbers, m[1]+"."+strconv.Itoa(n))
	}
	return numbers
}

// TestContract: a rule that a test cites is in docs/contract.md, and a rule there is cited by a test.
func TestContract(t *testing.T) {
	page, err := os.ReadFile("docs/contract.md")
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]int{}
	for _, m := range ruleRow.FindAllStringSubmatch(string(page), -1) {
		if _, twice := tests[m[1]]; twice {
			t.Errorf("docs/contract.md has rule %s twice", m[1])
		}
		tests[m[1]] = 0
	}
	out, err := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard", "*_test.go", "agent/testdata/conformance.json").Output()
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.FieldsSeq(string(out)) {
		if name == "contract_test.go" {
			continue // its citations are examples
		}
		source, err := os.ReadFile(name)
		if err != nil {
			continue // deleted in the work tree
		}
		for _, number := range cited(string(source)) {
			if _, known := tests[number]; !known {
				t.Errorf("%s cites rule %s, which docs/contract.md does not have", name, number)
				continue
			}
			tests[number]++
		}
	}
	for number, n := range tests {
		if n == 0 {
			t.Errorf("docs/contract.md: no test cites rule %s", number)
		}
	}
}

func TestCitations(t *testing.T) {
	const source = "[\n {\"rule\": \"1.4.1, B.1 unknown method\", \"method\": \"hop\"}\n]\n// Contract S.5, S.6.\nfunc TestRootD07X(t *testing.T) {}\n\"(D.18)\""
	if got := strings.Join(cited(source), " "); got != "1.4.1 B.1 S.5 S.6 D.18 D.7" {
		t.Errorf("got %s", got)
	}
}
