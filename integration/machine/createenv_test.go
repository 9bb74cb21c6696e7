//go:build machine

package machine

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha1"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/lab"
	"cambium/lab/director"
	"cambium/lab/release"

	"github.com/google/uuid"
)

// bareArchive packs as create-env does: files without directory entries and without "./".
func bareArchive(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(files[name]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, files[name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestMachineCreateEnv treats a new machine, and the old one before it, as `bosh create-env` does: over HTTPS, without
// a protocol version, with blobs put into the agent itself.
func TestMachineCreateEnv(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	i := start(t, l, lab.VM{HTTPS: true, Ephemeral: 4 * lab.GiB})
	ready(t, i)
	expect := func(want, method string, arguments ...any) {
		t.Helper()
		got, err := i.Agent.Do(t.Context(), method, arguments...)
		if err != nil || want != "" && string(got) != want {
			t.Fatalf("%s: got %s, %v; want %s", method, got, err, want)
		}
	}
	https, ok := i.Agent.Transport.(*director.HTTPS)
	if !ok {
		t.Fatalf("the agent is reached by %T", i.Agent.Transport)
	}
	put := func(data []byte) (id, digest string) {
		t.Helper()
		id = uuid.NewString()
		if err := https.Put(t.Context(), id, bytes.NewReader(data)); err != nil {
			t.Fatal(err)
		}
		return id, fmt.Sprintf("%x", sha1.Sum(data))
	}
	// With keys as the CLI sends them, an empty archive and no jobs.
	expect(`"applied"`, "apply", map[string]any{"configuration_hash": "unused-configuration-hash", "deployment": "",
		"networks": map[string]any{}, "job": nil,
		"packages": map[string]any{}, "rendered_templates_archive": map[string]any{"blobstore_id": "", "sha1": ""}})
	if s := stateOf(t, i); s.JobState != "running" {
		t.Errorf("without jobs: got %s", s.JobState)
	}
	source := bareArchive(t, map[string]string{"packaging": "set -e\nmkdir $BOSH_INSTALL_TARGET/bin\ncp sleeper $BOSH_INSTALL_TARGET/bin/sleeper\nchmod 755 $BOSH_INSTALL_TARGET/bin/sleeper\n",
		"sleeper": tool("compiled").Files["bin/sleeper"]})
	id, digest := put(source)
	var compiled struct {
		Result struct {
			Digest string `json:"sha1"`
			ID     string `json:"blobstore_id"`
		} `json:"result"`
	}
	if err := i.Agent.Into(t.Context(), &compiled, "compile_package", id, digest, "tool", "1a2b",
		map[string]any{}); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, job := range []release.Job{forker(), cycle("")} {
		for name, content := range job.Files {
			files[job.Name+"/"+name] = content
		}
	}
	archive, archiveDigest := put(bareArchive(t, files))
	spec := map[string]any{"deployment": "bosh", "name": "bosh", "index": 0, "id": "0", "az": "unknown",
		"networks": map[string]any{}, "configuration_hash": "h1",
		"job": map[string]any{"name": "bosh",
			"templates": []any{map[string]any{"name": "forker", "version": "f1"},
				map[string]any{"name": "cycle", "version": "c1"}}},
		"packages": map[string]any{"tool": map[string]any{"name": "tool", "version": "1a2b",
			"sha1": compiled.Result.Digest, "blobstore_id": compiled.Result.ID}},
		"rendered_templates_archive": map[string]any{"blobstore_id": archive, "sha1": archiveDigest}}
	expect(`"stopped"`, "stop")
	expect(`"applied"`, "apply", spec)
	expect(`{}`, "run_script", "pre-start", map[string]any{})
	expect(`"started"`, "start")
	if err := i.Agent.WaitRunning(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	expect(`{}`, "run_script", "post-start", map[string]any{})
	if got := strings.TrimSpace(run(t, i, "stat", "-L", "-c", "%a %U:%G",
		"/var/vcap/jobs/cycle/bin/drain")); got != "750 root:vcap" {
		t.Errorf("a script without mode in its archive: got %s", got)
	}
	// The archive of rendered templates, with its secrets, is gone from the machine.
	if _, err := https.Get(t.Context(), archive); err == nil {
		t.Error("the archive of rendered templates is still there")
	}
	// delete-env
	expect(`{}`, "run_script", "pre-stop", map[string]any{})
	expect(`0`, "drain", "shutdown", map[string]any{})
	expect(`"stopped"`, "stop")
	eventually.True(t, "the process to end", func() bool {
		_, err := i.Output(t.Context(), "pgrep", "-f", "sleeper forker")
		return err != nil
	})
	expect(`{}`, "run_script", "post-stop", map[string]any{})
	if s := stateOf(t, i); s.JobState != "stopped" {
		t.Errorf("after stop: got %s", s.JobState)
	}
	// What was stopped stays stopped when the machine boots, and can be started.
	if err := i.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	ready(t, i)
	if got := settledState(t, t.Context(), i); got != "stopped" {
		t.Errorf("after the reboot: got %s", got)
	}
	if out, err := i.Output(t.Context(), "pgrep", "-f", "sleeper forker"); err == nil {
		t.Errorf("after the reboot the stopped job runs: %s", out)
	}
	expect(`"started"`, "start")
	if err := i.Agent.WaitRunning(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	var bundle struct {
		Path   string `json:"logs_tar_path"`
		SHA512 string `json:"sha512"`
	}
	if err := i.Agent.Into(t.Context(), &bundle, "bundle_logs",
		map[string]any{"owning_user": "vcap", "log_type": "job", "filters": []string{}}); err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(run(t, i, "stat", "-c", "%a %U:%G", bundle.Path)); got != "600 vcap:vcap" ||
		!strings.HasPrefix(bundle.SHA512, "sha512:") {
		t.Errorf("bundle: got %s, %+v", got, bundle)
	}
	expect("", "remove_file", bundle.Path)
}

// TestMachineAgentKilled kills the agent in the middle of prepare, apply, scripts, a drain, an
// errand, a collection of logs, a compilation and a stop, and repeats what was interrupted. Processes and scripts go on; every repetition succeeds.
func TestMachineAgentKilled(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	m := func(version string) release.Manifest {
		big := release.Package{Name: "big", Files: release.Files{}}
		for n := range 300 {
			big.Files[fmt.Sprintf("f%03d", n)] = strings.Repeat(version+fmt.Sprint(n), 20000)
		}
		return manifest([]release.Job{forker(), cycle("sleep 2; echo slept >>" + trace)}, tool(version), big)
	}
	i := mustDeploy(t, l, m("one"))
	pid := strings.TrimSpace(content(t, i, "/var/vcap/data/sys/run/forker/forker.pid"))
	spec := json.RawMessage(content(t, i, "/var/vcap/bosh/spec.json"))
	kill := func() {
		t.Helper()
		run(t, i, "systemctl", "kill", "--kill-who=main", "--signal=KILL", "agent.service")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := i.Ready(ctx); err != nil {
			jobs, _ := i.Output(t.Context(), "systemctl", "list-jobs")
			t.Fatalf("the agent did not come back: %v\n%s", err, jobs)
		}
	}
	complete := func(after string) {
		t.Helper()
		// Whatever is there is complete: every version of the package has all of its files.
		out := run(t, i, "sh", "-c", `for d in /var/vcap/data/packages/big/*; do [ -d "$d" ] || continue; ls "$d" | wc -l; done; ls -A /var/vcap/data/packages/*/ /var/vcap/data/jobs/*/ | grep staging || true`)
		for line := range strings.Lines(out) {
			if strings.TrimSpace(line) != "300" {
				t.Errorf("after a kill in %s: got %q, want complete versions only", after, out)
			}
		}
	}
	for _, delay := range []time.Duration{0, 30 * time.Millisecond, 100 * time.Millisecond, 300 * time.Millisecond} {
		run(t, i, "sh", "-c", "rm -rf /var/vcap/data/packages/big")
		if _, err := i.Agent.Call(t.Context(), "prepare", spec); err != nil {
			t.Fatal(err)
		}
		time.Sleep(delay)
		kill()
		complete("prepare")
		if _, err := i.Agent.Do(t.Context(), "prepare", spec); err != nil {
			t.Fatalf("prepare after a kill: %v", err)
		}
		complete("prepare")
	}
	if now := strings.TrimSpace(content(t, i, "/var/vcap/data/sys/run/forker/forker.pid")); now != pid {
		t.Errorf("the process did not survive the agent's deaths: %s became %s", pid, now)
	}
	for _, delay := range []time.Duration{0, 50 * time.Millisecond, 200 * time.Millisecond, 600 * time.Millisecond} {
		if _, err := i.Agent.Call(t.Context(), "apply", spec); err != nil {
			t.Fatal(err)
		}
		time.Sleep(delay)
		kill()
		complete("apply")
		if _, err := i.Agent.Do(t.Context(), "apply", spec); err != nil {
			t.Fatalf("apply after a kill: %v", err)
		}
	}
	if got, err := i.Agent.Do(t.Context(), "start"); err != nil || string(got) != `"started"` {
		t.Fatalf("start: %s, %v", got, err)
	}
	// A script goes on when its agent dies.
	before, begun := strings.Count(content(t, i, trace), "slept"), strings.Count(content(t, i, trace), "pre-start\n")
	if _, err := i.Agent.Call(t.Context(), "run_script", "pre-start", map[string]any{}); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "the script to begin", func() bool {
		return strings.Count(content(t, i, trace), "pre-start\n") == begun+1
	})
	kill()
	eventually.True(t, "the script to end", func() bool {
		return strings.Count(content(t, i, trace), "slept") == before+1
	})
	killedWithoutATrace(t, l, i, kill)
	if _, err := i.Agent.Call(t.Context(), "stop"); err != nil {
		t.Fatal(err)
	}
	kill()
	mustDeploy(t, l, m("two"))
	if s := stateOf(t, i); s.JobState != "running" {
		t.Errorf("in the end: got %s", s.JobState)
	}
}

// killedWithoutATrace kills the agent during what writes files of its own: nothing is left of them
// when it has come back, and the same call succeeds.
func killedWithoutATrace(t *testing.T, l *lab.Lab, i *lab.Instance, kill func()) {
	t.Helper()
	run(t, i, "sh", "-c", "mkdir -p /var/vcap/sys/log/noise; head -c 200000000 /dev/urandom >/var/vcap/sys/log/noise/noise.log")
	source, err := release.Package{Name: "src",
		Files: release.Files{"packaging": "set -e\nsleep 2\necho done >$BOSH_INSTALL_TARGET/result\n"}}.Pack("")
	if err != nil {
		t.Fatal(err)
	}
	id, digest := putBlob(t, l, source)
	for _, call := range []struct {
		method string
		args   []any
	}{
		{"drain", []any{"shutdown"}},
		{"run_errand", []any{"cycle"}},
		{"fetch_logs_with_signed_url", []any{map[string]any{"signed_url": l.Blobs.SignedURL("PUT", "killed-logs"), "log_type": "job", "filters": []string{}}}},
		{"compile_package_with_signed_url", []any{map[string]any{"package_get_signed_url": l.Blobs.SignedURL("GET", id),
			"upload_signed_url": l.Blobs.SignedURL("PUT", "killed-compiled"), "digest": digest, "name": "src", "version": "1",
			"deps": map[string]any{}}}},
	} {
		if _, err := i.Agent.Call(t.Context(), call.method, call.args...); err != nil {
			t.Fatalf("%s: %v", call.method, err)
		}
		time.Sleep(300 * time.Millisecond)
		kill()
		if left := strings.TrimSpace(run(t, i, "sh", "-c", "ls -A /var/vcap/data/tmp")); left != "" {
			t.Errorf("%s: left in the temporary directory: %s", call.method, left)
		}
		if _, err := i.Agent.Do(t.Context(), call.method, call.args...); err != nil {
			t.Errorf("%s after a kill: %v", call.method, err)
		}
	}
	if left := strings.TrimSpace(run(t, i, "sh", "-c",
		"ls -A /var/vcap/data/compile /var/vcap/data/tmp")); strings.Contains(left, "src") {
		t.Errorf("left of the compilation: %s", left)
	}
	run(t, i, "rm", "-rf", "/var/vcap/sys/log/noise")
}
