package cambium_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	pageLink    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	pageHeading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	fencedBlock = regexp.MustCompile("(?ms)^```.*?^```$")
	notInAnchor = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// TestLinksLead: every relative link of a page leads to a file, and its fragment to a heading there.
func TestLinksLead(t *testing.T) {
	out, err := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md").Output()
	if err != nil {
		t.Fatal(err)
	}
	pages := map[string]string{}
	for name := range strings.FieldsSeq(string(out)) {
		if data, err := os.ReadFile(name); err == nil { // else it was deleted in the work tree
			pages[name] = fencedBlock.ReplaceAllString(string(data), "")
		}
	}
	anchors := func(page string) map[string]bool {
		all := map[string]bool{"": true}
		for _, h := range pageHeading.FindAllStringSubmatch(page, -1) {
			all[strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(h[1]), ""), " ", "-")] = true
		}
		return all
	}
	for name, page := range pages {
		for _, link := range pageLink.FindAllStringSubmatch(page, -1) {
			if strings.Contains(link[1], ":") {
				continue // another site
			}
			path, fragment, _ := strings.Cut(link[1], "#")
			to := name
			if path != "" {
				to = filepath.Join(filepath.Dir(name), path)
			}
			if _, err := os.Stat(to); err != nil || pages[to] != "" && !anchors(pages[to])[fragment] {
				t.Errorf("%s: the link to %s leads nowhere", name, link[1])
			}
		}
	}
}

// wording are turns of phrase that a native speaker does not use, each with the usual one.
var wording = map[*regexp.Regexp]string{
	regexp.MustCompile(`\b(is|was|are|were) no (error|reason|problem|proof|file|directory|JSON|number|secret|text)s?\b`): "is not a …",
	regexp.MustCompile(`\btells? whether\b`):                                                      "reports whether",
	regexp.MustCompile(`\bbehind the (key|name|command|word|flag|verdict|root partition)\b`):      "after the …",
	regexp.MustCompile(`\bwhich [a-z]+ this is: `):                                                "identify the …:",
	regexp.MustCompile(`, that (it|they) (is|are) [a-z]+ is (no|not a) (problem|reason|error)\b`): "a clause with a noun",
}

// TestWording: what people read has none of them, in documents as in the program's messages and comments.
func TestWording(t *testing.T) {
	out, err := exec.Command("git", "ls-files", "*.go", "*.md").Output()
	if err != nil {
		t.Fatal(err)
	}
	for path := range strings.FieldsSeq(string(out)) {
		if path == "docs_test.go" || path == "CONTRIBUTING.md" { // they name the patterns
			continue
		}
		text, err := os.ReadFile(path)
		if os.IsNotExist(err) {
			continue // removed and not committed yet
		}
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for line := range strings.Lines(string(text)) {
			n++
			for pattern, better := range wording {
				if found := pattern.FindString(line); found != "" && !strings.Contains(line, "here "+found) {
					t.Errorf("%s:%d: %q; better: %s", path, n, found, better)
				}
			}
		}
	}
}
