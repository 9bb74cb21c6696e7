package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"cambium/cmd/agent/cli"
	"cambium/cmd/agent/completion"
	"cambium/cmd/agent/manpage"
	"cambium/internal/golden"
)

// screen runs a command and returns the text on its terminal: command line, output and exit code.
func screen(t *testing.T, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	fmt.Fprintf(&out, "$ %s\n", strings.Join(append([]string{"agent"}, args...), " "))
	code := dispatch(t.Context(), append([]string{"agent"}, args...), &out, &out)
	fmt.Fprintf(&out, "exit code %d\n", code)
	return out.String()
}

// TestScreens keeps what each command prints at 80 columns as files; -update writes them. The screens of status, timeline and
// doctor are in their packages.
func TestScreens(t *testing.T) {
	t.Setenv("COLUMNS", "")
	dir := t.TempDir()
	t.Chdir(dir)
	for name, content := range map[string]string{
		"agent.json":       `{"Infrastructure":{"Settings":{"Sources":[{"Type":"File","SettingsPath":"settings.json"}]}}}`,
		"settings.json":    `{"agent_id":"a-1","mbus":"nats://u:hunter2@10.0.0.6:4222","networks":{"n":{"type":"manual","ip":"10.0.0.9","netmask":"255.255.255.0"}},"disks":{"persistent":{"vol-1":"/dev/sdc"}}}`,
		"broken.json":      "{\"agent_id\": \"a-1\",\n \"networks\": {\"n\": {\"type\": \"manual\", \"ip\": \"here\"},},\n}\n",
		"base/bosh/.empty": "",
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	screens := map[string][]string{
		"help": {"help"}, "no-such-command": {"statsu"}, "no-such-flag": {"status", "--hurry"},
		"missing-argument": {"validate"},
		"settings":         {"settings", "-C", "agent.json", "-b", "base"},
		"settings-query":   {"settings", "-C", "agent.json", "-b", "base", "--query", "disks.persistent"},
		"validate-good":    {"validate", "settings.json"}, "validate-broken": {"validate", "broken.json"},
		"status-no-agent": {"status", "--file", "none.json"}, "log-level-no-agent": {"log-level", "--file", "none.json"},
		"log-level-unknown":   {"log-level", "loud"},
		"settings-query-none": {"settings", "-C", "agent.json", "-b", "base", "--query", "disks.temporary"},
		"validate-none":       {"validate", "none.json"}, "plan-no-config": {"plan", "-b", "base"},
		"timeline-no-agent": {"timeline", "--file", "none.json"}, "timeline-wrong-boot": {"timeline", "--boot", "1"},
		"support-exists": {"support", "-b", "base", "-C", "agent.json", "--file", "none.json", "--timeout", "100ms",
			"settings.json"},
		"disk": {"disk", "-b", "base", "accept", "vol-1"}, "disk-wrong-word": {"disk", "eject", "vol-1"},
		"compile-nothing": {"compile"},
		"version":         {"version"}, "run-no-platform": {"run"},
	}
	for _, c := range commands() {
		screens["help-"+c.Name] = []string{c.Name, "--help"}
	}
	got := map[string]string{}
	for name, args := range screens {
		text := screen(t, args...)
		for _, line := range strings.Split(text, "\n") {
			// An error is one line for logs, and what was typed is the user's.
			if utf8.RuneCountInString(line) > 80 && !strings.HasPrefix(line, "agent "+args[0]+": ") &&
				!strings.HasPrefix(line, "$ ") {
				t.Errorf("%s: wider than 80 columns: %s", name, line)
			}
		}
		got[name] = text
	}
	t.Chdir(packageDir)
	for name, text := range got {
		golden.Check(t, "screens/"+name+".txt", text)
	}
}

// packageDir is the working directory at the start of the tests.
var packageDir, _ = os.Getwd()

// TestAssetsFollowTheTable: what shells and man read on a VM is made from the table of commands; -update makes it again.
func TestAssetsFollowTheTable(t *testing.T) {
	assets := "../../../stemcell-assets/share/"
	var out bytes.Buffer
	var all []cli.Description
	if code := dispatch(t.Context(), []string{"agent", "help", "--json"}, &out, &out); code != 0 {
		t.Fatal(out.String())
	}
	if err := json.Unmarshal(out.Bytes(), &all); err != nil {
		t.Fatal(err)
	}
	for _, shell := range completion.Shells {
		script, _ := completion.Script(shell, "agent", all)
		golden.Check(t, assets+"agent."+shell, script)
	}
	pages := manpage.Pages("agent", "", all)
	for name, page := range pages {
		golden.Check(t, assets+"man/"+name, page)
	}
	// A page of a command that is gone must not stay.
	have, err := filepath.Glob("../../stemcell-assets/share/man/*")
	if err != nil || len(have) != len(pages) {
		t.Errorf("%d manual pages, %v; want %d: remove those of commands that are gone", len(have), err, len(pages))
	}
}
