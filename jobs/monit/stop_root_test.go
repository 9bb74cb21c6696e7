//go:build root

package monit

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/internal/skiptest"
)

// realMonit makes a monit of our own that looks once a second and has these services, each with a process below DIR.
func realMonit(t *testing.T, files map[string]string) (s Supervisor, dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		skiptest.Skip(t, "monit's files must belong to root")
	}
	if _, err := exec.LookPath("monit"); err != nil {
		skiptest.Skip(t, "monit is not installed")
	}
	dir = t.TempDir()
	port := freePort(t)
	files["monit.user"] = "vcap:secret"
	files["monitrc"] = fmt.Sprintf("set daemon 1\nset httpd port %d and use address 127.0.0.1\n  allow cleartext DIR/monit.user\n"+
		"set pidfile DIR/monit.pidfile\nset statefile DIR/state\nset idfile DIR/id\ninclude DIR/*.monitrc\n", port)
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(strings.ReplaceAll(text, "DIR", dir)), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	m := &monitProcess{t: t, dir: dir}
	t.Cleanup(func() {
		_ = m.Kill(context.Background(), UnitName) // it may not run
		paths, _ := filepath.Glob(filepath.Join(dir, "*.pid"))
		for _, path := range paths {
			if pid := pidOf(t, path); alive(pid) {
				_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
			}
		}
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(dir, "log"))
			t.Logf("monit said:\n%s", log)
		}
	})
	s = Supervisor{Poll: 100 * time.Millisecond, StopBudget: time.Minute,
		Client: &Client{URL: fmt.Sprintf("http://127.0.0.1:%d", port),
			UserFile: filepath.Join(dir, "monit.user"), JobFiles: filepath.Join(dir, "*.monitrc"), Daemon: m,
			Pause: 100 * time.Millisecond}}
	if err := s.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s, dir
}

// slowControl is a control script whose stop takes its time, and does nothing while there is a file deaf.
const slowControl = `#!/bin/sh
echo "$1 $2" >>DIR/calls
case $1 in
start) setsid sleep 1000 >/dev/null 2>&1 & echo $! >DIR/$2.pid ;;
stop) [ -e DIR/deaf ] || { kill $(cat DIR/$2.pid); sleep 1; rm -f DIR/$2.pid; } ;;
esac
`

func controlled(name, more string) string {
	return fmt.Sprintf("check process %[1]s with pidfile DIR/%[1]s.pid\n  start program \"DIR/ctl start %[1]s\"\n"+
		"  stop program \"DIR/ctl stop %[1]s\" with timeout 3 seconds\n  group vcap\n  %s\n", name, more)
}

// TestRootStopOfDependants stops a base and what depends on it as a Director does, after a drain: everything is stopped
// once, and nothing is started again.
func TestRootStopOfDependants(t *testing.T) {
	names := []string{"base", "worker_1", "worker_2", "worker_3"}
	file := controlled("base", "")
	for _, name := range names[1:] {
		file += controlled(name, "depends on base")
	}
	s, dir := realMonit(t, map[string]string{"ctl": slowControl, "0000_job.monitrc": file})
	eventually.True(t, "the jobs", func() bool { return stateOf(t.Context(), s) == StateRunning })
	pids := map[string]int{}
	for _, name := range names {
		pids[name] = pidOf(t, filepath.Join(dir, name+".pid"))
	}
	if err := s.UnmonitorAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.StopAll(t.Context(), true); err != nil {
		t.Error(err)
	}
	for name, pid := range pids {
		if now := pidOf(t, filepath.Join(dir, name+".pid")); alive(pid) || now != 0 {
			t.Errorf("%s was process %d, which is alive: %v; its pid file names %d", name, pid, alive(pid), now)
		}
	}
	calls, err := os.ReadFile(filepath.Join(dir, "calls"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if got := fmt.Sprint(strings.Count(string(calls), "start "+name),
			strings.Count(string(calls), "stop "+name)); got != "1 1" {
			t.Errorf("%s: started and stopped %s times, want 1 1; calls:\n%s", name, got, calls)
		}
	}
	if !strings.HasSuffix(string(calls), "stop base\n") {
		t.Errorf("the base was not stopped last:\n%s", calls)
	}
}

// TestRootStopThatFails: monit says that it has stopped what still runs. The second stop ends it.
func TestRootStopThatFails(t *testing.T) {
	s, dir := realMonit(t, map[string]string{"ctl": slowControl, "0000_job.monitrc": controlled("web", "")})
	eventually.True(t, "the job", func() bool { return stateOf(t.Context(), s) == StateRunning })
	pid := pidOf(t, filepath.Join(dir, "web.pid"))
	deaf := filepath.Join(dir, "deaf")
	if err := os.WriteFile(deaf, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	hasty := s
	hasty.StopBudget = 6 * time.Second
	if err := hasty.StopAll(t.Context(), true); err == nil ||
		!strings.Contains(err.Error(), fmt.Sprintf("process %d of web", pid)) {
		t.Errorf("got %v, want an error that names process %d of web", err, pid)
	}
	if err := os.Remove(deaf); err != nil {
		t.Fatal(err)
	}
	if err := s.StopAll(t.Context(), true); err != nil || alive(pid) {
		t.Errorf("the second stop: %v; process %d is alive: %v", err, pid, alive(pid))
	}
}
