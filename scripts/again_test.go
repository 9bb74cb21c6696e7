// Package scripts holds the programs that the Makefile calls; here are their tests.
package scripts

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// module is a package whose test fails as HOW says: once, always, or by a panic.
const module = `package unsteady

import (
	"os"
	"testing"
)

func TestSteady(t *testing.T) {}

func TestUnsteady(t *testing.T) {
	if _, err := os.Stat("ran"); err == nil && os.Getenv("HOW") != "always" {
		return
	}
	if err := os.WriteFile("ran", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if os.Getenv("HOW") == "panic" {
		panic("on request")
	}
	t.Error("on request")
}
`

func TestAgain(t *testing.T) {
	again, err := os.ReadFile("again")
	if err != nil {
		t.Fatal(err)
	}
	const listed = "# a comment\n\nTestUnsteady # its defect\n"
	for _, test := range []struct {
		name, list, ci, how string
		passes, repeats     bool
		says                string
	}{
		{"a listed test that fails once passes, and is named", listed, "true", "once", true, true, "UNSTEADY: TestUnsteady"},
		{"a listed test that fails twice is a failure", listed, "true", "always", false, true, "on request"},
		{"a test that is not listed is a failure", "# TestUnsteady\nTestUnsteadyToo\n", "true", "once", false, false, "TestUnsteady failed and is not listed"},
		{"a crash is a failure", listed, "true", "panic", false, false, "on request"},
		{"on a developer's machine every failure is one", listed, "", "once", false, false, "on request"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			scripts, dir := t.TempDir(), t.TempDir()
			for path, content := range map[string]string{
				filepath.Join(scripts, "again"): string(again), filepath.Join(scripts, "unsteady.txt"): test.list,
				filepath.Join(dir, "go.mod"): "module unsteady\n\ngo 1.26\n", filepath.Join(dir, "unsteady_test.go"): module,
			} {
				if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.Command("bash", filepath.Join(scripts, "again"), "^Test", ".", "-count=1")
			cmd.Dir, cmd.Env = dir, append(os.Environ(), "CI="+test.ci, "HOW="+test.how)
			output, err := cmd.CombinedOutput()
			if (err == nil) != test.passes || !strings.Contains(string(output), test.says) {
				t.Errorf("got %v, want passing %v, saying %q:\n%s", err, test.passes, test.says, output)
			}
			if repeated := strings.Contains(string(output), "run once more"); repeated != test.repeats {
				t.Errorf("run once more: %v, want %v\n%s", repeated, test.repeats, output)
			}
		})
	}
}
