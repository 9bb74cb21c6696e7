//go:build machine

package machine

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/lab"
	"cambium/lab/machine"
	"cambium/lab/release"
)

// TestMachineStartSurvivesACut: monit writes its state file now and then. After stop, start and a power cut
// within that time the file still says that the jobs are stopped, and they would stay down for good. The power is cut
// after start, after stop, and while start is under way.
func TestMachineStartSurvivesACut(t *testing.T) {
	t.Parallel() // it mostly waits
	cutAfterStarts(t, "monit", 5)
}

func cutAfterStarts(t *testing.T, supervisor string, cuts int) {
	monitrc, err := os.ReadFile("../../stemcell-assets/etc/monitrc")
	if err != nil {
		t.Fatal(err)
	}
	hasty := strings.Replace(string(monitrc), "set daemon 10", "set daemon 3", 1)
	if hasty == string(monitrc) {
		t.Fatal("the stemcell's monitrc names no cycle of ten seconds")
	}
	l := supervisedLab(t, supervisor,
		machine.File{Path: "/var/vcap/bosh/etc/monitrc", Mode: 0o600, Data: []byte(hasty)})
	m := manifest([]release.Job{forker()}, tool("1"))
	i := mustDeploy(t, l, m)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute+time.Duration(cuts)*time.Minute)
	defer cancel()
	do := func(method string, arguments ...any) {
		t.Helper()
		if _, err := i.Agent.Do(ctx, method, arguments...); err != nil {
			t.Fatalf("%s: %v", method, err)
		}
	}
	cut := func() {
		t.Helper()
		if err := i.Kill(ctx); err != nil {
			t.Fatal(err)
		}
		if err := i.Start(ctx); err != nil {
			t.Fatal(err)
		}
		if err := i.Agent.WaitReady(ctx); err != nil {
			t.Fatal(err)
		}
	}
	hit, repeats := 0, 0
	for n := range cuts {
		before := stateFile(t, i)
		do("stop")
		eventually.True(t, "monit's file to say that the job is stopped", func() bool {
			return stateFile(t, i) != before
		})
		stopped := stateFile(t, i)
		switch n % 3 {
		case 0: // after the answer to start
			do("start")
			if stateFile(t, i) == stopped {
				hit++ // monit has not recorded the start yet
			}
			cut()
			eventually.True(t, "the job to run after the cut", func() bool {
				return jobStateOf(t, ctx, i) == "running"
			})
			if journal, err := i.Journal(ctx); err == nil && strings.Contains(journal, startRepeated) {
				repeats++
			}
		case 1: // after the answer to stop
			do("start")
			do("stop")
			cut()
			if got := settledState(t, ctx, i); got != "stopped" {
				t.Errorf("after stop and a cut: got %s, want stopped", got)
			}
		case 2: // around the answer to start: either outcome is right unless it has come
			calling, giveUp := context.WithCancel(ctx)
			answer := make(chan error, 1)
			go func() {
				_, err := i.Agent.Call(calling, "start")
				answer <- err
			}()
			time.Sleep(rand.N(200 * time.Millisecond))
			answered := len(answer) > 0
			cut()
			giveUp()
			<-answer
			eventually.True(t, "the job to run or to be stopped after a cut during start", func() bool {
				state := jobStateOf(t, ctx, i)
				return state == "running" || state == "stopped" && !answered
			})
		}
		if n%3 != 0 {
			do("start")
			eventually.True(t, "the job to run", func() bool { return jobStateOf(t, ctx, i) == "running" })
		}
	}
	t.Logf("of %d cuts %d came after a start that monit had not recorded, and %d boots had to start the job again", cuts,
		hit, repeats)
	if hit == 0 && supervisor == "monit" { // the agent's own records a start at once
		t.Error("monit had recorded every start before the cut: nothing was shown")
	}
	// Between drain and stop either outcome is right: monit has recorded that it does not supervise the job any more, or
	// not. The stop that follows takes both.
	do("drain", "shutdown", map[string]any{})
	cut()
	eventually.True(t, "a state after drain and a cut", func() bool {
		state := jobStateOf(t, ctx, i)
		return state == "running" || state == "failing"
	})
	do("stop")
	// Between stop and start, with an apply or without: it stays stopped.
	spec, upload, err := l.Spec(i, m, m.Groups[0], 0)
	if err == nil {
		err = upload(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	do("apply", spec)
	cut()
	if got := settledState(t, ctx, i); got != "stopped" {
		t.Errorf("after stop, apply and a cut: got %s, want stopped", got)
	}
	do("start")
	eventually.True(t, "the job to run", func() bool { return jobStateOf(t, ctx, i) == "running" })

	// Once monit has it on disk, what an operator stops stays down.
	eventually.True(t, "the agent to have seen monit supervise the job", func() bool {
		jobStateOf(t, ctx, i)
		return !strings.Contains(run(t, i, "cat", "/var/vcap/monit/start_requested.json"), `"shown":"0001`)
	})
	run(t, i, "/var/vcap/bosh/bin/monit", "-c", "/var/vcap/bosh/etc/monitrc", "stop", "forker")
	eventually.True(t, "monit to have stopped the job", func() bool { return jobStateOf(t, ctx, i) != "running" })
	time.Sleep(monitCycle) // in which monit writes its file
	cut()
	// Whether this monit starts it after a reboot depends on its own configuration; the agent does
	// not request it.
	journal, err := i.Journal(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(journal, startRepeated) {
		t.Error("the agent had monit start a job that an operator stopped")
	}
}

// startRepeated is part of the message that the agent logs when it repeats the Director's last start.
const startRepeated = "had not recorded the Director's last start"

// monitCycle is longer than one of monit here, which tells neither when it writes its file nor when it looks at services.
const monitCycle = 5 * time.Second

func jobStateOf(t *testing.T, ctx context.Context, i *lab.Instance) string {
	t.Helper()
	value, err := i.Agent.Do(ctx, "get_state")
	if err != nil {
		t.Fatal(err)
	}
	var state struct {
		JobState string `json:"job_state"`
	}
	if err := json.Unmarshal(value, &state); err != nil {
		t.Fatal(err)
	}
	return state.JobState
}

// settledState is the state as soon as monit answers.
func settledState(t *testing.T, ctx context.Context, i *lab.Instance) (state string) {
	t.Helper()
	eventually.True(t, "an answer of monit", func() bool {
		state = jobStateOf(t, ctx, i)
		return state != "unknown"
	})
	return state
}

// stateFile returns the time at which the supervisor last wrote its state file.
func stateFile(t *testing.T, i *lab.Instance) string {
	t.Helper()
	return run(t, i, "sh", "-c", "cd /var/vcap/monit; stat -c %y monit.state supervisor.json 2>/dev/null || true")
}
