package script

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"cambium/internal/eventually"
	"cambium/internal/jsoncut"
	"cambium/internal/vcap"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

func runner(t *testing.T) Runner {
	t.Helper()
	log := logrus.New()
	log.SetOutput(t.Output())
	r := Runner{Dirs: vcap.New(t.TempDir()), Log: logrus.NewEntry(log)}
	for _, dir := range []string{r.Dirs.Tmp(), r.Dirs.SysLog()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(r.Dirs.DataSys(), r.Dirs.Sys()); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r Runner) install(t *testing.T, job, name, body string) {
	t.Helper()
	path := r.path(job, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("#!/bin/bash\n"+body+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

func content(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// Contract J.4.
func TestRunAll(t *testing.T) {
	r := runner(t)
	t.Setenv("AGENT_VARIABLE", "inherited")
	t.Setenv("NOTIFY_SOCKET", "/run/x")
	r.install(t, "a", "pre-start", `echo "$PATH|$AGENT_VARIABLE|$NEXT|$NOTIFY_SOCKET"; echo "$(ps -o nice= -p $$) $$ $(ps -o pgid= -p $$)" >&2`)
	r.install(t, "b", "pre-start", `echo from b; exit 3`)
	r.install(t, "c", "other", `exit 1`)
	for range 2 {
		err := r.RunAll(t.Context(), []string{"a", "b", "c"}, "pre-start", map[string]string{"NEXT": "keep"})
		if want := "1 of 2 pre-start scripts failed. Failed Jobs: b. Successful Jobs: a."; err == nil || err.Error() != want {
			t.Fatalf("got %v, want %q", err, want)
		}
	}
	log := func(job, stream string) string {
		return filepath.Join(r.Dirs.SysLog(), job, "pre-start."+stream+".log")
	}
	line := path + "|inherited|keep|\n"
	if got := content(t, log("a", "stdout")); got != line+line {
		t.Errorf("got %q, want %q twice", got, line)
	}
	fields := strings.Fields(content(t, log("a", "stderr")))
	own, _ := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if len(fields) != 6 || fields[0] != fmt.Sprint(min(20-own+5, 19)) || fields[1] != fields[2] {
		t.Errorf("got nice, pid and group %v", fields)
	}
	if info, err := os.Stat(log("b", "stdout")); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("got %v, %v; want mode 0640", info, err)
	}
	if info, err := os.Stat(filepath.Dir(log("b", "stdout"))); err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("got %v, %v; want mode 0750", info, err)
	}
	if err := r.RunAll(t.Context(), []string{"a", "b", "c"}, "post-deploy", nil); err != nil {
		t.Errorf("no job has the script: %v", err)
	}
	for _, name := range []string{"", "../x", ".."} {
		if err := r.RunAll(t.Context(), []string{"a"}, name, nil); err == nil {
			t.Errorf("%q: got no error", name)
		}
	}
}

// The Director's own test suite searches the agent's log for these sentences, each once.
func TestLogOfScripts(t *testing.T) {
	r := runner(t)
	var log strings.Builder
	r.Log.Logger.SetOutput(&log)
	r.install(t, "good", "pre-start", "true")
	r.install(t, "bad", "pre-start", "exit 3")
	if err := r.RunAll(t.Context(), []string{"good", "bad"}, "pre-start", nil); err == nil {
		t.Error("a failing script is not an error")
	}
	for _, want := range []string{"/jobs/good/bin/pre-start' script has successfully executed",
		"/jobs/bad/bin/pre-start' script has failed with error"} {
		if strings.Count(log.String(), want) != 1 {
			t.Errorf("%q is not once in the log:\n%s", want, &log)
		}
	}
}

// Contract J.4.
func TestScriptsRunAtTheSameTime(t *testing.T) {
	r := runner(t)
	dir := t.TempDir()
	// Each waits for the other's file.
	for _, pair := range [][2]string{{"a", "b"}, {"b", "a"}} {
		r.install(t, pair[0], "post-start", fmt.Sprintf(`touch %s/%s; for i in $(seq 200); do [ -e %s/%s ] && exit 0; sleep 0.05; done; exit 1`, dir, pair[0], dir, pair[1]))
	}
	if err := r.RunAll(t.Context(), []string{"a", "b"}, "post-start", nil); err != nil {
		t.Error(err)
	}
}

// Contract J.5.
func TestDrainProtocol(t *testing.T) {
	next := 7
	args := DrainArgs{JobChange: "job_changed", HashChange: "hash_changed", UpdatedPackages: []string{"p", "q"},
		PersistentDisk: 5, NextPersistentDisk: &next}
	for _, c := range []struct {
		name, body string
		calls      []string
		err        string
	}{
		{"static", `echo 0`, []string{`job_changed hash_changed p q {"persistent_disk":5} {"persistent_disk":7}`}, ""},
		{"dynamic", `n=$(wc -l < CALLS); if [ $n -lt 3 ]; then echo -0; echo $((n-3 < 0 ? -1 : 0)); else echo 0; fi | tail -1`,
			[]string{`job_changed hash_changed p q {"persistent_disk":5} {"persistent_disk":7}`,
				`job_check_status hash_unchanged {"persistent_disk":5}`, `job_check_status hash_unchanged {"persistent_disk":5}`},
			""},
		{"status is ignored beside a number", `echo " 0 "; exit 4`, []string{`job_changed hash_changed p q {"persistent_disk":5} {"persistent_disk":7}`}, ""},
		{"no number", `echo nonsense`, nil, "did not print a number"},
		{"no number and a status", `echo why >&2; exit 4`, nil, "number of seconds: why\n"},
		{"nothing", `true`, nil, "did not print a number"},
		{"a flood", `yes 1`, nil, "did not print a number"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := runner(t)
			calls := filepath.Join(t.TempDir(), "calls")
			body := strings.ReplaceAll(c.body, "CALLS", calls)
			if c.name == "a flood" {
				body = "head -c 1000000 /dev/zero | tr '\\0' 1"
			}
			r.install(t, "j", "drain", `echo $@ $BOSH_JOB_STATE $BOSH_JOB_NEXT_STATE >> `+calls+"\n"+body)
			err := r.Drain(t.Context(), []string{"j", "without"}, args)
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Fatalf("got %v, want %q", err, c.err)
			}
			if got := content(t, calls); c.calls != nil && got != strings.Join(c.calls, "\n")+"\n" {
				t.Errorf("got calls\n%swant\n%s", got, strings.Join(c.calls, "\n"))
			}
		})
	}
}

// TestCanceledDrainNeverStartsAgain cancels a dynamic drain while it sleeps between two calls
// and one whose script runs.
// Contract J.6.
func TestCanceledDrainNeverStartsAgain(t *testing.T) {
	t.Run("sleeping", func(t *testing.T) {
		r := runner(t)
		calls := filepath.Join(t.TempDir(), "calls")
		r.install(t, "j", "drain", `echo x >> `+calls+`; echo -3600`)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			done <- r.Drain(ctx, []string{"j"}, DrainArgs{JobChange: "job_shutdown", HashChange: "hash_unchanged"})
		}()
		// The shell makes the file before it writes to it.
		eventually.True(t, "the first call", func() bool {
			data, err := os.ReadFile(calls)
			return err == nil && len(data) > 0
		})
		// The script may still be running; either way its end must be the end.
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		if got := content(t, calls); got != "x\n" {
			t.Errorf("got calls %q, want one", got)
		}
	})
	t.Run("running", func(t *testing.T) {
		r := runner(t)
		pids := filepath.Join(t.TempDir(), "pids")
		r.install(t, "j", "drain", `sleep 1000 & echo $$ $! > `+pids+`.new; mv `+pids+`.new `+pids+`; wait; echo -1`)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- r.Drain(ctx, []string{"j"}, DrainArgs{}) }()
		eventually.True(t, "the script", func() bool { _, err := os.Stat(pids); return err == nil })
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		for _, field := range strings.Fields(content(t, pids)) {
			pid, _ := strconv.Atoi(field)
			eventually.True(t, "the end of the process group", func() bool { return gone(pid) })
		}
	})
}

// gone reports whether a process has ended; it may be a zombie still.
func gone(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

func TestErrand(t *testing.T) {
	r := runner(t)
	r.install(t, "ok", "run", `echo out $TMPDIR; echo err >&2; exit 7`)
	got, err := r.Errand(t.Context(), "ok")
	if want := (Outcome{"out " + r.Dirs.Tmp() + "\n", "err\n", 7}); err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	if _, err := r.Errand(t.Context(), "missing"); err == nil {
		t.Error("an errand that cannot start: got no error")
	}
	if left, _ := os.ReadDir(r.Dirs.Tmp()); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestErrandCanceled(t *testing.T) {
	r := runner(t)
	started := filepath.Join(t.TempDir(), "started")
	r.install(t, "slow", "run", `echo begun; touch `+started+`; sleep 1000`)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		got, err := r.Errand(ctx, "slow")
		if err != nil || got.ExitCode != 143 || got.Stdout != "begun\n" {
			t.Errorf("got %+v, %v; want the output so far and 143", got, err)
		}
	}()
	eventually.True(t, "the errand", func() bool { _, err := os.Stat(started); return err == nil })
	cancel()
	<-done
}

func TestErrandOf100MiB(t *testing.T) {
	r := runner(t)
	r.install(t, "loud", "run", `echo first; head -c 104857600 /dev/zero | tr '\0' '<'; echo; echo last; head -c 3000000 /dev/urandom >&2`)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got, err := r.Errand(t.Context(), "loud")
	if err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 32<<20 {
		t.Errorf("allocated %d bytes for 100 MiB of output", grown)
	}
	if !strings.HasPrefix(got.Stdout, "first\n") || !strings.HasSuffix(got.Stdout, "\nlast\n") ||
		!strings.Contains(got.Stdout, "bytes left out") {
		t.Errorf("got %.40q … %.40q", got.Stdout, got.Stdout[len(got.Stdout)-40:])
	}
	encoded, err := json.Marshal(got)
	if err != nil || len(encoded) > 1<<20-100 || len(encoded) < 512<<10 {
		t.Errorf("the answer has %d bytes, %v; want it to fit a message and to use it", len(encoded), err)
	}
}

func FuzzExcerpt(f *testing.F) {
	f.Add([]byte("hello\nworld"), 20)
	f.Add([]byte("\xff\x00<é\u2028日本語日本語日本語"), 100)
	f.Fuzz(func(t *testing.T, data []byte, max int) {
		if max < 100 || max > 10_000 {
			return
		}
		file, err := os.CreateTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if _, err := file.Write(data); err != nil {
			t.Fatal(err)
		}
		text, err := excerpt(file, max)
		if err != nil {
			t.Fatal(err)
		}
		encoded, err := json.Marshal(text)
		if err != nil || len(encoded) > max+2 {
			t.Errorf("%d bytes encoded of at most %d: %q", len(encoded), max, text)
		}
		if jsoncut.Head(string(data), max) == string(data) && text != string(data) {
			t.Errorf("got %q, want all of %q", text, data)
		}
	})
}
