//go:build vm && nightly

package vm

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/lab"
	"cambium/lab/director"
	"cambium/lab/labtest"
	"cambium/lab/machine"
	"cambium/lab/release"
)

const (
	// stepTrace has the marks of the scripts, on the persistent disk.
	stepTrace = "/var/vcap/store/trace"
	// holdAt names the step at which a boot stays.
	holdAt = "/etc/hold-at"
	// wholeStart are the marks of one start with all scripts.
	wholeStart = "pre-start begins\npre-start ends\nstart\npost-start begins\npost-start ends\n"
)

// stepScript begins each script of stepped. A mark is on the disk before the script goes on. Two runs of a script at
// once leave "twice". hold hangs at its step, freeze stops the agent and lets the script end; both announce it.
const stepScript = `#!/bin/bash
set -eu
mark() { echo "$1" >>` + stepTrace + ` && sync ` + stepTrace + `; }
chosen() { grep -sqx "$1" ` + holdAt + `; }
announce() { echo "held $1" >/dev/ttyS0; }
hold() { ! chosen "$1" || { announce "$1"; sleep infinity; }; }
freeze() { ! chosen "$1" || { kill -STOP "$(systemctl show -P MainPID bosh-agent)"; announce "$1"; }; }
exec 9>/run/${0##*/}.lock
flock -n 9 || mark twice
`

// stepped is a job whose scripts and process leave marks.
func stepped() release.Job {
	return release.Job{Name: "stepped", Files: release.Files{
		"monit": `check process stepped
  with pidfile /var/vcap/sys/run/stepped/stepped.pid
  start program "/var/vcap/jobs/stepped/bin/start"
  stop program "/var/vcap/jobs/stepped/bin/stop"
  group vcap
`,
		"bin/pre-start": stepScript + `mark "pre-start begins"
hold "in pre-start"
mark "pre-start ends"
freeze "after pre-start"
`,
		"bin/start": stepScript + `mark start
hold "in start"
setsid sleep infinity </dev/null >/dev/null 2>&1 9>&- &
echo $! >/var/vcap/sys/run/stepped/stepped.pid
`,
		"bin/stop": "#!/bin/bash\nkill $(cat /var/vcap/sys/run/stepped/stepped.pid) || true\nrm -f /var/vcap/sys/run/stepped/stepped.pid\n",
		"bin/post-start": stepScript + `mark "post-start begins"
hold "in post-start"
mark "post-start ends"
freeze "after post-start"
`,
	}}
}

// TestNightlyScriptsOnBootPowerCut cuts the power at each step of a boot with scripts_on_boot: the next boot begins with
// pre-start. The power is also cut after each complete start, which the next boot repeats; a restart of the agent does
// not. TestMachineScriptsOnBoot covers failures and requests of the Director, TestNightlyJobs covers monit.
func TestNightlyScriptsOnBootPowerCut(t *testing.T) {
	t.Parallel()
	i := deployStepped(t, newLab(t))
	traced := wholeStart // so far
	within, cancel := context.WithTimeout(t.Context(), readyTimeout)
	defer cancel()
	if err := i.Reboot(within); err != nil {
		t.Fatal(err)
	}
	traced += startedOnce(t, i, "after a reboot", traced)
	run(t, i, "systemctl", "restart", "bosh-agent") // returns after READY=1
	ready(t, i)
	if s := stateOf(t, i); s.JobState != "running" {
		t.Errorf("after a restart of the agent: got %s", s.JobState)
	}
	for _, c := range []struct{ step, marks, state string }{
		{"in pre-start", "pre-start begins\n", "starting"},
		{"after pre-start", "pre-start begins\npre-start ends\n", ""},
		{"in start", "pre-start begins\npre-start ends\nstart\n", "starting"},
		{"in post-start", "pre-start begins\npre-start ends\nstart\npost-start begins\n", "running"},
		{"after post-start", wholeStart, ""},
	} {
		begin := time.Now()
		cutAndHold(t, i, c.step)
		eventually.True(t, "the boot to be held "+c.step, func() bool {
			console, err := os.ReadFile(i.Console())
			return err == nil && strings.Contains(string(console), "held "+c.step)
		})
		if got := since(t, i, traced); got != c.marks {
			t.Errorf("held %s: the scripts left %q, want %q", c.step, got, c.marks)
		}
		if c.state != "" { // the agent is not frozen
			ready(t, i)
			if s := stateOf(t, i); s.JobState != c.state || c.step == "in pre-start" && len(s.Processes) > 0 {
				t.Errorf("held %s: state is %s, processes %v, want %s", c.step, s.JobState, s.Processes, c.state)
			}
		}
		traced += c.marks
		cutAndHold(t, i, "nowhere")
		traced += startedOnce(t, i, "after a cut "+c.step, traced)
		t.Logf("cut %s: %.1f s", c.step, time.Since(begin).Seconds())
	}
}

// deployStepped deploys one instance with the job.
func deployStepped(t *testing.T, l *lab.Lab) *lab.Instance {
	t.Helper()
	m := release.Manifest{Name: "dep", Groups: []release.Group{{Name: "app", Instances: 1, PersistentDisk: 64,
		EphemeralDisk: 2048,
		Env:           map[string]any{"bosh": map[string]any{"agent": map[string]any{"scripts_on_boot": true}}},
		Jobs:          []release.Job{stepped()}}}}
	err := l.Deploy(t.Context(), m, func(instance, step string, took time.Duration, err error) {
		t.Logf("%s: %s %.1f s %v", instance, step, took.Seconds(), err)
	})
	i := l.Machines()["app-0"]
	if i != nil {
		labtest.Explain(t, i)
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := since(t, i, ""); got != wholeStart {
		t.Fatalf("the deploy left %q", got)
	}
	run(t, i, "sync")
	return i
}

// cutAndHold cuts the power, and has the next boot stay at a step.
func cutAndHold(t *testing.T, i *lab.Instance, step string) {
	t.Helper()
	if err := errors.Join(i.Kill(t.Context()),
		i.WriteFile(machine.File{Path: holdAt, Data: []byte(step + "\n"), Mode: 0o644}), i.Start(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// since returns the marks after those that there were.
func since(t *testing.T, i *lab.Instance, before string) string {
	t.Helper()
	all := run(t, i, "cat", stepTrace)
	if !strings.HasPrefix(all, before) {
		t.Fatalf("the trace is %q, want it to begin with %q", all, before)
	}
	return strings.TrimPrefix(all, before)
}

// startedOnce waits until the boot has started the jobs, and returns the marks: those of one start.
func startedOnce(t *testing.T, i *lab.Instance, when, before string) string {
	t.Helper()
	ready(t, i)
	eventually.Nil(t, "the end of the start "+when, func() error {
		record := run(t, i, "cat", "/var/vcap/monit/start_requested.json")
		if marks := since(t, i, before); len(marks) < len(wholeStart) || strings.Contains(record, "pending") {
			return errors.New(record + " " + marks)
		}
		return nil
	})
	if s := stateOf(t, i); s.JobState != "running" || len(s.Processes) != 1 || s.Processes[0].State != "running" {
		t.Errorf("%s: state is %s, processes %v", when, s.JobState, s.Processes)
	}
	if marks := since(t, i, before); marks != wholeStart {
		t.Fatalf("%s: the scripts left %q, want %q", when, marks, wholeStart)
	}
	return wholeStart
}

func stateOf(t *testing.T, i *lab.Instance) (s director.State) {
	t.Helper()
	if err := json.Unmarshal([]byte(does(t, i, "get_state")), &s); err != nil {
		t.Fatal(err)
	}
	return s
}
