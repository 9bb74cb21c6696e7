//go:build machine

package machine

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/lab"
	"cambium/lab/director"
	"cambium/lab/labtest"
	"cambium/lab/release"
)

// monitFile supervises one process of a job by its pid file.
func monitFile(job string) string {
	return fmt.Sprintf(`check process %[1]s
  with pidfile /var/vcap/sys/run/%[1]s/%[1]s.pid
  start program "/var/vcap/jobs/%[1]s/bin/ctl start" with timeout 30 seconds
  stop program "/var/vcap/jobs/%[1]s/bin/ctl stop"
  group vcap
`, job)
}

// forker is a daemon that goes to the background and leaves its pid in a file.
func forker() release.Job {
	return release.Job{Name: "forker", Files: release.Files{
		"monit": monitFile("forker"),
		"bin/ctl": `#!/bin/bash
set -eu
pid=/var/vcap/sys/run/forker/forker.pid
case $1 in
start) setsid /var/vcap/packages/tool/bin/sleeper forker </dev/null >>/var/vcap/sys/log/forker/forker.log 2>&1 & echo $! >$pid ;;
stop) [ ! -e $pid ] || kill "$(cat $pid)" || true; rm -f $pid ;;
esac
`}}
}

// execer writes its own pid and becomes the daemon: the script never exits. The monit of stemcells
// (5.2.5) does not wait for start programs; the one of these machines (5.33) kills those that do
// not exit in time, hence the setsid.
func execer() release.Job {
	return release.Job{Name: "execer", Files: release.Files{
		"monit": strings.Replace(monitFile("execer"), `"/var/vcap/jobs/execer/bin/ctl start"`,
			`"/usr/bin/setsid -f /var/vcap/jobs/execer/bin/ctl start"`, 1),
		"bin/ctl": `#!/bin/bash
set -eu
pid=/var/vcap/sys/run/execer/execer.pid
case $1 in
start) echo $$ >$pid; exec /var/vcap/packages/tool/bin/sleeper execer >>/var/vcap/sys/log/execer/execer.log 2>&1 ;;
stop) [ ! -e $pid ] || kill "$(cat $pid)" || true; rm -f $pid ;;
esac
`}}
}

// trace is the file to which the scripts of cycle append their marks, on the root disk of the machine.
const trace = "/var/vcap/trace"

// cycle has no process, but every script there is, and a drain that wants to be asked again.
func cycle(preStart string) release.Job {
	mark := func(name, more string) string {
		return "#!/bin/bash\necho " + name + " $BOSH_VM_NEXT_STATE $@ >>" + trace + "\n" + more + "\n"
	}
	return release.Job{Name: "cycle", Files: release.Files{
		"monit": "", "bin/pre-start": mark("pre-start", preStart), "bin/post-start": mark("post-start", ""),
		"bin/post-deploy": mark("post-deploy", ""),
		"bin/pre-stop":    mark("pre-stop", ""), "bin/post-stop": mark("post-stop", ""),
		"bin/drain": mark("drain", `[ "$1" = job_check_status ] && echo 0 || echo -1`),
		"bin/run":   "#!/bin/bash\necho first; head -c 104857600 /dev/zero | tr '\\0' x; echo; echo last; echo problem >&2; exit 5\n",
	}}
}

func tool(version string) release.Package {
	return release.Package{Name: "tool", Files: release.Files{"bin/sleeper": "#!/bin/bash\necho " + version + " $1 up\nwhile :; do sleep 3600 & wait; done\n"}}
}

func manifest(jobs []release.Job, packages ...release.Package) release.Manifest {
	return release.Manifest{Name: "dep", Groups: []release.Group{{Name: "app", Instances: 1, EphemeralDisk: 4096,
		Jobs: jobs, Packages: packages}}}
}

// deploy brings the lab to the manifest, and returns its one machine.
func deploy(t *testing.T, l *lab.Lab, m release.Manifest) (*lab.Instance, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	err := l.Deploy(ctx, m, func(instance, step string, took time.Duration, err error) {
		t.Logf("%s: %s %v %v", instance, step, took.Round(time.Millisecond), err)
	})
	return l.Machines()["app-0"], err
}

func mustDeploy(t *testing.T, l *lab.Lab, m release.Manifest) *lab.Instance {
	t.Helper()
	i, err := deploy(t, l, m)
	if i != nil {
		labtest.Explain(t, i)
	}
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func (s jobState) processes() string {
	var all []string
	for _, p := range s.Processes {
		all = append(all, p.Name+":"+p.State)
	}
	return strings.Join(all, " ")
}

type jobState struct{ director.State }

func stateOf(t *testing.T, i *lab.Instance) jobState {
	t.Helper()
	s, err := i.Agent.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return jobState{s}
}

func content(t *testing.T, i *lab.Instance, path string) string {
	t.Helper()
	data, err := i.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestMachineJobs takes an instance through its life: deployment, death of a process, reboot,
// update with changed and removed jobs and packages, failing scripts, errand, logs, compilation.
func TestMachineJobs(t *testing.T) {
	t.Parallel()
	jobLife(t, "systemd")
}

func jobLife(t *testing.T, supervisor string) {
	l := supervisedLab(t, supervisor)
	m := manifest([]release.Job{forker(), execer(), cycle("")}, tool("one"),
		release.Package{Name: "gone", Files: release.Files{"f": "x"}})
	i := mustDeploy(t, l, m)

	if s := stateOf(t, i); s.JobState != "running" ||
		s.processes() != "execer:running forker:running" && s.processes() != "forker:running execer:running" {
		t.Errorf("after the deployment: got %s with %s", s.JobState, s.processes())
	}
	if got, want := content(t, i, trace), "pre-start\npost-start\npost-deploy\n"; got != want {
		t.Errorf("scripts: got %q, want %q", got, want)
	}
	for path, want := range map[string]string{
		"/var/vcap/jobs": "750 root:vcap", "/var/vcap/packages": "755 root:vcap",
		"/var/vcap/data/jobs/cycle": "750 root:vcap", "/var/vcap/data/packages/tool": "755 root:vcap",
		"/var/vcap/jobs/cycle/bin/drain": "750 root:vcap", "/var/vcap/jobs/cycle/monit": "640 root:vcap",
		"/var/vcap/jobs/cycle/packages/tool/bin/sleeper": "755 root:root",
		"/var/vcap/data/forker":                          "770 root:vcap", "/var/vcap/data/sys/log/forker": "770 root:vcap",
		"/var/vcap/data/sys/run/forker": "770 root:vcap",
		"/var/vcap/instance/id":         "644 root:root", "/var/vcap/bosh/spec.json": "600 root:root",
	} {
		if got := strings.TrimSpace(run(t, i, "stat", "-L", "-c", "%a %U:%G", path)); got != want {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
	}
	if got := content(t, i, "/var/vcap/instance/health.json"); got != `{"state":"running"}` {
		t.Errorf("health.json: got %s", got)
	}

	death(t, l, i)
	monitAccount(t, i)
	reboot(t, i)
	errand(t, i)
	fetchedLogs(t, l, i)

	// Update: one job changes with its package, one goes, one package goes. A file of the job's
	// own stays.
	run(t, i, "sh", "-c", "echo mine >/var/vcap/data/forker/state")
	old := strings.TrimSpace(run(t, i, "readlink", "/var/vcap/packages/tool"))
	mustDeploy(t, l, manifest([]release.Job{forker(), cycle("true")}, tool("two")))
	if s := stateOf(t, i); s.JobState != "running" || s.processes() != "forker:running" {
		t.Errorf("after the update: got %s with %s", s.JobState, s.processes())
	}
	if got := strings.TrimSpace(run(t, i, "sh", "-c",
		"ls /var/vcap/jobs /var/vcap/packages /var/vcap/data/jobs /var/vcap/data/packages /var/vcap/jobs/forker/packages | xargs")); got !=
		"/var/vcap/data/jobs: cycle forker /var/vcap/data/packages: tool /var/vcap/jobs: cycle forker /var/vcap/jobs/forker/packages: tool /var/vcap/packages: tool" {
		t.Errorf("after the update: got %s", got)
	}
	if now := strings.TrimSpace(run(t, i, "readlink", "/var/vcap/packages/tool")); now == old {
		t.Error("the package's link was not switched")
	}
	if got := content(t, i, "/var/vcap/data/forker/state"); got != "mine\n" {
		t.Errorf("the job's own file: got %q", got)
	}
	if got, want := content(t, i, trace), "pre-start\npost-start\npost-deploy\npre-stop keep\ndrain job_changed hash_changed tool\ndrain job_check_status hash_unchanged\npost-stop\npre-start\npost-start\npost-deploy\n"; got != want {
		t.Errorf("scripts: got %q, want %q", got, want)
	}
	// The processes of the job that went were stopped.
	if out, err := i.Output(t.Context(), "pgrep", "-f", "sleeper execer"); err == nil {
		t.Errorf("the removed job still runs: %s", out)
	}

	// A failing pre-start ends the update; the message names the job. Then it is mended.
	_, err := deploy(t, l, manifest([]release.Job{forker(), cycle("echo broken >&2; exit 3")}, tool("two")))
	var e *director.Exception
	if !errors.As(err, &e) || !strings.Contains(e.Message, "1 of 1 pre-start scripts failed. Failed Jobs: cycle.") {
		t.Errorf("failing pre-start: got %v", err)
	}
	if got := content(t, i, "/var/vcap/data/sys/log/cycle/pre-start.stderr.log"); !strings.HasSuffix(got, "broken\n") {
		t.Errorf("its log: got %q", got)
	}
	mustDeploy(t, l, manifest([]release.Job{forker(), cycle("")}, tool("two")))
	compiled(t, l, i)
}

// death kills a process; monit starts it again and the Health Monitor hears of it.
func death(t *testing.T, l *lab.Lab, i *lab.Instance) {
	t.Helper()
	pid := strings.TrimSpace(content(t, i, "/var/vcap/data/sys/run/forker/forker.pid"))
	killed := time.Now()
	run(t, i, "kill", "-9", pid)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	event, err := l.Monitor.Wait(ctx, killed, func(e director.Event) bool {
		return e.Kind == "alert" && e.Agent == i.AgentID &&
			strings.Contains(strings.ToLower(string(e.Body)), "does not exist")
	})
	if err != nil {
		t.Fatalf("no alert of a process that died: %v", err)
	}
	var a director.Alert
	if err := json.Unmarshal(event.Body, &a); err != nil || a.Valid() != nil || *a.Severity != 1 ||
		!strings.HasPrefix(a.Title, "forker ("+i.IP+") - ") {
		t.Errorf("got alert %s, %v, %v", event.Body, err, a.Valid())
	}
	eventually.True(t, "a new process", func() bool {
		return stateOf(t, i).JobState == "running" &&
			strings.TrimSpace(content(t, i, "/var/vcap/data/sys/run/forker/forker.pid")) != pid
	})
}

// monitAccount: releases know monit's account. A machine on which an earlier agent had made a password gets
// the account when the agent starts, and the monit that knows the password is replaced under running jobs.
func monitAccount(t *testing.T, i *lab.Instance) {
	t.Helper()
	const path, account = "/var/vcap/monit/monit.user", "vcap:random-password"
	if got := content(t, i, path); got != account {
		t.Errorf("%s holds %q, want %q", path, got, account)
	}
	mainPID := func() string {
		return strings.TrimSpace(run(t, i, "systemctl", "show", "--property=MainPID", "--value", "monit.service"))
	}
	run(t, i, "sh", "-c", "printf vcap:OWNPASSWORD >"+path+" && systemctl kill --kill-who=main --signal=KILL monit.service")
	eventually.True(t, "monit with the password of its own", func() bool { return stateOf(t, i).JobState == "running" })
	job, monit := content(t, i, "/var/vcap/data/sys/run/forker/forker.pid"), mainPID()
	var after [2]string
	for n := range after {
		run(t, i, "systemctl", "restart", "agent.service")
		ready(t, i)
		eventually.True(t, "monit with the account", func() bool { return stateOf(t, i).JobState == "running" })
		after[n] = mainPID()
		if got := content(t, i, path); got != account {
			t.Errorf("after a start of the agent %s holds %q, want %q", path, got, account)
		}
		if got := content(t, i, "/var/vcap/data/sys/run/forker/forker.pid"); got != job {
			t.Errorf("the process of the job is %s, want %s to run on", got, job)
		}
	}
	if after[0] == monit || after[1] != after[0] {
		t.Errorf("monit was process %s, then %s and %s; want it replaced once", monit, after[0], after[1])
	}
}

// reboot shows that everything runs again without the Director, and that no pre-start ran.
func reboot(t *testing.T, i *lab.Instance) {
	t.Helper()
	before := content(t, i, trace)
	if err := i.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	ready(t, i)
	eventually.True(t, "all processes after the reboot", func() bool {
		s := stateOf(t, i)
		return s.JobState == "running" && len(s.Processes) == 2
	})
	run(t, i, "pgrep", "-f", "sleeper execer")
	run(t, i, "pgrep", "-f", "sleeper forker")
	if after := content(t, i, trace); after != before {
		t.Errorf("scripts ran at the reboot: %q", after)
	}
}

func errand(t *testing.T, i *lab.Instance) {
	t.Helper()
	var got struct {
		Stdout   string `json:"stdout"`
		Stderr   string `json:"stderr"`
		ExitCode int    `json:"exit_code"`
	}
	pid := strings.TrimSpace(run(t, i, "systemctl", "show", "--property=MainPID", "--value", "agent.service"))
	// Makes the kernel forget the largest size so far.
	run(t, i, "sh", "-c", "echo 5 >/proc/"+pid+"/clear_refs")
	memory := func(name string) (kb int) {
		t.Helper()
		fmt.Sscan(strings.TrimSpace(run(t, i, "sed", "-n", "s/^"+name+":\\s*//p", "/proc/"+pid+"/status")), &kb)
		return kb
	}
	before := memory("VmRSS")
	if err := i.Agent.Into(t.Context(), &got, "run_errand", "cycle"); err != nil {
		t.Fatal(err)
	}
	if peak := memory("VmHWM"); before == 0 || peak == 0 || peak > before+64<<10 {
		t.Errorf("an errand of 100 MiB of output: the agent grew from %d to %d KiB", before, peak)
	} else {
		t.Logf("an errand of 100 MiB of output: the agent grew from %d to %d KiB", before, peak)
	}
	if got.ExitCode != 5 || got.Stderr != "problem\n" || !strings.HasPrefix(got.Stdout, "first\nxxx") ||
		!strings.HasSuffix(got.Stdout, "x\nlast\n") {
		t.Errorf("errand: got code %d, stderr %q and %d bytes of output", got.ExitCode, got.Stderr, len(got.Stdout))
	}
}

// fetchedLogs fetches 1 GiB of logs while they are written.
func fetchedLogs(t *testing.T, l *lab.Lab, i *lab.Instance) {
	t.Helper()
	run(t, i, "sh", "-c", `mkdir -p /var/vcap/sys/log/big; head -c 1073741824 /dev/zero | tr '\0' x >/var/vcap/sys/log/big/big.log
		ln -s /etc/shadow /var/vcap/sys/log/big/shadow.log
		(for n in $(seq 600); do [ ! -e /var/vcap/enough ] || break; echo line $n >>/var/vcap/sys/log/big/growing.log; echo more >>/var/vcap/sys/log/big/big.log; sleep 0.05; done) >/dev/null 2>&1 &
		until [ -s /var/vcap/sys/log/big/growing.log ]; do sleep 0.01; done`)
	id := "logs-of-the-machine"
	var got struct {
		Digest string `json:"sha1"`
	}
	begun := time.Now()
	fetched := make(chan error, 1)
	go func() {
		fetched <- i.Agent.Into(t.Context(), &got, "fetch_logs_with_signed_url",
			map[string]any{"signed_url": l.Blobs.SignedURL("PUT", id), "log_type": "job", "filters": []string{},
				"blobstore_headers": nil})
	}()
	progress := 0
	for ended := false; !ended; {
		select {
		case err := <-fetched:
			if err != nil {
				t.Fatal(err)
			}
			ended = true
		case <-time.After(300 * time.Millisecond):
			progress += strings.Count(content(t, i, "/run/cambium/status.json"), "MiB read")
		}
	}
	took := time.Since(begun)
	t.Logf("fetch_logs of 1 GiB: %v, progress seen %d times", took.Round(time.Millisecond), progress)
	if progress == 0 && took > 10*time.Second {
		t.Error("the status did not show how far the collection is")
	}
	eventually.True(t, "the end of the progress in the status", func() bool {
		return !strings.Contains(content(t, i, "/run/cambium/status.json"), "collect_logs")
	})
	data, ok := l.Blobs.Get(id)
	if !ok || !strings.Contains(got.Digest, ";sha512:") {
		t.Fatalf("got digest %q, blob %v", got.Digest, ok)
	}
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	sizes := map[string]int64{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, r)
		if err != nil {
			t.Fatal(err)
		}
		sizes[h.Name] = n
	}
	if sizes["./big/big.log"] < 1<<30 || sizes["./big/growing.log"] == 0 {
		t.Errorf("got %v", sizes)
	}
	if _, followed := sizes["./big/shadow.log"]; followed {
		t.Error("a link out of the logs was followed")
	}
	if left := strings.TrimSpace(run(t, i, "sh", "-c", "ls -A /var/vcap/data/tmp")); left != "" {
		t.Errorf("left in the temporary directory: %s", left)
	}
	run(t, i, "touch", "/var/vcap/enough")
}

// compiled compiles a package that needs another.
func compiled(t *testing.T, l *lab.Lab, i *lab.Instance) {
	t.Helper()
	dep, err := release.Package{Name: "dep", Files: release.Files{"word": "from dep"}}.Pack("")
	if err != nil {
		t.Fatal(err)
	}
	source, err := release.Package{Name: "src",
		Files: release.Files{"packaging": "set -e\ncp /var/vcap/packages/dep/word $BOSH_INSTALL_TARGET/result\n"}}.Pack("")
	if err != nil {
		t.Fatal(err)
	}
	depID, depDigest := putBlob(t, l, dep)
	id, digest := putBlob(t, l, source)
	var got struct {
		Result struct {
			Digest string `json:"sha1"`
		} `json:"result"`
	}
	if err := i.Agent.Into(t.Context(), &got, "compile_package_with_signed_url", map[string]any{
		"package_get_signed_url": l.Blobs.SignedURL("GET", id), "upload_signed_url": l.Blobs.SignedURL("PUT", "compiled"),
		"digest": digest, "name": "src", "version": "1.1",
		"deps": map[string]any{"dep": map[string]any{"name": "dep", "version": "1", "sha1": depDigest,
			"package_get_signed_url": l.Blobs.SignedURL("GET", depID)}},
	}); err != nil {
		t.Fatal(err)
	}
	if data, ok := l.Blobs.Get("compiled"); !ok || len(data) == 0 || got.Result.Digest == "" {
		t.Errorf("got %+v, %d bytes", got, len(data))
	}
}

// putBlob stores a blob.
func putBlob(t *testing.T, l *lab.Lab, data []byte) (id, digest string) {
	t.Helper()
	id, digest, err := l.Blobs.Put(data)
	if err != nil {
		t.Fatal(err)
	}
	return id, digest
}
