//go:build machine

package machine

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/lab"
	"cambium/lab/director"
	"cambium/lab/machine"
	"cambium/lab/release"
)

// TestMachineKilledInTasks kills the agent while it works on each kind of task.
func TestMachineKilledInTasks(t *testing.T) {
	t.Parallel()
	killInTasks(t, "systemd", 1)
}

// busy is an instance whose Director always asks for something, and what it should look like.
type busy struct {
	flows
	random *rand.Rand
	made   int    // disks so far
	tool   string // version of the package that runs
	spec   any    // that was applied last
	size   int64  // of further disks
	sum    string // of the store
}

// attempt is one request of a Director in the middle of which the agent is killed.
type attempt struct {
	request []any  // method and arguments
	after   func() // the request has been repeated with success: compares and tidies up
	first   []any  // the request with which a Director begins when it repeats the other
}

// killKinds prepare an attempt of each kind.
var killKinds = []struct {
	name    string
	prepare func(k *busy) attempt
	resumes bool // the next process goes on with the task, if it had begun
}{
	{"apply", (*busy).applying, false},
	{"mount_disk", (*busy).mounting, false},
	{"migrate_disk", (*busy).migrating, false},
	{"update_settings", (*busy).updating, true},
	{"run_script", (*busy).scripting, false},
	{"compile_package_with_signed_url", (*busy).compiling, false},
}

// killInTasks kills the agent that often in each kind of task: as soon as the task has an id, and at random moments.
// systemd starts it again. Every task that was answered with an id has an outcome, a Director that repeats the request
// succeeds, the store is complete, the jobs run, and no temporary file is left.
func killInTasks(t *testing.T, supervisor string, times int) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	scripted := release.Job{Name: "scripted",
		Files: release.Files{"monit": "", "bin/pre-start": "#!/bin/sh\nsleep 0.3\n"}}
	m := manifest([]release.Job{forker(), scripted}, tool("0"))
	m.Groups[0].PersistentDisk = 256
	l := supervisedLab(t, supervisor)
	k := &busy{flows: flows{t: t, l: l, m: m, i: mustDeploy(t, l, m)}, tool: "0", size: 256 << 20}
	k.random = rand.New(rand.NewPCG(seed, 0))
	mounted, err := k.i.Agent.Scan(t.Context())
	if err != nil || len(mounted) != 1 {
		t.Fatalf("after the deploy: %v, %v", mounted, err)
	}
	k.disk = mounted[0]
	run(t, k.i, "sh", "-ec", `cd /var/vcap/store && mkdir -p a/b &&
		head -c 2M /dev/urandom | split -a 3 -b 8k - a/b/f &&
		head -c 40M /dev/urandom >large && ln large hard && ln -s large soft && chown 1234:4321 a && sync`)
	k.sum = run(t, k.i, "sh", "-c", killSum)
	for _, kind := range killKinds {
		a := kind.prepare(k)
		begin := time.Now()
		k.must(a.request)
		took := time.Since(begin)
		a.after()
		counts := map[string]int{}
		for n := range times {
			after := time.Duration(0) // as soon as there is an id
			if n > 0 {
				after = time.Duration(k.random.Int64N(int64(took)))
			}
			outcome := k.kill(kind.prepare(k), after, n == 0, kind.resumes)
			counts[outcome]++
			if outcome == afterTheEnd && n > 0 { // the first time was slower, and the Director polls
				took = max(after, took*3/4, time.Millisecond)
			}
		}
		t.Logf("%s takes %s; of %d kills: %v", kind.name, took.Round(time.Millisecond), times, counts)
		if times > 10 && counts[afterTheEnd] > times*2/3 {
			t.Errorf("%s: %d of %d kills came after the end of the task", kind.name, counts[afterTheEnd], times)
		}
	}
}

// killSum is over everything in the store but the directory itself.
const killSum = "cd /var/vcap/store && find . -mindepth 1 -path ./lost+found -prune " +
	"-o -printf '%P %m %U %T@ %l\\n' -type f -exec md5sum {} + | sort | md5sum"

// The outcomes of a kill.
const (
	withoutID   = "before the answer"
	interrupted = "task reported as interrupted"
	resumed     = "task ended by the next process"
	afterTheEnd = "after the end of the task"
)

// kill sends the request and kills the agent a while after that, or after the answer; see killInTasks.
func (k *busy) kill(a attempt, after time.Duration, answered, resumes bool) (outcome string) {
	t := k.t
	t.Helper()
	fire := armed(t, k.i)
	asking, cancel := context.WithCancel(t.Context())
	defer cancel()
	answer := make(chan string, 1) // the task's id, or nothing
	go func() {
		value, err := k.i.Agent.Call(asking, a.request[0].(string), a.request[1:]...)
		var handle struct {
			ID string `json:"agent_task_id"`
		}
		if err == nil {
			err = json.Unmarshal(value, &handle)
		}
		if err != nil && asking.Err() == nil {
			t.Errorf("%v: %v", a.request[0], err)
		}
		answer <- handle.ID
	}()
	id := ""
	if answered {
		id = <-answer
	}
	time.Sleep(after)
	fire()
	ready(t, k.i)
	if !answered {
		// What was received may have been answered before the kill; else there is no answer any more.
		select {
		case id = <-answer:
		case <-time.After(100 * time.Millisecond):
			cancel()
			id = <-answer
		}
	}
	outcome = k.outcome(a.request, id, resumes)
	if a.first != nil {
		k.must(a.first)
	}
	k.must(a.request)
	a.after()
	k.wantWhole(fmt.Sprintf("%v killed after %s", a.request[0], after))
	return outcome
}

// outcome waits for the end of a task whose agent was killed, and names the way in which it ended.
func (k *busy) outcome(request []any, id string, resumes bool) string {
	t := k.t
	t.Helper()
	if id == "" {
		return withoutID
	}
	var err error
	eventually.True(t, fmt.Sprintf("the end of the task of %v", request[0]), func() bool {
		var value json.RawMessage
		value, err = k.i.Agent.Call(t.Context(), "get_task", id)
		return err != nil || !strings.Contains(string(value), `"state":"running"`)
	})
	var e *director.Exception
	switch {
	case err == nil && resumes:
		return resumed
	case err == nil:
		return afterTheEnd
	case errors.As(err, &e) && strings.Contains(e.Message, "the agent restarted while the task was running"):
		return interrupted
	}
	t.Errorf("%v: the task %s ends with %v", request[0], id, err)
	return err.Error()
}

// armed prepares the death of the agent's process: a program in the machine that waits for the signal. What it returns
// kills, and returns when the process is gone and systemd has started another.
func armed(t *testing.T, i *lab.Instance) (fire func()) {
	t.Helper()
	in, trigger := io.Pipe()
	out, said := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- i.Run(t.Context(), machine.Command{Stdin: in, Stdout: said, Args: []string{"sh", "-ec",
			`main() { until systemctl show -P MainPID bosh-agent 2>/dev/null; do sleep 0.1; done; }
pid=$(main); test "$pid" -gt 1; echo $pid; read go; kill -KILL $pid
while now=$(main); [ "$now" = 0 ] || [ "$now" = $pid ]; do sleep 0.01; done`}})
		_ = in.Close()
		_ = said.CloseWithError(io.EOF)
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if _, bad := strconv.Atoi(strings.TrimSpace(line)); err != nil || bad != nil {
		t.Fatalf("the agent's process: %q, %v, %v", line, err, bad)
	}
	return func() {
		t.Helper()
		if _, err := trigger.Write([]byte("go\n")); err != nil {
			t.Fatal(err)
		}
		_ = trigger.Close()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
}

// must has the agent execute a request.
func (k *busy) must(request []any) {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(k.t.Context(), 2*time.Minute)
	defer cancel()
	if _, err := k.i.Agent.Do(ctx, request[0].(string), request[1:]...); err != nil {
		k.t.Fatalf("%v: %v", request[0], err)
	}
}

// leftOver lists what a task or a write has not removed.
const leftOver = `find /var/vcap/data/tmp /var/vcap/data/blobs /var/vcap/data/compile -mindepth 1
find /var/vcap /etc -xdev -name '*.cambium-tmp-*'; find /var/vcap/data /var/vcap/store -xdev -name '*.cambium-tmp-*'
ls -d /var/vcap/store_migration_target/* 2>/dev/null || true`

// wantWhole compares the machine with what it should be.
func (k *busy) wantWhole(what string) {
	t := k.t
	t.Helper()
	eventually.True(t, what+": running jobs", func() bool { return stateOf(t, k.i).JobState == "running" })
	if got := run(t, k.i, "sh", "-c", "mountpoint -q /var/vcap/store && "+killSum); got != k.sum {
		t.Errorf("%s: the sum of the store is %s, want %s", what, got, k.sum)
	}
	if left := run(t, k.i, "sh", "-c", leftOver); left != "" {
		t.Errorf("%s: left over:\n%s", what, left)
	}
	if got := run(t, k.i, "cat", "/var/vcap/packages/tool/bin/sleeper"); !strings.Contains(got, "echo "+k.tool+" ") {
		t.Errorf("%s: the package is %q, want version %s", what, got, k.tool)
	}
}

func (k *busy) applying() attempt {
	k.t.Helper()
	k.must([]any{"stop"})
	return attempt{request: k.nextSpec(), after: func() { k.must([]any{"start"}) }}
}

// nextSpec is the request to apply another version of the package.
func (k *busy) nextSpec() []any {
	k.t.Helper()
	k.made++
	k.tool = strconv.Itoa(k.made)
	k.m.Groups[0].Packages = []release.Package{tool(k.tool)}
	spec, upload, err := k.l.Spec(k.i, k.m, k.m.Groups[0], 0)
	if err == nil {
		err = upload(k.t.Context())
	}
	if err != nil {
		k.t.Fatal(err)
	}
	k.spec = spec
	return []any{"apply", spec}
}

// blank gives the machine a disk that the agent knows.
func (k *busy) blank() (cid string) {
	k.t.Helper()
	k.made++
	cid = fmt.Sprintf("disk-k%d", k.made)
	hint, err := any(nil), k.i.NewDisk(cid, k.size)
	if err == nil {
		hint, err = k.i.AttachDisk(k.t.Context(), cid)
	}
	if err != nil {
		k.t.Fatal(err)
	}
	if hint != nil {
		k.must([]any{"add_persistent_disk", cid, hint})
	}
	return cid
}

// drop takes a disk from the machine, and deletes it.
func (k *busy) drop(cid string) {
	k.t.Helper()
	k.must([]any{"unmount_disk", cid})
	k.must([]any{"remove_persistent_disk", cid})
	if err := k.i.LoseDisk(k.t.Context(), cid); err != nil {
		k.t.Fatal(err)
	}
}

func (k *busy) mounting() attempt {
	k.t.Helper()
	cid := k.blank()
	return attempt{request: []any{"mount_disk", cid}, after: func() {
		k.t.Helper()
		if mounted, err := k.i.Agent.Scan(k.t.Context()); err != nil || len(mounted) != 2 {
			k.t.Errorf("after mount_disk: %v, %v", mounted, err)
		}
		k.drop(cid)
	}}
}

func (k *busy) migrating() attempt {
	k.t.Helper()
	cid := k.blank()
	k.must([]any{"mount_disk", cid})
	old := k.disk
	return attempt{request: []any{"migrate_disk", old, cid}, first: []any{"mount_disk", cid}, after: func() {
		k.t.Helper()
		k.drop(old)
		k.disk = cid
	}}
}

func (k *busy) updating() attempt {
	k.t.Helper()
	settings, err := k.i.Permanent()
	if err != nil {
		k.t.Fatal(err)
	}
	return attempt{request: []any{"update_settings", settings}, after: func() {}}
}

func (k *busy) scripting() attempt {
	return attempt{request: []any{"run_script", "pre-start", map[string]any{}}, after: func() {}}
}

func (k *busy) compiling() attempt {
	k.t.Helper()
	packaging := release.Files{"packaging": "sleep 0.3; touch $BOSH_INSTALL_TARGET/made\n"}
	source, err := release.Package{Name: "src", Files: packaging}.Pack("")
	if err != nil {
		k.t.Fatal(err)
	}
	id, digest := putBlob(k.t, k.l, source)
	return attempt{request: []any{"compile_package_with_signed_url", map[string]any{
		"package_get_signed_url": k.l.Blobs.SignedURL("GET", id),
		"upload_signed_url":      k.l.Blobs.SignedURL("PUT", "compiled"),
		"digest":                 digest, "name": "src", "version": "1", "deps": map[string]any{}}},
		// A compilation leaves the packages that it needed, and no others.
		after: func() { k.must([]any{"apply", k.spec}) }}
}
