//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTimeline draws what the agent prints, and refuses everything else with one sentence.
func TestTimeline(t *testing.T) {
	boot, err := os.ReadFile("../agent/timeline/testdata/timeline-ready.json")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		document string
		stderr   string
	}{
		"a boot":      {string(boot), ""},
		"nothing":     {"", "is not what agent timeline --json prints: EOF"},
		"half of it":  {string(boot[:len(boot)/2]), "is not what agent timeline --json prints: unexpected EOF"},
		"a picture":   {"<svg/>", "is not what agent timeline --json prints"},
		"status.json": {`{"version":1,"steps":[]}`, "it has no rows, or no time"},
		"no time":     {`{"rows":[{}]}`, "it has no rows, or no time"},
		"huge":        {strings.Repeat(" ", maxChart+1) + string(boot), "is not what agent timeline --json prints"},
	} {
		path := filepath.Join(t.TempDir(), "boot.json")
		if err := os.WriteFile(path, []byte(c.document), 0o600); err != nil {
			t.Fatal(err)
		}
		stdout, stderr, code := runLab(t, "timeline", path)
		if drawn := strings.HasPrefix(stdout, "<svg "); drawn != (c.stderr == "") || drawn != (code == 0) ||
			!strings.Contains(stderr, c.stderr) || strings.Count(stderr, "\n") > 1 {
			t.Errorf("%s: exit code %d, %q", name, code, stderr)
		}
		if strings.Contains(stdout, "NaN") {
			t.Errorf("%s: the picture has a NaN", name)
		}
	}
}
