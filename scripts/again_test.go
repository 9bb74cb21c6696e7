// Package scripts holds the programs that the Makefile calls; here are their tests.
package scripts

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// module is a package whose tests end as the environment says, and remember that they ran.
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
		panic("as it was told")
	}
	t.Error("as it was told")
}
`

func TestAgain(t *testing.T) {
	again, err := filepath.Abs("again")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, ci, how string
		passes        bool
		says          string
	}{
		{"a test that fails once passes, and is named", "true", "once", true, "UNSTEADY: TestUnsteady"},
		{"a test that fails twice is a failure", "true", "always", false, "run once more"},
		{"a crash is a failure", "true", "panic", false, "as it was told"},
		{"on a developer's machine every failure is one", "", "once", false, "as it was told"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for name, content := range map[string]string{"go.mod": "module unsteady\n\ngo 1.26\n", "unsteady_test.go": module} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.Command(again, "^Test", ".", "-count=1")
			cmd.Dir, cmd.Env = dir, append(os.Environ(), "CI="+test.ci, "HOW="+test.how)
			output, err := cmd.CombinedOutput()
			if (err == nil) != test.passes || !strings.Contains(string(output), test.says) {
				t.Errorf("got %v, want passing %v, saying %q:\n%s", err, test.passes, test.says, output)
			}
			if second := strings.Contains(string(output), "run once more"); second != (test.ci != "" && test.how != "panic") {
				t.Errorf("run again: %v\n%s", second, output)
			}
		})
	}
}
