package cambium_test

import (
	"fmt"
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

// TestSiteHasThePages: a page without a line in the navigation is found by links alone.
func TestSiteHasThePages(t *testing.T) {
	site, err := os.ReadFile("scripts/mkdocs.yml")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob("docs/*.md")
	if err != nil || len(pages) < 10 {
		t.Fatalf("pages %v, %v", pages, err)
	}
	for _, page := range pages {
		if !strings.Contains(string(site), ": "+page+"\n") {
			t.Errorf("scripts/mkdocs.yml has no line for %s", page)
		}
	}
}

// phrase is a turn of phrase that a native speaker does not use, with the usual one.
type phrase struct {
	part             string // of all that the pattern matches; looking for it is a hundred times faster
	pattern, allowed *regexp.Regexp
	better           string
}

func turn(part, pattern, allowed, better string) phrase {
	if !strings.Contains(pattern, part) {
		panic(fmt.Sprintf("%q is not in %q", part, pattern))
	}
	return phrase{part, regexp.MustCompile(pattern), regexp.MustCompile(allowed), better}
}

const never = `$^`

var wording = []phrase{
	turn(" no ", `\b(is|was|are|were) no (error|reason|problem|proof|file|directory|JSON|number|secret|text|device|block device|`+
		`path|name|link|mount|disk|server|certificate|address)s?\b`, `[Tt]here (is|was|are|were) no `, "is not a …"),
	turn(" none of ", `\b(is|was|are|were) none of (?:the )?[a-z]`, never, "is not one of"),
	turn("none", `\bthat (is|are) none\b`, never, "that is invalid, or not a …"),
	turn("tell", `\btells? (whether|if|that|what|how|why|of|more)\b`, `\b(can|cannot|to) tell `, "reports, says or shows"),
	turn("hoever", `\b[Ww]hoever\b`, never, "the process that, any user who"),
	turn("what ", `\bwhat (is|was) there\b`, never, "name the noun"),
	turn("of which there", `\bof which there\b`, never, "a clause with a noun"),
	turn(" this is: ", `\bwhich [a-z]+ this is: `, never, "identify the …:"),
	turn(", that ", `, that (it|they) (is|are) [a-z]+ is (no|not a) (problem|reason|error)\b`, never,
		"a clause with a noun"),
	// What is left behind, behind a controller or late is behind; what follows is after.
	turn("behind", `\bbehind\b`, `\b(left|leaves?|nothing|files|mount|%s|lags|round) behind\b|`+
		`\b(clock|hours|is|moment|still be|be|waits|or|return ")\W* ?behind|\bbehind"|`+
		`\bbehind (a|the|its|it|another)? ?(SCSI|loop|free loop|link|pointer|signed|local port|Director's back|back|mount|`+
		`new mount|device|device-mapper|root partition's back|CPI's program)|`+
		`image behind it|2\.1 behind it|server behind it|clean up behind|behind signed`, "after"),
	turn("in the place of", `\bin the place of\b`, never, "in place of"),
	turn("inside of", `\binside of\b`, never, "inside, or in"),
	turn("ee that ", `\b[Ss]ee that [a-z']`, `\b(cannot|not) see that `, "check that"),
	turn(" else than", `\b(something|anything|nothing) else than\b`, never, "… other than"),
	turn("another", `\banother [a-z ]{1,20} than\b`, never, "a … other than"),
	turn("aside", `\b(put|puts|putting) (it |them )?aside\b`, never, "set aside"),
	turn("not a usable", `\bnot a usable\b`, never, "not a valid"),
	turn(" no ", `\bknows? no [a-z]`, never, "does not have, or does not support"),
	turn(" tried again", `\b(is|was|are|were) tried again\b`, never, "is retried"),
	turn("into", `\bbelongs? into\b`, never, "belongs in"),
	turn("control group", `\bcontrol groups? of version\b`, never, "cgroup v1, cgroup v2"),
	turn(" of ", `\bis of (another|the other) [a-z]+\b`, never, "has a different …, or belongs to another …"),
	turn(" not ", `\b(Debug|Info|Warn|Error)\("[a-z' ]+ not (written|sent|set|listed|flushed|notified|recorded|removed)"`,
		never,
		"cannot write, send, …"),
}

// TestWording: what people read has none of them, in documents as in the program's messages and comments.
func TestWording(t *testing.T) {
	out, err := exec.Command("git", "ls-files", "*.go", "*.md", "Makefile", "scripts", "stemcell-assets").Output()
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
			for _, p := range wording {
				if !strings.Contains(line, p.part) {
					continue
				}
				if found := p.pattern.FindString(line); found != "" && !p.allowed.MatchString(line) {
					t.Errorf("%s:%d: %q; better: %s", path, n, found, p.better)
				}
			}
		}
	}
}
