//go:build machine

package machine

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"cambium/internal/eventually"
	"cambium/internal/status"
	"cambium/internal/testca"
	"cambium/lab"
)

// TestMachineStatus breaks machines and looks at what `agent status` makes of it, as vcap and as root.
func TestMachineStatus(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	stranger, err := testca.New("another-ca")
	if err != nil {
		t.Fatal(err)
	}
	distrusting := start(t, l, lab.VM{Ephemeral: lab.GiB, Edit: func(d lab.Document) {
		d.Set("env.bosh.mbus.cert.ca",
			string(stranger.PEM))
	}})
	good := start(t, l, lab.VM{Ephemeral: lab.GiB})
	ready(t, good)

	t.Run("good", func(t *testing.T) {
		wantScreen(t, good, "vcap", 0, "state: ready after ", "bus: connected to 10.88.0.1:", "settings: File ")
		// Told after the first pong.
		eventually.True(t, "systemd to show the state", func() bool {
			return strings.HasPrefix(run(t, good, "systemctl", "show", "-P", "StatusText", "bosh-agent"),
				"ready; bus: connected to 10.88.0.1:")
		})
		for _, line := range strings.Split(screenOf(t, good, "vcap", "status -v"), "\n") {
			if len([]rune(line)) > 80 {
				t.Errorf("wider than 80 columns: %s", line)
			}
		}
	})
	t.Run("as vcap", func(t *testing.T) { seesLess(t, good) })
	t.Run("wrong authority", func(t *testing.T) {
		awaitScreen(t, distrusting, 3, "state: degraded", "bus: refused, 10.88.0.1:",
			"tries: the agent does not trust the server's certificate: x509: ")
		if got := run(t, distrusting, "systemctl", "show", "-P", "StatusText", "-P", "ActiveState",
			"bosh-agent"); !strings.Contains(got, "degraded; bus: refused, 10.88.0.1:") || !strings.Contains(got, "active\n") {
			t.Errorf("systemd shows %q, want an active unit", got)
		}
		console := run(t, distrusting, "journalctl", "-q", "-b", "-o", "cat", "-u", "bosh-agent")
		if n := strings.Count(console, "not connected to nats"); n > 4 {
			t.Errorf("the log tells %d times that there is no connection", n)
		}
	})
	t.Run("port filtered", func(t *testing.T) { portFiltered(t, good) })
	t.Run("log level", func(t *testing.T) { logLevel(t, good) })
	t.Run("stopped, killed", func(t *testing.T) { stoppedAndKilled(t, good) })
	t.Run("settings corrupt", func(t *testing.T) { settingsCorrupt(t, distrusting) })
}

// screenOf returns the output of a command of the agent as a user sees it, and its exit code.
func screenOf(t *testing.T, i *lab.Instance, user, command string) string {
	t.Helper()
	return run(t, i, "su", "-", user, "-c", "agent "+command+" 2>&1; echo exit $?")
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// missing returns the first text that a screen does not have.
func missing(screen string, code int, texts []string) string {
	if code != soon {
		texts = append(texts, fmt.Sprintf("exit %d", code))
	}
	for _, text := range texts {
		if !strings.Contains(oneLine(screen), text) {
			return text
		}
	}
	return ""
}

// wantScreen also pastes every hint on the screen.
func wantScreen(t *testing.T, i *lab.Instance, user string, code int, texts ...string) {
	t.Helper()
	screen := screenOf(t, i, user, "status")
	if text := missing(screen, code, texts); text != "" {
		t.Errorf("the status lacks %q:\n%s", text, screen)
	}
	pasteHints(t, i, screen)
}

// awaitScreen waits for what root sees; vcap sees the same.
func awaitScreen(t *testing.T, i *lab.Instance, code int, texts ...string) {
	t.Helper()
	awaitRoot(t, i, code, texts...)
	wantScreen(t, i, "vcap", code, texts...)
}

func awaitRoot(t *testing.T, i *lab.Instance, code int, texts ...string) {
	t.Helper()
	eventually.True(t, "a status with "+strings.Join(texts, ", "), func() bool {
		return missing(screenOf(t, i, "root", "status"), code, texts) == ""
	})
}

var hint = regexp.MustCompile(`'((?:agent|systemctl|journalctl) [^']+)'`)

// pasteHints runs what a screen advises to run: a shell must find it, and it must not be misused.
func pasteHints(t *testing.T, i *lab.Instance, screen string) {
	t.Helper()
	for _, found := range hint.FindAllStringSubmatch(oneLine(screen), -1) {
		out := run(t, i, "sh", "-c", found[1]+" 2>&1 </dev/null; echo exit $?")
		if strings.Contains(out, "exit 2\n") || strings.Contains(out, "exit 127\n") {
			t.Errorf("the hint %q fails: %s", found[1], out)
		}
	}
}

// seesLess: the commands do not check the files that vcap, the user of `bosh ssh`, may not read, and make nothing up
// about them.
func seesLess(t *testing.T, i *lab.Instance) {
	t.Helper()
	for _, c := range []struct {
		command   string
		code      int
		has, lack []string
	}{
		{"doctor", 3, []string{"not checked (run as root): ", "certificate, bus", "supervisor", "ok: disk space"},
			[]string{"problem:", "warning:", "does not need one", "monit"}},
		{"metrics", 0, []string{"cambium_agent_running 1", `agent_id="` + i.AgentID},
			[]string{"cambium_supervisor_up 0", "cambium_tasks{"}},
		{"support /tmp/vcap.tgz", 0, []string{"not run as root; left out: ", "settings.json",
			"network/rules.txt"}, nil},
	} {
		screen := oneLine(screenOf(t, i, "vcap", c.command))
		if lacks := missing(screen, c.code, c.has); lacks != "" {
			t.Errorf("agent %s lacks %q: %s", c.command, lacks, screen)
		}
		for _, text := range c.lack {
			if strings.Contains(screen, text) {
				t.Errorf("agent %s says %q: %s", c.command, text, screen)
			}
		}
	}
	if left := run(t, i, "sh", "-ec",
		"tar -xzOf /tmp/vcap.tgz support/left-out.txt; rm /tmp/vcap.tgz"); !strings.Contains(left,
		"settings.json: not checked (run as root)") {
		t.Errorf("the archive's list of what was left out is %q", left)
	}
}

// portFiltered: a connection that is cut off is lost at once and degrades the agent, which serves on.
func portFiltered(t *testing.T, i *lab.Instance) {
	t.Helper()
	port := agentStatus(t, i).Bus.Server
	port = port[strings.LastIndex(port, ":")+1:]
	run(t, i, "nft", "add table inet filtered; add chain inet filtered out { type filter hook output priority 0; }; add rule inet filtered out tcp dport "+port+" reject with tcp reset")
	awaitScreen(t, i, 3, "state: degraded", "bus: lost, 10.88.0.1:", "connection refused")
	run(t, i, "nft", "flush chain inet filtered out; add rule inet filtered out tcp dport "+port+" drop")
	awaitScreen(t, i, 3, "bus: lost, 10.88.0.1:", "i/o timeout")
	run(t, i, "nft", "delete table inet filtered")
	awaitScreen(t, i, 0, "state: ready after ", "bus: connected to 10.88.0.1:")
	ready(t, i)
}

// logLevel changes the log level of the running agent; a user without permission gets an error.
func logLevel(t *testing.T, i *lab.Instance) {
	t.Helper()
	for _, c := range []struct{ user, command, want string }{
		{"vcap", "log-level", "info\nexit 0\n"}, {"root", "log-level debug", "debug\nexit 0\n"}, {"root", "log-level", "debug\nexit 0\n"},
		{"vcap", "log-level info", "run it as root"}, {"root", "log-level info", "info\nexit 0\n"},
	} {
		if got := screenOf(t, i, c.user, c.command); !strings.Contains(got, c.want) {
			t.Errorf("agent %s as %s prints %q, want %q", c.command, c.user, got, c.want)
		}
	}
}

// stoppedAndKilled: an agent that does not run is never ready, also if it had no time to say so.
func stoppedAndKilled(t *testing.T, i *lab.Instance) {
	t.Helper()
	run(t, i, "systemctl", "stop", "bosh-agent")
	wantScreen(t, i, "vcap", 1, "state: not running since 2", "(it was ready)")
	if d := agentStatus(t, i); d.State != status.NotRunning {
		t.Errorf("the document says %s", d.State)
	}
	run(t, i, "systemctl", "start", "bosh-agent")
	ready(t, i)
	wantScreen(t, i, "root", 0, "state: ready")
	run(t, i, "systemctl", "kill", "--kill-whom=main", "-s", "STOP", "bosh-agent")
	awaitScreen(t, i, 1, "state: not running: its process is stopped by a signal (it was ready)")
	run(t, i, "systemctl", "kill", "--kill-whom=main", "-s", "CONT", "bosh-agent")
	awaitScreen(t, i, 0, "state: ready after ")
	run(t, i, "systemctl", "kill", "--kill-whom=main", "-s", "KILL", "bosh-agent")
	awaitScreen(t, i, 0, "state: ready after ", "restarts: 1 by systemd; a process ended at 2",
		": signal, killed by KILL")
	run(t, i, "sh", "-c", "mkdir -p /run/systemd/system/bosh-agent.service.d && printf '[Service]\\nRestart=no\\n' > /run/systemd/system/bosh-agent.service.d/once.conf && systemctl daemon-reload")
	run(t, i, "systemctl", "kill", "--kill-whom=main", "-s", "KILL", "bosh-agent")
	awaitRoot(t, i, 1, "state: not running since 2", "(it was ready)")
	wantScreen(t, i, "vcap", 1, "state: not running since 2", "(it was ready)")
}

// settingsCorrupt: the verdict names each source with its answer, also while the boot goes on, and the journal is not
// flooded while the agent waits.
func settingsCorrupt(t *testing.T, i *lab.Instance) {
	t.Helper()
	run(t, i, "sh", "-c",
		"systemctl stop bosh-agent; cd /var/vcap/bosh && echo '{' > agent-bootstrap-env.json && rm -f settings.json* && echo '{' > settings.json && systemctl start --no-block bosh-agent")
	awaitScreen(t, i, 1, "state: failed", "verdict: settings: still waiting after 2",
		"s for settings: File /var/vcap/bosh/agent-bootstrap-env.json: ",
		"; the cached copy was damaged and set aside as /var/vcap/bosh/settings.json.corrupt")
	out := screenOf(t, i, "root", "validate /var/vcap/bosh/agent-bootstrap-env.json")
	if !strings.Contains(out, "agent-bootstrap-env.json:2:1: error: document ends early") {
		t.Errorf("agent validate prints %s", out)
	}
	journal := run(t, i, "sh", "-c", "journalctl -q -o cat _PID=$(systemctl show -P MainPID bosh-agent)")
	if n := strings.Count(journal, "- waiting "); n == 0 || n > 5 {
		t.Errorf("%d lines say what is waited for, want few:\n%s", n, journal)
	}
}
