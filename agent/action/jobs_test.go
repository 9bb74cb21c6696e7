package action

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
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"cambium/agent/task"
	"cambium/blobstore"
	"cambium/internal/secret"
	"cambium/internal/vcap"
	"cambium/jobs"
	"cambium/jobs/bundle"
	"cambium/jobs/compile"
	"cambium/jobs/dummysupervisor"
	"cambium/jobs/logs"
	"cambium/jobs/script"

	"github.com/sirupsen/logrus"
)

// rig is a machine with everything real but the processes.
type rig struct {
	t        *testing.T
	dirs     vcap.Dirs
	store    *blobstore.Store
	table    Table
	shutdown int
	inForce  map[string]NetworkInForce
}

func newRig(t *testing.T) *rig {
	t.Helper()
	root := t.TempDir()
	r := &rig{t: t, dirs: vcap.New(filepath.Join(root, "var/vcap"))}
	for _, dir := range []string{r.dirs.Tmp(), r.dirs.Blobs(), r.dirs.SensitiveBlobs(), r.dirs.SysLog(), r.dirs.Bosh(), r.dirs.Monit(), filepath.Join(root, "var/log")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(r.dirs.DataSys(), r.dirs.Sys()); err != nil {
		t.Fatal(err)
	}
	logger := logrus.New()
	logger.SetOutput(t.Output())
	log := logrus.NewEntry(logger)
	var err error
	r.store, err = blobstore.New(blobstore.Options{Provider: "local", Dirs: r.dirs, Log: log,
		Options: secret.NewJSON([]byte(`{"blobstore_path":"/var/vcap/micro_bosh/data/cache"}`))})
	if err != nil {
		t.Fatal(err)
	}
	owner := bundle.Owner{UID: os.Geteuid(), GID: os.Getegid()}
	r.table = JobRows(JobDeps{
		Instance:    &jobs.Instance{Dirs: r.dirs, Blobs: r.store, Supervisor: &dummysupervisor.Dummy{}, Owner: owner, Parallel: 5, Root: root, Log: log},
		Scripts:     script.Runner{Dirs: r.dirs, Log: log},
		Compiler:    compile.Compiler{Dirs: r.dirs, Blobs: r.store, Owner: owner, Parallel: 1, Log: log},
		Logs:        logs.Collector{Dirs: r.dirs, Root: root, Log: log},
		Uploads:     r.store,
		Networks:    func(context.Context) (map[string]NetworkInForce, error) { return r.inForce, nil },
		SayShutdown: func(context.Context) { r.shutdown++ },
	})
	return r
}

// call runs a method with JSON arguments and returns the answer as JSON, or the error.
func (r *rig) call(ctx context.Context, protocol int, method string, arguments ...string) (string, error) {
	r.t.Helper()
	run, err := r.table[method].Bind(raw(arguments...))
	if err != nil {
		return "", err
	}
	value, err := run(WithCall(ctx, Call{Method: method, Protocol: protocol}))
	if err != nil {
		return "", err
	}
	answer, err := json.Marshal(value)
	if err != nil {
		r.t.Fatal(err)
	}
	return string(answer), nil
}

func (r *rig) expect(want, method string, arguments ...string) {
	r.t.Helper()
	got, err := r.call(r.t.Context(), 3, method, arguments...)
	if err != nil || got != want {
		r.t.Errorf("%s: got %s, %v; want %s", method, got, err, want)
	}
}

func (r *rig) fails(want, method string, arguments ...string) {
	r.t.Helper()
	got, err := r.call(r.t.Context(), 3, method, arguments...)
	if err == nil || !strings.Contains(err.Error(), want) {
		r.t.Errorf("%s: got %s, %v; want an error with %q", method, got, err, want)
	}
}

// blob stores a gzip tar and returns its id and digest.
func (r *rig) blob(files map[string]string) (id, digest string) {
	r.t.Helper()
	id, digest, err := r.store.Put(r.t.Context(), func(w io.Writer) error {
		z := gzip.NewWriter(w)
		archive := tar.NewWriter(z)
		for _, name := range slices.Sorted(maps.Keys(files)) {
			if err := archive.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(files[name]))}); err != nil {
				return err
			}
			io.WriteString(archive, files[name])
		}
		return errors.Join(archive.Close(), z.Close())
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return id, digest
}

// TestInstanceUpdate is the sequence of an update as a Director performs it.
func TestInstanceUpdate(t *testing.T) {
	r := newRig(t)
	trace := filepath.Join(t.TempDir(), "trace")
	sh := func(body string) string { return "#!/bin/bash\n" + body + "\n" }
	archive, digest := r.blob(map[string]string{
		"./web/monit": "", "./web/bin/pre-start": sh("echo pre-start >> " + trace), "./web/bin/post-start": sh("exit 1"),
		"./web/bin/pre-stop": sh("echo pre-stop $BOSH_VM_NEXT_STATE >> " + trace), "./web/bin/drain": sh("echo drain $@ >> " + trace + "; echo 0"),
		"./web/bin/run": sh("echo out; echo err >&2; exit 3"), "./aux/monit": "",
	})
	pkg, pkgDigest := r.blob(map[string]string{"./f": "x"})
	r.inForce = map[string]NetworkInForce{"default": {Dynamic: true, IP: "10.1.2.3", Netmask: "255.0.0.0", Gateway: "10.0.0.1"}, "static": {IP: "wrong"}}
	spec := fmt.Sprintf(`{"deployment":"d","name":"g","id":"i","index":0,"job":{"name":"g","template":"web","templates":[{"name":"web","version":"1"},{"name":"aux","version":"1"}]},
	 "packages":{"p":{"name":"p","version":"1.1","sha1":%q,"blobstore_id":%q}},"configuration_hash":"h1","rendered_templates_archive":{"blobstore_id":%q,"sha1":%q},
	 "networks":{"default":{"type":"dynamic","ip":""},"static":{"ip":"10.9.9.9"},"local":{"ip":"127.0.0.1"}}}`, pkgDigest, pkg, archive, digest)

	r.expect(`"prepared"`, "prepare", spec)
	r.expect(`{}`, "run_script", `"pre-stop"`, `{"env":{"BOSH_VM_NEXT_STATE":"keep"}}`) // nothing applied: nothing runs
	r.expect(`0`, "drain", `"update"`, spec)
	r.expect(`"stopped"`, "stop")
	r.expect(`"applied"`, "apply", spec)
	r.expect(`{}`, "run_script", `"pre-start"`, `{}`)
	r.expect(`"started"`, "start")
	r.fails("1 of 1 post-start scripts failed. Failed Jobs: web.", "run_script", `"post-start"`, `{}`)
	r.expect(`{}`, "run_script", `"pre-stop"`, `{"env":{"BOSH_VM_NEXT_STATE":"delete"}}`)
	r.expect(`0`, "drain", `"update"`, strings.Replace(strings.Replace(spec, pkgDigest, "abcd", 1), `"h1"`, `"h2"`, 1))
	r.expect(`0`, "drain", `"shutdown"`, `{}`)
	r.expect(`0`, "drain", `"shutdown"`)
	r.fails("drain update needs", "drain", `"update"`)
	r.fails("not known", "drain", `"status"`)
	r.fails("not known", "drain", `"other"`, spec)
	r.expect(`{"stdout":"out\n","stderr":"err\n","exit_code":3}`, "run_errand")
	r.expect(`{"stdout":"out\n","stderr":"err\n","exit_code":3}`, "run_errand", `"web"`)
	r.fails("could not find errand other", "run_errand", `"other"`)
	r.fails("errand aux", "run_errand", `"aux"`) // it has no script
	got, err := os.ReadFile(trace)
	want := "pre-start\npre-stop delete\ndrain job_changed hash_changed p\ndrain job_shutdown hash_unchanged\ndrain job_shutdown hash_unchanged\n"
	if err != nil || string(got) != want {
		t.Errorf("got trace\n%s\nwant\n%s", got, want)
	}
	if r.shutdown != 2 {
		t.Errorf("the Health Monitor was told %d times, want 2", r.shutdown)
	}
	applied, err := (&jobs.State{Dirs: r.dirs}).Spec()
	if err != nil || applied.NetworkString("default", "ip") != "10.1.2.3" || applied.NetworkString("default", "gateway") != "10.0.0.1" || applied.NetworkString("static", "ip") != "10.9.9.9" {
		t.Errorf("got networks %v, %v", applied.Networks, err)
	}
	r.fails(`network "nope" of the spec`, "apply", `{"networks":{"nope":{}}}`)
	r.expect(`"applied"`, "apply", `{"configuration_hash":"unused-configuration-hash","job":null,"rendered_templates_archive":{"blobstore_id":"","sha1":""},"packages":null,"networks":{}}`)
	r.fails("no job is applied", "run_errand")
}

func TestCompileActions(t *testing.T) {
	r := newRig(t)
	source, digest := r.blob(map[string]string{"packaging": "cat ../../../packages/dep/word > $BOSH_INSTALL_TARGET/result"})
	dep, depDigest := r.blob(map[string]string{"./word": "hello"})
	answer, err := r.call(t.Context(), 3, "compile_package", quoteJSON(source), quoteJSON(digest), `"pkg"`, `"1.1"`,
		fmt.Sprintf(`{"dep":{"Name":"dep","Version":"1","Sha1":%q,"blobstore_id":%q}}`, depDigest, dep))
	var c Compiled
	if err != nil || json.Unmarshal([]byte(answer), &c) != nil || c.Result.BlobstoreID == "" {
		t.Fatalf("got %s, %v", answer, err)
	}
	content, err := os.ReadFile(filepath.Join(r.dirs.Blobs(), c.Result.BlobstoreID))
	if err != nil || c.Result.Digest != fmt.Sprintf("%x", sha1.Sum(content)) {
		t.Errorf("got %s for %d bytes, %v", answer, len(content), err)
	}
	r.fails("no digest algorithm found. supported algorithms: sha1, sha256, sha512", "compile_package", quoteJSON(source), `""`, `"pkg"`, `"1.1"`, `{}`)

	var uploaded []byte
	var header string
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		header = q.Header.Get("X-Key")
		if q.Method == http.MethodPut {
			uploaded, _ = io.ReadAll(q.Body)
			return
		}
		http.ServeFile(w, q, filepath.Join(r.dirs.Blobs(), filepath.Base(q.URL.Path)))
	}))
	t.Cleanup(web.Close)
	signed := func(digest string) string {
		return fmt.Sprintf(`{"package_get_signed_url":"%s/%s","upload_signed_url":"%s/up","blobstore_headers":{"X-Key":"k"},"digest":%q,"name":"pkg","version":"1.1",
		 "deps":{"dep":{"name":"dep","version":"1","sha1":%q,"package_get_signed_url":"%s/%s"}}}`, web.URL, source, web.URL, digest, depDigest, web.URL, dep)
	}
	answer, err = r.call(t.Context(), 3, "compile_package_with_signed_url", signed(digest))
	if err != nil || !strings.HasPrefix(answer, fmt.Sprintf(`{"result":{"sha1":"%x;sha512:`, sha1.Sum(uploaded))) || header != "k" {
		t.Errorf("got %s, %v, header %q", answer, err, header)
	}
	r.fails("no digest algorithm found. supported algorithms: sha1, sha256, sha512", "compile_package_with_signed_url", signed(""))
}

func TestLogActions(t *testing.T) {
	r := newRig(t)
	if err := os.WriteFile(filepath.Join(r.dirs.SysLog(), "a.log"), []byte("a"), 0o600); err != nil {
		t.Fatal(err)
	}
	answer, err := r.call(t.Context(), 3, "fetch_logs", `"job,agent"`, `null`)
	var f Fetched
	if err != nil || json.Unmarshal([]byte(answer), &f) != nil {
		t.Fatalf("got %s, %v", answer, err)
	}
	content, err := os.ReadFile(filepath.Join(r.dirs.Blobs(), f.BlobstoreID))
	if err != nil || f.Digest != fmt.Sprintf("%x", sha1.Sum(content)) || !bytes.HasPrefix(content, []byte{0x1f, 0x8b}) {
		t.Errorf("got %s, %v", answer, err)
	}
	var uploaded []byte
	web := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) { uploaded, _ = io.ReadAll(q.Body) }))
	t.Cleanup(web.Close)
	answer, err = r.call(t.Context(), 3, "fetch_logs_with_signed_url", `{"signed_url":"`+web.URL+`","log_type":"job","filters":["*.log"],"blobstore_headers":null}`)
	if err != nil || !strings.HasPrefix(answer, fmt.Sprintf(`{"sha1":"%x;sha512:`, sha1.Sum(uploaded))) {
		t.Errorf("got %s, %v", answer, err)
	}
	answer, err = r.call(t.Context(), 0, "bundle_logs", `{"owning_user":"","log_type":"job","filters":[]}`)
	if err != nil || !strings.Contains(answer, `"logs_tar_path":"/`) || !strings.Contains(answer, `"sha512":"sha512:`) {
		t.Errorf("got %s, %v", answer, err)
	}
	r.fails("unknown log type", "fetch_logs", `"nope"`, `[]`)
	r.fails("signed_url is missing", "fetch_logs_with_signed_url", `{"log_type":"job"}`)
}

// TestCancelAndStop: a cancelled drain is a number, its scripts ended; an agent that stops leaves
// its scripts alone and does not wait for them.
func TestCancelAndStop(t *testing.T) {
	for _, canceled := range []bool{true, false} {
		r := newRig(t)
		started := filepath.Join(t.TempDir(), "started")
		archive, digest := r.blob(map[string]string{"web/bin/drain": "#!/bin/bash\necho $$ > " + started + ".new; mv " + started + ".new " + started + "\nexec sleep 1000\n"})
		r.expect(`"applied"`, "apply", fmt.Sprintf(`{"job":{"templates":[{"name":"web","version":"1"}]},"configuration_hash":"h","rendered_templates_archive":{"blobstore_id":%q,"sha1":%q}}`, archive, digest))
		ctx, cancel := context.WithCancelCause(t.Context())
		type outcome struct {
			answer string
			err    error
		}
		done := make(chan outcome)
		go func() {
			answer, err := r.call(ctx, 3, "drain", `"shutdown"`)
			done <- outcome{answer, err}
		}()
		var pid int
		for pid == 0 {
			text, _ := os.ReadFile(started)
			pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
		}
		if canceled {
			cancel(task.ErrCanceled)
		} else {
			cancel(errors.New("SIGTERM"))
		}
		got := <-done
		alive := syscall.Kill(pid, 0) == nil
		if canceled && (got.answer != "0" || got.err != nil || alive) {
			t.Errorf("cancelled: got %+v, script alive %v; want 0 and the script gone", got, alive)
		}
		if !canceled && (got.err == nil || !alive) {
			t.Errorf("stopped: got %+v, script alive %v; want an error and the script alive", got, alive)
		}
		if alive {
			if err := syscall.Kill(-pid, syscall.SIGKILL); err != nil {
				t.Error(err)
			}
		}
	}
	for _, method := range []string{"drain", "run_errand"} {
		if row := newRig(t).table[method]; !row.Cancelable || row.Canceled == nil {
			t.Errorf("%s cannot be cancelled while it waits", method)
		}
	}
}

func quoteJSON(s string) string { return fmt.Sprintf("%q", s) }
