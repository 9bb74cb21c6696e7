package main

import (
	"bytes"
	"strings"
	"testing"

	"cambium/cmd/agent/cli"
)

// Each command is listed once, in a line that fits a terminal, and explains itself.
func TestEveryCommandHasHelp(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range commands() {
		if seen[c.Name] {
			t.Errorf("%s is listed twice", c.Name)
		}
		seen[c.Name] = true
		var stdout, stderr bytes.Buffer
		code := dispatch(t.Context(), []string{"agent", c.Name, "--help"}, &stdout, &stderr)
		if code != cli.ExitOK || stderr.Len() != 0 || !strings.HasPrefix(stdout.String(), "usage: agent "+c.Name) {
			t.Errorf("agent %s --help: exit code %d, %q, %q on the standard error", c.Name, code, stdout.String(),
				stderr.String())
		}
	}
	var list bytes.Buffer
	commands().PrintHelp(&list)
	for _, line := range strings.Split(list.String(), "\n") {
		if len(line) > 80 {
			t.Errorf("longer than 80 columns: %s", line)
		}
	}
}

// -P takes what stemcells pass: ubuntu, and centos in those of CentOS. It is the platform's name, not the operating system's.
func TestPlatforms(t *testing.T) {
	for platform, want := range map[string]int{"ubuntu": cli.ExitOK, "centos": cli.ExitOK, "dummy": cli.ExitOK,
		"ubuntu-noble": cli.ExitFailed, "opensuse": cli.ExitFailed, "windows": cli.ExitFailed, "ubuntu\n": cli.ExitFailed,
		"": cli.ExitFailed} {
		var stdout, stderr bytes.Buffer
		o, code, ok := parseRun([]string{"-P", platform}, &stdout, &stderr)
		if code != want || ok != (want == cli.ExitOK) || o.platform != platform ||
			!ok && !strings.Contains(stderr.String(), "-P is ") {
			t.Errorf("-P %q: exit code %d, %v, %+v, %q; want %d", platform, code, ok, o, stderr.String(), want)
		}
	}
}
