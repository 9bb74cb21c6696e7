package agent

import (
	"bytes"
	"crypto/sha1"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"cambium/internal/eventually"
	"cambium/jobs"
	"cambium/settings"
)

// What the job, package, script and log actions answer is in the conformance table; here is what
// they do.

// TestInstanceUpdate is an update as a Director performs it: which scripts run, with which
// arguments, and the addresses that are recorded.
func TestInstanceUpdate(t *testing.T) {
	w := newWorkshop(t)
	w.inForce = map[string]settings.Network{
		"default": {Type: "dynamic", IP: "10.1.2.3", Netmask: "255.0.0.0", Gateway: "10.0.0.1"},
		"static":  {IP: "wrong", Netmask: "255.0.0.0"}}
	w.ready()
	trace := filepath.Join(t.TempDir(), "trace")
	pkg, digest := w.blob(t, map[string]string{"./f": "x"})
	packages := func(digest string) map[string]any {
		return map[string]any{"p": map[string]any{"name": "p", "version": "1.1", "sha1": digest, "blobstore_id": pkg}}
	}
	spec := w.spec(t, "h1", map[string]map[string]string{"aux": {}, "web": {
		"bin/pre-start": sh("echo pre-start >> " + trace),
		"bin/pre-stop":  sh("echo pre-stop $BOSH_VM_NEXT_STATE >> " + trace),
		"bin/drain":     sh("echo drain $@ >> " + trace + "; echo 0"),
	}}, packages(digest))
	spec["networks"] = map[string]any{"default": map[string]any{"type": "dynamic", "ip": ""},
		"static": map[string]any{"ip": "10.9.9.9"}, "local": map[string]any{"ip": "127.0.0.1"}}
	next := maps.Clone(spec)
	next["configuration_hash"], next["packages"] = "h2", packages("abcd")
	env := func(next string) map[string]any {
		return map[string]any{"env": map[string]any{"BOSH_VM_NEXT_STATE": next}}
	}
	for _, step := range []struct {
		want, method string
		arguments    []any
	}{
		{`"prepared"`, "prepare", []any{spec}},
		{`{}`, "run_script", []any{"pre-stop", env("keep")}}, // nothing applied: nothing runs
		{`0`, "drain", []any{"update", spec}},
		{`"stopped"`, "stop", nil},
		{`"applied"`, "apply", []any{spec}},
		{`{}`, "run_script", []any{"pre-start", map[string]any{}}},
		{`"started"`, "start", nil},
		{`{}`, "run_script", []any{"pre-stop", env("delete")}},
		{`0`, "drain", []any{"update", next}},
		{`0`, "drain", []any{"shutdown", map[string]any{}}},
		{`0`, "drain", []any{"shutdown"}},
	} {
		if got := w.director.Task(agentID, step.method, step.arguments...); got != `{"value":`+step.want+`}` {
			t.Errorf("%s: got %s, want %s", step.method, got, step.want)
		}
	}
	want := "pre-start\npre-stop delete\ndrain job_changed hash_changed p\ndrain job_shutdown hash_unchanged\ndrain job_shutdown hash_unchanged\n"
	if got := read(t, trace); got != want {
		t.Errorf("got trace\n%s\nwant\n%s", got, want)
	}
	applied := must[jobs.Spec](t)((&jobs.SpecFile{Dirs: w.dirs}).Spec())
	if applied.NetworkString("default", "ip") != "10.1.2.3" ||
		applied.NetworkString("default", "gateway") != "10.0.0.1" || applied.NetworkString("static", "ip") != "10.9.9.9" {
		t.Errorf("got networks %v, want the lease's and the spec's own", applied.Networks)
	}
}

// TestDigestsAreOfWhatWasStored: of compiled packages and logs, in the blobstore and behind signed
// URLs, with the headers that the Director asked for.
func TestDigestsAreOfWhatWasStored(t *testing.T) {
	w := newWorkshop(t)
	w.ready()
	source, digest := w.blob(t, map[string]string{"packaging": "echo hello > $BOSH_INSTALL_TARGET/result"})
	write(t, filepath.Join(w.dirs.SysLog(), "a.log"), "a")
	headers := map[string]any{"X-Key": "k"}
	for _, c := range []struct {
		method    string
		arguments []any
		signed    bool
	}{
		{"compile_package", []any{source, digest, "pkg", "1.1", map[string]any{}}, false},
		{"compile_package_with_signed_url", []any{map[string]any{"package_get_signed_url": w.web.URL + "/" + source, "upload_signed_url": w.web.URL + "/up", "blobstore_headers": headers,
			"digest": digest, "name": "pkg", "version": "1.2", "deps": map[string]any{}}}, true},
		{"fetch_logs", []any{"job,agent", nil}, false},
		{"fetch_logs_with_signed_url", []any{map[string]any{"signed_url": w.web.URL + "/up", "log_type": "job", "filters": []string{"*.log"}, "blobstore_headers": headers}}, true},
	} {
		type stored struct {
			BlobstoreID string `json:"blobstore_id"`
			Digest      string `json:"sha1"`
		}
		var answer struct {
			Value struct {
				stored
				Result *stored
			}
		}
		reply := w.director.Task(agentID, c.method, c.arguments...)
		check(t, json.Unmarshal([]byte(reply), &answer))
		got := answer.Value.stored
		if answer.Value.Result != nil {
			got = *answer.Value.Result
		}
		content, key := w.uploaded()
		if !c.signed {
			content, key = []byte(read(t, filepath.Join(w.dirs.Blobs(), got.BlobstoreID))), "k"
		}
		if sum := fmt.Sprintf("%x", sha1.Sum(content)); !strings.HasPrefix(got.Digest, sum) ||
			!bytes.HasPrefix(content, []byte{0x1f, 0x8b}) || key != "k" {
			t.Errorf("%s: got %s for %d bytes with sha1 %s, header %q", c.method, reply, len(content), sum, key)
		}
	}
}

// When the agent stops, unlike when a task is canceled, scripts go on and are not waited for.
func TestStoppingAgentLeavesScriptsAlone(t *testing.T) {
	w := newWorkshop(t)
	w.ready()
	waiting := sh("echo $$ > " + w.pidFile() + ".new; mv " + w.pidFile() + ".new " + w.pidFile() + "; exec sleep 1000")
	if got := w.director.Task(agentID, "apply",
		w.spec(t, "h", map[string]map[string]string{"web": {"bin/drain": waiting}}, nil)); got != `{"value":"applied"}` {
		t.Fatalf("apply: %s", got)
	}
	w.director.Call(agentID, "drain", "shutdown")
	pid := 0
	eventually.True(t, "the script runs", func() bool {
		pid, _ = strconv.Atoi(strings.TrimSpace(contentOf(w.pidFile())))
		return pid > 0
	})
	w.stop()
	w.dispatcher.Wait()
	if err := syscall.Kill(-pid, syscall.SIGKILL); err != nil {
		t.Errorf("the script is not alone: %v", err)
	}
}

// A drain and an errand that are canceled before they began end as those do that had.
func TestQueuedDrainAndErrandAreCanceled(t *testing.T) {
	w := newWorkshop(t)
	w.ready()
	w.machine.migrate = make(chan struct{})
	w.director.Call(agentID, "migrate_disk")
	ends := map[string]string{}
	for method, want := range map[string]string{"drain": `{"value":0}`,
		"run_errand": `{"value":{"stdout":"","stderr":"","exit_code":143}}`} {
		id := handle.FindStringSubmatch(w.director.Call(agentID, method, "shutdown"))[1]
		w.cancel(t, "nats", id)
		ends[id] = want
	}
	close(w.machine.migrate)
	for id, want := range ends {
		eventually.True(t, want, func() bool { return w.director.Call(agentID, "get_task", id) == want })
	}
}
