package agent

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
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
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"

	"cambium/agent/action"
	"cambium/blobstore"
	"cambium/internal/eventually"
	"cambium/internal/secret"
	"cambium/jobs"
	"cambium/jobs/bundle"
	"cambium/jobs/compile"
	"cambium/jobs/dummysupervisor"
	"cambium/jobs/logs"
	"cambium/jobs/script"
	"cambium/settings"
)

// supervisor records its calls, and can have services that do not stop.
type supervisor struct {
	dummysupervisor.Dummy
	machine *machine
	stuck   bool
}

func (s *supervisor) StopAll(ctx context.Context, wait bool) error {
	s.machine.record("stop, waiting %v", wait)
	if s.stuck {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return s.Dummy.StopAll(ctx, wait)
}

func (s *supervisor) StartAll(ctx context.Context) error {
	s.machine.record("start")
	return s.Dummy.StartAll(ctx)
}

// workshop is everything that the job, package, script and log actions need, for real but for
// the supervisor: files, archives, programs, and a web server that holds signed URLs.
type workshop struct {
	*world
	root       string
	store      *blobstore.Store
	supervisor *supervisor
	web        *httptest.Server
	monitor    *nats.Conn
	hanging    chan struct{} // closed when the test ends
	inForce    map[string]settings.Network

	mu   sync.Mutex // guards the fields below
	sent []byte     // last upload
	key  string     // its header
}

func newWorkshop(t *testing.T) *workshop {
	t.Helper()
	w := &workshop{world: newWorld(t, nil), root: t.TempDir(), hanging: make(chan struct{})}
	for _, dir := range []string{w.dirs.SensitiveBlobs(), w.dirs.DataSys() + "/log", w.dirs.Monit(),
		filepath.Join(w.root, "var/log")} {
		check(t, os.MkdirAll(dir, 0o755))
	}
	check(t, os.Symlink(w.dirs.DataSys(), w.dirs.Sys()))
	w.store = must[*blobstore.Store](t)(blobstore.New(blobstore.Options{Provider: "local", Dirs: w.dirs, Log: quiet(),
		Options: secret.NewJSON([]byte(`{"blobstore_path":"/var/vcap/micro_bosh/data/cache"}`))}))
	w.supervisor = &supervisor{machine: w.machine}
	owner := bundle.Owner{UID: os.Geteuid(), GID: os.Getegid()}
	deps := w.deps()
	deps.Instance = &jobs.Instance{Dirs: w.dirs, Blobs: w.store, Supervisor: w.supervisor, Owner: owner,
		Parallel: 5, Root: w.root, Log: quiet()}
	deps.Scripts = script.Runner{Dirs: w.dirs, Log: quiet()}
	deps.Compiler = compile.Compiler{Dirs: w.dirs, Blobs: w.store, Owner: owner, Parallel: 1, Log: quiet()}
	deps.Logs = logs.Collector{Dirs: w.dirs, Root: w.root, Log: quiet()}
	deps.Uploads = w.store
	deps.Networks = func() map[string]settings.Network { return w.inForce }
	deps.NotifyShutdown = func(ctx context.Context) { _ = w.nats.Publish(ctx, "hm", "shutdown", nil) }
	w.table = action.Actions(deps)
	w.web = httptest.NewServer(http.HandlerFunc(w.serve))
	t.Cleanup(func() {
		close(w.hanging)
		w.web.Close()
	})
	return w
}

// serve holds what is signed: GET of a blob, PUT of anything, and /hang, which never ends.
func (w *workshop) serve(response http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/hang" {
		w.machine.record("hanging")
		select {
		case <-w.hanging:
		case <-r.Context().Done():
		}
		return
	}
	if r.Method == http.MethodPut {
		data, _ := io.ReadAll(r.Body)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.sent, w.key = data, r.Header.Get("X-Key")
		return
	}
	http.ServeFile(response, r, filepath.Join(w.dirs.Blobs(), filepath.Base(r.URL.Path)))
}

// uploaded returns the body of the last upload to a signed URL, and its X-Key header.
func (w *workshop) uploaded() (content []byte, key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sent, w.key
}

// blob stores a gzip tar and returns its id and digest.
func (w *workshop) blob(t *testing.T, files map[string]string) (id, digest string) {
	t.Helper()
	id, digest, err := w.store.Put(t.Context(), func(out io.Writer) error {
		z := gzip.NewWriter(out)
		archive := tar.NewWriter(z)
		for _, name := range slices.Sorted(maps.Keys(files)) {
			if err := archive.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(files[name]))}); err != nil {
				return err
			}
			if _, err := io.WriteString(archive, files[name]); err != nil {
				return err
			}
		}
		return errors.Join(archive.Close(), z.Close())
	})
	check(t, err)
	return id, digest
}

func sh(body string) string { return "#!/bin/bash\n" + body + "\n" }

// spec is an apply spec of jobs, each a map from file to content.
func (w *workshop) spec(t *testing.T, hash string, all map[string]map[string]string,
	packages map[string]any) map[string]any {
	t.Helper()
	files := map[string]string{}
	templates := []any{}
	for _, job := range slices.Sorted(maps.Keys(all)) {
		templates = append(templates, map[string]any{"name": job, "version": "1"})
		files["./"+job+"/monit"] = ""
		for name, content := range all[job] {
			files["./"+job+"/"+name] = content
		}
	}
	id, digest := w.blob(t, files)
	return map[string]any{"deployment": "d", "name": "g", "id": "i", "index": 0, "configuration_hash": hash,
		"networks": map[string]any{}, "packages": packages,
		"job":                        map[string]any{"name": "g", "template": "web", "templates": templates},
		"rendered_templates_archive": map[string]any{"blobstore_id": id, "sha1": digest}}
}

// fixtures puts in what "$name" stands for in the conformance table.
func (w *workshop) fixtures(t *testing.T) *strings.Replacer {
	t.Helper()
	source, sourceDigest := w.blob(t, map[string]string{"packaging": "cat ../../../packages/dep/word > $BOSH_INSTALL_TARGET/result"})
	broken, brokenDigest := w.blob(t, map[string]string{"packaging": "echo no compiler >&2; exit 7"})
	dep, depDigest := w.blob(t, map[string]string{"./word": "hello"})
	pkg := func(id, digest string) map[string]any {
		return map[string]any{"p": map[string]any{"name": "p", "version": "1.1", "sha1": digest, "blobstore_id": id}}
	}
	web := map[string]map[string]string{
		"web": {
			"bin/pre-start": sh("exit 0"), "bin/post-start": sh("echo cannot >&2; exit 1"), "bin/drain": sh("echo 0"),
			"bin/bad-drain": "",
			"bin/pre-stop":  sh(`[ "$BOSH_VM_NEXT_STATE" = delete ]`), "bin/run": sh("echo out; echo err >&2; exit 3"),
		},
		"big": {"bin/run": sh("head -c 2000000 /dev/zero | tr '\\0' x")},
		"aux": {},
	}
	waiting := sh("echo $$ > " + w.pidFile() + ".new; mv " + w.pidFile() + ".new " + w.pidFile() + "; exec sleep 1000")
	slow := map[string]map[string]string{"slow": {"bin/drain": waiting, "bin/run": waiting, "bin/wait": waiting}}
	return substitution(t, map[string]any{
		"source": source, "source_digest": sourceDigest, "broken": broken, "broken_digest": brokenDigest,
		"deps": map[string]any{"dep": map[string]any{"Name": "dep", "Version": "1", "Sha1": depDigest,
			"blobstore_id": dep}},
		"spec":    w.spec(t, "h1", web, pkg(dep, depDigest)),
		"next":    w.spec(t, "h2", web, pkg(dep, depDigest)),
		"slow":    w.spec(t, "h3", slow, nil),
		"no_blob": w.spec(t, "h4", web, pkg("nope", depDigest)),
		"altered": w.spec(t, "h5", web, pkg(source, depDigest)),
		"get_url": w.web.URL + "/" + source, "put_url": w.web.URL + "/up",
		"signed_deps": map[string]any{"dep": map[string]any{"name": "dep", "version": "1", "sha1": depDigest,
			"package_get_signed_url": w.web.URL + "/" + dep}},
		"long_cid":    "disk-" + strings.Repeat(separator, 200000),
		"odd_network": map[string]any{"networks": map[string]any{strings.Repeat(`"`, 280000): map[string]any{}}},
		"tmp":         w.dirs.Tmp(), "logs": filepath.Join(w.dirs.Tmp(), "logs.tgz"), "digest7": sha256Digest(dns7),
		"digest9": sha256Digest(dns9),
	})
}

// separator takes three bytes in a request and six in a reply.
const separator = "\u2028"

// substitution replaces "$name" in JSON by the fixture of that name.
func substitution(t *testing.T, fixtures map[string]any) *strings.Replacer {
	t.Helper()
	var pairs []string
	for name, value := range fixtures {
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		check(t, e.Encode(value))
		written := strings.ReplaceAll(strings.TrimSpace(b.String()), `\u2028`, separator)
		pairs = append(pairs, fmt.Sprintf(`"$%s"`, name), written)
		if s, ok := value.(string); ok {
			pairs = append(pairs, fmt.Sprintf(`$%s/`, name), s+"/")
		}
	}
	return strings.NewReplacer(pairs...)
}

// pidFile returns the path to which scripts that wait write their process ids.
func (w *workshop) pidFile() string { return filepath.Join(w.root, "pid") }

// running waits until a script that waits does so.
func (w *workshop) running(t *testing.T) {
	t.Helper()
	eventually.True(t, "the script runs", func() bool { return os.Remove(w.pidFile()) == nil })
}
