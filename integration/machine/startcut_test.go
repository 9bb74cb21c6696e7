//go:build machine

package machine

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"cambium/integration/lab"
	"cambium/integration/lab/release"
)

// TestMachineStartSurvivesACut: monit writes its state file now and then. After stop, start and a power cut
// within that time the file still says that the jobs are stopped, and they would stay down for good.
func TestMachineStartSurvivesACut(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	i := mustDeploy(t, l, manifest([]release.Job{forker()}, tool("1")))
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	do := func(method string) {
		t.Helper()
		if _, err := i.Agent.Do(ctx, method); err != nil {
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
	hit, again := 0, 0
	for range cuts() {
		before := stateFile(t, i)
		do("stop")
		await(t, "monit's file to say that the job is stopped", 60*time.Second, func() bool { return stateFile(t, i) != before })
		stopped := stateFile(t, i)
		do("start")
		if stateFile(t, i) == stopped {
			hit++ // monit has not recorded the start yet
		}
		cut()
		await(t, "the job to run after the cut", 90*time.Second, func() bool { return jobStateOf(t, ctx, i) == "running" })
		if journal, err := i.Journal(ctx); err == nil && strings.Contains(journal, startedAgain) {
			again++
		}
	}
	t.Logf("of %d cuts %d came before monit had recorded the start, and %d boots had to start the job again", cuts(), hit, again)
	if hit == 0 {
		t.Error("monit had recorded every start before the cut: nothing was shown")
	}
	// Stop and a cut: it stays stopped.
	do("stop")
	cut()
	if got := jobStateOf(t, ctx, i); got != "stopped" {
		t.Errorf("after stop and a cut: got %s, want stopped", got)
	}
	do("start")
	await(t, "the job to run", 90*time.Second, func() bool { return jobStateOf(t, ctx, i) == "running" })

	// Once monit has it on disk, what an operator stops stays down.
	await(t, "the agent to have seen monit supervise the job", 60*time.Second, func() bool {
		jobStateOf(t, ctx, i)
		return !strings.Contains(run(t, i, "cat", "/var/vcap/monit/start_requested.json"), `"shown":"0001`)
	})
	run(t, i, "/var/vcap/bosh/bin/monit", "-c", "/var/vcap/bosh/etc/monitrc", "stop", "forker")
	await(t, "monit to have stopped the job", 60*time.Second, func() bool { return jobStateOf(t, ctx, i) != "running" })
	time.Sleep(monitCycle) // in which monit writes its file
	cut()
	// Whether this monit starts it after a reboot is its own setting; the agent does not ask for it.
	journal, err := i.Journal(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(journal, startedAgain) {
		t.Error("the agent had monit start a job that an operator stopped")
	}
}

// startedAgain is what the agent logs when it puts the last start to monit again.
const startedAgain = "services are started again"

// monitCycle is longer than one of monit, which tells neither when it writes its file nor when it looks at services.
const monitCycle = 13 * time.Second

// cuts is how often the test repeats; the soak cuts more often.
func cuts() int { return 2 }

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

// stateFile tells when monit last wrote its state file.
func stateFile(t *testing.T, i *lab.Instance) string {
	t.Helper()
	return run(t, i, "sh", "-c", "stat -c %y /var/vcap/monit/monit.state || true")
}
