// Package faults is the table in docs/operating.md of what each channel shows of a fault, to root and to vcap. The
// tests of integration/machine and integration/vm cause the faults and check every cell. Only tests import it.
package faults

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"cambium/internal/eventually"
	"cambium/lab"
)

// Fault is a row. Texts are as on the screen, in one line. Any text may be in place of a Gap.
type Fault struct {
	Name    string
	CI      bool   // tested in the machine tier, too; others only in nightly
	VM      bool   // needs its own kernel, and is tested in integration/vm
	Status  Screen // of `agent status`
	Wait    int    // exit code of `agent status --wait 3s`
	Doctor  Screen // of `agent doctor`: the first finding that is a problem or a warning
	Metrics string // prefix of a line of `agent metrics`
	Console string // a line after the fault; "" if there is none
	Vcap    Other  // the differences for vcap
}

// Screen is the output of a command with its exit code.
type Screen struct {
	Code int
	Text string
}

// Other has the differences for vcap. An empty text means that there is no difference.
type Other struct {
	Status, Doctor Screen
	NoSample       bool // the metric is not shown
}

// Gap matches any text.
const Gap = " … "

// Machine is a machine in which a fault will be caused.
type Machine struct {
	*lab.Instance
	console int // length in bytes before the fault
}

// Watch must be called before the fault.
func Watch(i *lab.Instance) Machine { return Machine{i, len(console(i))} }

// Check checks all channels as root and as vcap.
func (f Fault) Check(t *testing.T, m Machine) {
	t.Helper()
	m.login(t)
	for _, user := range []string{"root", "vcap", sshUser} {
		seen := f
		if user != "root" {
			seen = f.forVcap()
		}
		await(t, m, user, "status", func(out string, code int) string {
			return lacks(seen.Status, oneLine(out), code)
		})
		await(t, m, user, "doctor --timeout 2s", func(out string, code int) string {
			if text := seen.Doctor.Text; strings.HasPrefix(text, "problem: ") || strings.HasPrefix(text, "warning: ") {
				out = firstFinding(out) // notes and what is good may come later
			}
			return lacks(seen.Doctor, oneLine(out), code)
		})
		await(t, m, user, "status --wait 3s", func(_ string, code int) string {
			return lacks(Screen{Code: f.Wait}, "", code)
		})
		await(t, m, user, "metrics", func(out string, _ int) string {
			name, _, _ := strings.Cut(seen.Metrics, " ")
			name, _, _ = strings.Cut(name, "{")
			left := user != "root" && f.Vcap.NoSample && !strings.Contains("\n"+out, "\n"+name)
			if left || strings.Contains("\n"+out, "\n"+seen.Metrics) {
				return ""
			}
			return seen.Metrics
		})
	}
	if f.Console == "" {
		if said := console(m.Instance)[m.console:]; strings.Contains(said, "bosh-agent: not ready") {
			t.Errorf("the console says that the agent is not ready: %s", said)
		}
		return
	}
	eventually.Nil(t, "the console", func() error {
		if said := console(m.Instance)[m.console:]; !contains(oneLine(said), f.Console) {
			return fmt.Errorf("it lacks %q: %s", f.Console, said)
		}
		return nil
	})
}

// sshUser is the user name of a `bosh ssh`.
const sshUser = "bosh_faults"

// login creates the account of a `bosh ssh`, as the agent's action does. If the machine has not booted, the agent
// cannot do it, and login creates it directly, like one from an earlier login.
func (m Machine) login(t *testing.T) {
	t.Helper()
	const account = "id -u " + sshUser + " >/dev/null 2>&1 || useradd -m -s /bin/bash -G vcap " + sshUser
	if out, err := m.Output(t.Context(), "sh", "-c", account); err != nil {
		t.Fatalf("an account: %v: %s", err, out)
	}
}

func (f Fault) forVcap() Fault {
	if f.Vcap.Status.Text != "" {
		f.Status = f.Vcap.Status
	}
	if f.Vcap.Doctor.Text != "" {
		f.Doctor = f.Vcap.Doctor
	}
	return f
}

// await runs a command until it shows the fault, and checks the width of the output.
func await(t *testing.T, m Machine, user, command string, lacks func(out string, code int) string) {
	t.Helper()
	eventually.Nil(t, "agent "+command+" as "+user, func() error {
		out, err := m.Output(t.Context(), "su", "-", user, "-c", "agent "+command+" 2>&1; echo exit $?")
		if err != nil {
			return err
		}
		code := -1
		end := strings.LastIndex(out, "exit ")
		if _, err := fmt.Sscanf(out[max(end, 0):], "exit %d", &code); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		out = out[:end]
		if missing := lacks(out, code); missing != "" {
			return fmt.Errorf("it lacks %q (exit code %d):\n%s", missing, code, out)
		}
		for line := range strings.Lines(out) {
			if !strings.HasPrefix(command, "metrics") && len([]rune(strings.TrimRight(line, "\n"))) > 80 {
				t.Errorf("agent %s prints more than 80 columns: %s", command, line)
			}
		}
		return nil
	})
}

func console(i *lab.Instance) string {
	text, _ := os.ReadFile(i.Console()) // there is none before the first start
	return string(text)
}

func lacks(want Screen, text string, code int) string {
	if code != want.Code {
		return fmt.Sprintf("exit code %d", want.Code)
	}
	if !contains(text, want.Text) {
		return want.Text
	}
	return ""
}

// contains reports whether a text has all parts of a pattern in order.
func contains(text, pattern string) bool {
	for part := range strings.SplitSeq(pattern, Gap) {
		_, rest, found := strings.Cut(text, part)
		if !found {
			return false
		}
		text = rest
	}
	return true
}

// firstFinding returns the first finding in the doctor's report.
func firstFinding(report string) string {
	var first strings.Builder
	for line := range strings.Lines(report) {
		if first.Len() > 0 && !strings.HasPrefix(line, " ") {
			break
		}
		first.WriteString(line)
	}
	return first.String()
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
