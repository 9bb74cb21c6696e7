package scripts

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestChangelog: entries are separated, titles are headings behind the entries without one, and a release keeps the sections of earlier
// ones.
func TestChangelog(t *testing.T) {
	dir := t.TempDir()
	script, err := os.ReadFile("changelog")
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	run := func(args ...string) string {
		t.Helper()
		out, err := exec.Command(filepath.Join(dir, "scripts/changelog"), args...).Output()
		if err != nil {
			t.Fatalf("changelog %v: %v", args, err)
		}
		return string(out)
	}
	write("scripts/changelog", string(script))
	write("changelog/unreleased/a.md", "Bugfix: A title\n\nA paragraph.\n")
	write("changelog/unreleased/b.md", "- a point\n- without a newline")
	first := "## 1.0.0\n\n- a point\n- without a newline\n\n### Bugfix: A title\n\nA paragraph.\n\n"
	if got := run("1.0.0"); got != first {
		t.Errorf("got\n%s\nwant\n%s", got, first)
	}
	run("--cut", "1.0.0")
	write("changelog/unreleased/c.md", "A change.\n")
	second := "## 1.1.0\n\nA change.\n\n"
	run("--cut", "1.1.0")
	if got := run("1.0.0"); got != first {
		t.Errorf("after the next release: got\n%s\nwant\n%s", got, first)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "CHANGELOG.md")); err != nil || string(got) != "# Changelog\n\n"+second+first {
		t.Errorf("got\n%s\n%v, want\n%s", got, err, second+first)
	}
	if left, err := os.ReadDir(filepath.Join(dir, "changelog/unreleased")); err != nil || len(left) != 0 {
		t.Errorf("left in changelog/unreleased: %v, %v", left, err)
	}
}
