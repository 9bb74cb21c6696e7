package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPagesOfAProgram(t *testing.T) {
	commands := `[{"name": "status", "summary": "show the state", "usage": "agent status [flags]", "purpose": "Shows it.",
		"flags": [{"name": "--json", "usage": "print JSON"}]}]`
	dir := t.TempDir()
	if err := run([]string{"other", "1.2", dir}, strings.NewReader(commands)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"man/man8/other.8":                     `other\-status(8)`,
		"man/man8/other-status.8":              `"Cambium 1.2"`,
		"bash-completion/completions/other":    "--json",
		"zsh/vendor-completions/_other":        "show the state",
		"fish/vendor_completions.d/other.fish": "-l json",
	} {
		text, err := os.ReadFile(filepath.Join(dir, path))
		if err != nil || !bytes.Contains(text, []byte(want)) {
			t.Errorf("%s: %v, no %q in it: %s", path, err, want, text)
		}
	}
	if err := run([]string{"other", "1.2", dir}, strings.NewReader("commands:")); err == nil ||
		!strings.Contains(err.Error(), "agent help --json") {
		t.Errorf("got %v", err)
	}
}
