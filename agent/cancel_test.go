package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cambium/internal/eventually"
)

// TestCancelMidway cancels each task that can be stopped while it is in the middle of its work:
// it ends as canceled, its programs are gone with their children, nothing is left on the disk,
// and the next task runs.
func TestCancelMidway(t *testing.T) {
	w := newWorkshop(t)
	w.ready()
	// A program and a child of it; both must go.
	wait := "sleep 1000 & echo $$ $! > " + w.pidFile() + ".new; mv " + w.pidFile() + ".new " + w.pidFile() + "; wait"
	source, digest := w.blob(t, map[string]string{"packaging": wait})
	_, elsewhere := w.blob(t, map[string]string{"./f": "x"})
	jobsOf := map[string]map[string]string{"web": {"bin/wait": sh(wait), "bin/pre-start": sh("exit 0")}}
	applied := w.spec(t, "h1", jobsOf, nil)
	hangs := w.spec(t, "h2", jobsOf, map[string]any{"p": map[string]any{"name": "p", "version": "1", "sha1": elsewhere,
		"signed_url": w.web.URL + "/hang"}})
	if got := w.director.Task(agentID, "apply", applied); got != `{"value":"applied"}` {
		t.Fatalf("apply: %s", got)
	}
	signed := func(get, put string) map[string]any {
		return map[string]any{"package_get_signed_url": w.web.URL + get, "upload_signed_url": w.web.URL + put,
			"digest": digest, "name": "pkg", "version": "1", "deps": map[string]any{}}
	}
	// Holes would not be read; packing this takes long enough.
	endless := filepath.Join(w.dirs.SysLog(), "endless.log")
	write(t, endless, strings.Repeat("a line of a log that is long enough\n", 10<<20))

	hanging := func() bool { return slices.Contains(w.machine.recordedCalls(), "hanging") }
	script := func() bool { _, err := os.Stat(w.pidFile()); return err == nil }
	for _, c := range []struct {
		name, method string
		arguments    []any
		begun        func() bool
	}{
		{"while a package is fetched", "prepare", []any{hangs}, hanging},
		{"while a package is fetched", "apply", []any{hangs}, hanging},
		{"while services stop", "stop", nil, func() bool { return slices.Contains(w.machine.recordedCalls(), "stop, waiting true") }},
		{"while a script runs", "run_script", []any{"wait", map[string]any{}}, script},
		{"while the script runs", "compile_package", []any{source, digest, "pkg", "1", map[string]any{}}, script},
		{"while the script runs", "compile_package_with_signed_url", []any{signed("/"+source, "/up")}, script},
		{"while the source is fetched", "compile_package_with_signed_url", []any{signed("/hang", "/up")}, hanging},
		{"while logs are packed", "fetch_logs", []any{"job", nil}, func() bool { return opened(t, endless) }},
		{"while logs are sent", "fetch_logs_with_signed_url", []any{map[string]any{"signed_url": w.web.URL + "/hang", "log_type": "job", "filters": []string{"a.log"}}}, hanging},
		{"while data is copied", "migrate_disk", nil, func() bool { return slices.Contains(w.machine.recordedCalls(), "migrate") }},
	} {
		t.Run(c.method+" "+c.name, func(t *testing.T) {
			w.supervisor.stuck = c.method == "stop"
			w.machine.migrate = make(chan struct{})
			_ = os.Remove(w.pidFile())
			write(t, filepath.Join(w.dirs.SysLog(), "a.log"), "a")
			w.machine.recordedCalls()
			before := w.files(t)
			reply := w.director.Call(agentID, c.method, c.arguments...)
			found := handle.FindStringSubmatch(reply)
			if found == nil {
				t.Fatalf("got %s, want a task handle", reply)
			}
			eventually.True(t, "it has begun", c.begun)
			w.cancel(t, "nats", found[1])
			end := reply
			eventually.True(t, "it has ended", func() bool {
				end = w.director.Call(agentID, "get_task", found[1])
				return end != reply
			})
			if !strings.Contains(end, "Action Failed get_task: Task "+found[1]+" result: ") ||
				!strings.Contains(end, "task was canceled") {
				t.Errorf("got %s, want an exception that says it was canceled", end)
			}
			for _, pid := range strings.Fields(contentOf(w.pidFile())) {
				eventually.True(t, "process "+pid+" is gone", func() bool { return gone(pid) })
			}
			if after := w.files(t); !slices.Equal(before, after) {
				t.Errorf("left on the disk:\n%s", strings.Join(slices.DeleteFunc(after,
					func(f string) bool { return slices.Contains(before, f) }), "\n"))
			}
			w.supervisor.stuck = false
			if got := w.director.Task(agentID, "run_script", "pre-start", map[string]any{}); got != `{"value":{}}` {
				t.Errorf("the next task: %s", got)
			}
		})
	}
}

// gone reports a process that has ended, though it may be a zombie still.
func gone(pid string) bool {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	return err != nil || strings.Contains(string(stat), ") Z ")
}

// files lists what is below the base directory, but for the logs of scripts, the agent's own
// records, and directories that are made when they are first needed.
func (w *workshop) files(t *testing.T) (all []string) {
	t.Helper()
	check(t, filepath.WalkDir(w.dirs.Base(), func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := must[string](t)(filepath.Rel(w.dirs.Base(), path))
		lasting := name == "data/packages" || name == "data/packages/p" || name == "data/compile"
		if !lasting && !strings.HasPrefix(name, "bosh/") && !strings.HasPrefix(name, "data/sys/log/") {
			all = append(all, fmt.Sprintf("%s %v", name, entry.Type()))
		}
		return nil
	}))
	return all
}

// opened reports whether this process has a file open.
func opened(t *testing.T, path string) bool {
	t.Helper()
	for _, entry := range must[[]os.DirEntry](t)(os.ReadDir("/proc/self/fd")) {
		if target, err := os.Readlink("/proc/self/fd/" + entry.Name()); err == nil && target == path {
			return true
		}
	}
	return false
}

func contentOf(path string) string {
	data, _ := os.ReadFile(path) // none is as good as empty
	return string(data)
}

// TestBundleEndsWithItsCaller: bundle_logs packs for one caller. When that closes its connection, the packing ends, and
// nothing is left of it.
func TestBundleEndsWithItsCaller(t *testing.T) {
	w := newWorkshop(t)
	w.ready()
	endless := filepath.Join(w.dirs.SysLog(), "endless.log")
	write(t, endless, strings.Repeat("a line of a log that is long enough\n", 10<<20))
	ctx, disconnect := context.WithCancel(t.Context())
	body := `{"method":"bundle_logs","arguments":[{"owning_user":"","log_type":"job","filters":[]}]}`
	r := must[*http.Request](t)(http.NewRequestWithContext(ctx, "POST", w.https, strings.NewReader(body)))
	r.SetBasicAuth("mbus", "s3cret")
	ended := make(chan error, 1)
	go func() {
		response, err := w.client.Do(r)
		if err == nil {
			err = fmt.Errorf("answered with %s", response.Status)
		}
		ended <- err
	}()
	eventually.True(t, "logs are packed", func() bool { return opened(t, endless) })
	disconnect()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	eventually.True(t, "the packing has ended", func() bool { return !opened(t, endless) })
	eventually.True(t, "nothing is left", func() bool {
		return len(must[[]os.DirEntry](t)(os.ReadDir(w.dirs.Tmp()))) == 0
	})
}
