//go:build linux

package main

import (
	"bytes"
	"cambium/cmd/agent/completion"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"cambium/internal/status"
	"cambium/lab/director"
)

// runLab runs the command line with a directory of its own for state.
func runLab(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	t.Setenv("CAMBIUM_LAB_DIR", t.TempDir())
	var out, errs bytes.Buffer
	code = run(t.Context(), args, &out, &errs)
	return out.String(), errs.String(), code
}

func TestExitStatus(t *testing.T) {
	for _, c := range []struct {
		args   string
		code   int
		stdout string
		stderr string
	}{
		{"", 2, "", "usage: lab COMMAND"},
		{"help", 0, "usage: lab COMMAND", ""},
		{"logss", 2, "", `did you mean "logs"?`},
		{"frobnicate", 2, "", `unknown command "frobnicate"`},
		{"call", 2, "", "wrong number of arguments"},
		{"disk paint x", 2, "", `"paint" is not one of attach`},
		{"cache fill", 2, "", `"fill" is not prune`},
		{"cache prune --older -1h", 2, "", "--older -1h0m0s"},
		{"disk attach ../x", 2, "", "disk id"},
		{"disk attach x --size -1", 2, "", "want a size such as 512M"},
		{"up --publish 70000", 2, "", "port 70000"},
		{"up --source floppy", 2, "", `source "floppy" is not one of`},
		{"clean no-such-lab", 0, "", "lab no-such-lab had left no files behind"},
		{"completion tcsh", 2, "", "unknown shell"},
		{"clean ../x", 1, "", "lab name"},
		{"clean no-such-lab --json", 0, `"cleaned": []`, "lab no-such-lab had left no files behind"},
		{"machine paint", 2, "", `"paint" is not one of delete, kill, reboot, start, stop`},
		{"deploy", 2, "", "wrong number"},
		{"deploy /nonexistent", 1, "", "no such file"},
		{"--lab x ls", 2, "", "unknown command"},
		{"ls --nonsense", 2, "", "nonsense"},
		{"call --lab no-such-lab ping", 1, "", "lab no-such-lab is not up"},
		{"call --lab ../x ping", 1, "", "lab name"},
		{"call --url https://127.0.0.1:1 ping", 1, "", "refused"},
		{"call --url nats://127.0.0.1:1 ping", 2, "", "--agent-id"},
		{"call --url nats://127.0.0.1:1 --agent-id a ping", 2, "", "--cert and --key"},
		{"call --url ftp://secret@x ping", 2, "", "neither https://"},
		{"call --url :// ping", 2, "", "neither https://"},
		{"call --url https://127.0.0.1:1 --timeout -1s ping", 2, "", "--timeout"},
		{"watch a b", 2, "", "wrong number of arguments"},
		{"watch --url https://127.0.0.1:1", 2, "", "only agents on NATS"},
		{"watch --url nats://127.0.0.1:1", 2, "", "--cert and --key"},
		{"watch --url nats://127.0.0.1:1 --once", 2, "", "--once"},
		{"call --settings /nonexistent ping", 1, "", "no such file"},
		{"version", 0, "unknown", ""},
		{"version --json", 0, `"version": "unknown"`, ""},
	} {
		t.Run(c.args, func(t *testing.T) {
			stdout, stderr, code := runLab(t, strings.Fields(c.args)...)
			if code != c.code || !strings.Contains(stdout, c.stdout) || !strings.Contains(stderr, c.stderr) {
				t.Errorf("status %d, output %q, errors %q, want %d, %q, %q", code, stdout, stderr, c.code, c.stdout, c.stderr)
			}
		})
	}
}

// wantColumns: help fits terminals of 80 columns.
func wantColumns(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if len([]rune(strings.TrimRight(line, "\n"))) > 80 {
			t.Errorf("wider than 80 columns: %s", line)
		}
	}
}

func TestHelpAndCompletion(t *testing.T) {
	stdout, _, _ := runLab(t, "help")
	wantColumns(t, stdout)
	for _, shell := range completion.Shells {
		script, stderr, code := runLab(t, "completion", shell)
		if code != 0 || !strings.Contains(script, "host-route") || !strings.Contains(script, "publish") {
			t.Errorf("completion of %s: status %d, %s%s", shell, code, script, stderr)
		}
	}
}

func TestEveryCommandHasHelpWithExamples(t *testing.T) {
	for _, c := range commands() {
		if c.hidden {
			continue
		}
		stdout, _, code := runLab(t, c.name, "--help")
		if code != 0 || !strings.Contains(stdout, "usage: lab "+c.name) || !strings.Contains(stdout, "-json") {
			t.Errorf("lab %s --help: status %d, %q", c.name, code, stdout)
		}
		wantColumns(t, stdout)
		if c.name != "ssh" && c.name != "version" && !strings.Contains(stdout, "examples:") {
			t.Errorf("lab %s --help has no example", c.name)
		}
	}
}

func TestParseSize(t *testing.T) {
	for text, want := range map[string]int64{"512M": 512 << 20, "10G": 10 << 30, "1t": 1 << 40, "4096": 4096,
		"2GiB": 2 << 30, "1K": 1024,
		"": 0, "x": 0, "-1G": 0, "0": 0, "1.5G": 0, "99999999T": 0, "9223372036854775807": 0} {
		got, err := parseSize(text)
		if got != want || (err == nil) != (want != 0) {
			t.Errorf("parseSize(%q) = %d, %v, want %d", text, got, err, want)
		}
	}
}

func TestArgument(t *testing.T) {
	for text, want := range map[string]string{"full": `"full"`, `{"a":1}`: `{"a":1}`, "42": "42", `"42"`: `"42"`,
		"null": "null", "/dev/sdb": `"/dev/sdb"`, "": `""`} {
		if got, err := argument(text); err != nil || string(got) != want {
			t.Errorf("argument(%q) = %s, %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{`{broken`, `[1,`, `{"a":1}}`} {
		if got, err := argument(text); err == nil {
			t.Errorf("argument(%q) = %s, want an error", text, got)
		}
	}
}

func TestTargetFromSettings(t *testing.T) {
	path := filepath.Join(t.TempDir(), "settings.json")
	data := `{"agent_id":"a","mbus":"https://u:p@0.0.0.0:6868","env":{"bosh":{"mbus":{"cert":{"ca":"CA","certificate":"C","private_key":"K"}}}}}`
	if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]string{"": "https://u:p@0.0.0.0:6868", "10.0.0.5": "https://u:p@10.0.0.5:6868",
		"127.0.0.1:7000": "https://u:p@127.0.0.1:7000"} {
		target := target{settings: path, host: host}
		ca, cert, key, err := target.read()
		if err != nil || string(ca) != "CA" || string(cert) != "C" || string(key) != "K" || target.url != want ||
			target.agentID != "a" {
			t.Errorf("host %q: url %s, id %s, %s %s %s (%v), want %s", host, target.url, target.agentID, ca, cert, key, err,
				want)
		}
	}
	for name, content := range map[string]string{"no bus": `{}`, "not JSON": `{"mbus": "secret`} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		target := target{settings: path}
		if _, _, _, err := target.read(); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want an error without the document's content", name, err)
		}
	}
}

func TestFirstFree(t *testing.T) {
	if got := firstFree([]string{"lab1", "lab3", "other"}); got != "lab2" {
		t.Errorf("firstFree = %s, want lab2", got)
	}
}

func TestBoard(t *testing.T) {
	beat := json.RawMessage(`{"job":"web","job_state":"running","number_of_processes":2,"vitals":{"load":["0.10","0.20","0.30"],"mem":{"percent":"7"},"disk":{"system":{"percent":"41"},"ephemeral":{"percent":"3"}}}}`)
	alert := json.RawMessage(`{"id":"1","severity":1,"title":"web - does not exist - restart","summary":"process is not running","created_at":1}`)
	b := board{names: map[string]string{"a": "vm1"}, beats: map[string]director.Event{}}
	b.add(director.Event{Time: time.Now(), Kind: "heartbeat", Agent: "a", Body: beat})
	b.add(director.Event{Time: time.Now().Add(-2 * time.Minute), Kind: "heartbeat", Agent: "gone",
		Body: json.RawMessage("broken")})
	b.add(director.Event{Time: time.Now(), Kind: "alert", Agent: "a", Body: alert})
	var out bytes.Buffer
	b.draw(&out, false)
	if !regexp.MustCompile(`vm1[^\n]* \ds ago`).Match(out.Bytes()) {
		t.Errorf("the board is\n%s\nwant the age of vm1's heartbeat in its line", out.String())
	}
	for _, want := range []string{"vm1", "running", "web", "0.10 0.20 0.30", "7%", "ephemeral 3%, system 41%",
		"MISSED, 2m", "unreadable", "web - does not exist - restart: process is not running"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the board is\n%s\nwant %q in it", out.String(), want)
		}
	}
}

func TestPrintFirstBoot(t *testing.T) {
	var out bytes.Buffer
	printFirstBoot(&out, status.Document{ReadyNS: 100e6, Steps: []status.Step{
		{Name: "disk", Outcome: status.Done, Start: 50e6, End: 100e6},
		{Name: "settings", Outcome: status.Done, Start: 0, End: 50e6},
		{Name: "short", Outcome: status.Done, Start: 0, End: 1000},
		{Name: "late", Outcome: status.Done, Start: 100e6, End: 300e6, Background: true}}})
	text := out.String()
	if !strings.Contains(text, "100 ms") || strings.Contains(text, "short") ||
		strings.Index(text, "settings") > strings.Index(text, "disk") {
		t.Errorf("timeline is\n%s", text)
	}
	for line := range strings.Lines(text) {
		if strings.Count(line, "|") == 2 && strings.LastIndex(line, "|")-strings.Index(line, "|") != 51 {
			t.Errorf("line %q is not as wide as the others", line)
		}
	}
}

func TestDemoSaysWhatIsMissing(t *testing.T) {
	if os.Geteuid() == 0 { // root needs no hint to become root
		child := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestDemoSaysWhatIsMissing$", "-test.v")
		child.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		child.Dir, child.Env = "/", []string{"TMPDIR=/tmp", "PATH=" + os.Getenv("PATH")}
		if out, err := child.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS") {
			t.Errorf("as another user: %v\n%s", err, out)
		}
		return
	}
	_, stderr, code := runLab(t, "demo")
	if code != 1 || !strings.Contains(stderr, "machines need") || !strings.Contains(stderr, "work") {
		t.Errorf("status %d, %q, want 1 and what is missing", code, stderr)
	}
}

func TestContextEndsWatch(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if code := run(ctx, []string{"watch", "--lab", "none"}, &bytes.Buffer{}, &bytes.Buffer{}); code != 1 {
		t.Errorf("watch of no lab: status %d, want 1", code)
	}
}

func TestUpChecksTheDocumentsFirst(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	goodAgent := file("agent.json", `{"Infrastructure":{"Settings":{"Sources":[{"Type":"CDROM","FileName":"env"}]}}}`)
	good := file("settings.json", `{"agent_id":"a","mbus":"https://u:p@0.0.0.0:6868","networks":{},"disks":{"ephemeral":"@ephemeral@","persistent":{"d":"@disk-1@"}}}`)
	for name, c := range map[string]struct {
		agentJSON, settings string
		p                   plan
		err                 string
	}{
		"good":                 {goodAgent, good, plan{Ephemeral: 1, Disks: []int64{1}}, ""},
		"none":                 {"", "", plan{}, ""},
		"a disk too few":       {goodAgent, good, plan{Ephemeral: 1}, "@disk-1@"},
		"no ephemeral disk":    {goodAgent, good, plan{Disks: []int64{1}}, "@ephemeral@"},
		"agent.json is broken": {file("broken.json", "{"), good, plan{Ephemeral: 1, Disks: []int64{1}}, "broken.json"},
		"settings are broken":  {goodAgent, file("half.json", `{"agent_id":"secret-word",`), plan{}, "half.json"},
		"missing":              {filepath.Join(dir, "missing"), "", plan{}, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.p.read(c.agentJSON, c.settings, t.Logf)
			if (err == nil) != (c.err == "") || err != nil &&
				(!strings.Contains(err.Error(), c.err) || strings.Contains(err.Error(), "secret-word")) {
				t.Errorf("got %v, want an error with %q", err, c.err)
			}
		})
	}
}
