//go:build root

package monit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/internal/skiptest"
	"cambium/internal/vcap"
)

// monitProcess is a monit of our own, on a port of loopback, with its files in a directory.
type monitProcess struct {
	t    *testing.T
	dir  string
	cmd  *exec.Cmd
	done chan struct{}
}

func (m *monitProcess) Kill(context.Context, string) error {
	if m.cmd == nil {
		return errors.New("not running")
	}
	err := m.cmd.Process.Kill()
	<-m.done
	m.cmd = nil
	return err
}

func (m *monitProcess) Start(context.Context, string) error {
	if m.cmd != nil {
		return nil
	}
	m.cmd = exec.Command("monit", "-I", "-c", filepath.Join(m.dir, "monitrc"))
	log, err := os.OpenFile(filepath.Join(m.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	m.cmd.Stdout, m.cmd.Stderr = log, log
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := m.cmd.Start(); err != nil {
		return err
	}
	m.done = make(chan struct{})
	go func(cmd *exec.Cmd, done chan struct{}) {
		_ = cmd.Wait()
		close(done)
	}(m.cmd, m.done)
	return nil
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func pidOf(t *testing.T, path string) int {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(string(data)))
	return pid
}

func alive(pid int) bool { return pid > 0 && syscall.Kill(pid, 0) == nil }

// TestRootMonit drives a real monit: start, process death and its alert, reload, unmonitor, stop.
func TestRootMonit(t *testing.T) {
	if os.Geteuid() != 0 {
		skiptest.Skip(t, "monit's files must belong to root")
	}
	if _, err := exec.LookPath("monit"); err != nil {
		skiptest.Skip(t, "monit is not installed")
	}
	dir := t.TempDir()
	port := freePort(t)
	mailAddr, alerts := listen(t, Alerts{})
	_, mailPort, _ := net.SplitHostPort(mailAddr)
	pidfile := filepath.Join(dir, "svc.pid")
	for name, content := range map[string]string{
		"monit.user": "vcap:secret",
		"svc":        "#!/bin/sh\ncase $1 in start) setsid sleep 1000 >/dev/null 2>&1 & echo $! > " + pidfile + ";; stop) kill $(cat " + pidfile + "); rm -f " + pidfile + ";; esac\n",
		"monitrc": fmt.Sprintf(`set daemon 1
set httpd port %d and use address 127.0.0.1
  allow cleartext %[2]s/monit.user
set pidfile %[2]s/monit.pid
set statefile %[2]s/state
set idfile %[2]s/id
set mailserver 127.0.0.1 port %[3]s with timeout 15 seconds
set eventqueue basedir %[2]s/events slots 5000
set mail-format { from: monit@localhost
subject: Monit Alert
message: Service: $SERVICE
Event: $EVENT
Action: $ACTION
Date: $DATE
Description: $DESCRIPTION }
set alert agent@local
include %[2]s/job/*.monitrc
`, port, dir, mailPort),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "job"), 0o700); err != nil {
		t.Fatal(err)
	}
	m := &monitProcess{t: t, dir: dir}
	t.Cleanup(func() {
		_ = m.Kill(context.Background(), UnitName)
		if pid := pidOf(t, pidfile); alive(pid) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(dir, "log"))
			t.Logf("monit said:\n%s", log)
		}
	})
	client := &Client{URL: fmt.Sprintf("http://127.0.0.1:%d", port), UserFile: filepath.Join(dir, "monit.user"),
		JobFiles: filepath.Join(dir, "job", "*.monitrc"), Daemon: m, Pause: 100 * time.Millisecond}
	s := Supervisor{Client: client, Poll: 100 * time.Millisecond}
	ctx := t.Context()
	if got := stateOf(ctx, s); got != StateUnknown {
		t.Errorf("before it runs: got %s", got)
	}
	// A reload also starts a monit that does not run.
	if err := s.Reload(ctx); err != nil {
		t.Fatal(err)
	}
	if got := stateOf(ctx, s); got != StateRunning {
		t.Errorf("without services: got %s", got)
	}
	service := fmt.Sprintf("check process svc with pidfile %s\n  start program \"%s/svc start\"\n  stop program \"%s/svc stop\"\n  group vcap\n", pidfile, dir, dir)
	if err := os.WriteFile(filepath.Join(dir, "job/0000_svc.monitrc"), []byte(service), 0o600); err != nil {
		t.Fatal(err)
	}
	before, err := s.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Reload(ctx); err != nil {
		t.Fatal(err)
	}
	if after, err := s.Status(ctx); err != nil || after.Incarnation == before.Incarnation || len(after.Services) != 1 {
		t.Errorf("after the reload: got %+v, %v", after, err)
	}
	if err := s.StartAll(ctx); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "the service to run", func() bool {
		return stateOf(ctx, s) == StateRunning && alive(pidOf(t, pidfile))
	})
	_, p, err := s.Observe(ctx)
	if err != nil || len(p) != 1 || p[0].Name != "svc" {
		t.Errorf("got %+v, %v", p, err)
	}
	// A restart of monit leaves the process alone.
	first := pidOf(t, pidfile)
	if err := s.Reload(ctx); err != nil {
		t.Fatal(err)
	}
	if got := pidOf(t, pidfile); got != first || !alive(first) {
		t.Errorf("the process did not survive a reload: %d became %d", first, got)
	}
	// Death: monit starts it again and sends a mail.
	eventually.True(t, "supervision after the reload", func() bool { return stateOf(ctx, s) == StateRunning })
	for len(alerts) > 0 {
		<-alerts
	}
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "a new process", func() bool { pid := pidOf(t, pidfile); return pid != first && alive(pid) })
	found := false
	for !found {
		select {
		case a := <-alerts:
			t.Logf("alert: %+v severity %d", a, a.Severity())
			found = a.Service == "svc" && strings.EqualFold(a.Event, "Does not exist") && a.Severity() == SeverityAlert &&
				a.Action == "restart" && a.ID != "" && !a.Date.IsZero()
		case <-time.After(30 * time.Second):
			t.Fatal("no alert for the killed process")
		}
	}
	// Unmonitored: monit does not start it again; then it stops with nothing left to do.
	eventually.True(t, "it to settle", func() bool { return stateOf(ctx, s) == StateRunning })
	if err := s.UnmonitorAll(ctx); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "the end of supervision", func() bool {
		st, err := s.Status(ctx)
		return err == nil && !st.Services[0].Monitored
	})
	if got := stateOf(ctx, s); got != StateFailing {
		t.Errorf("unmonitored: got %s", got)
	}
	// What a drain leaves unmonitored is stopped all the same.
	unmonitored := pidOf(t, pidfile)
	if err := s.StopAll(ctx, true); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "the end of the unmonitored process", func() bool { return !alive(unmonitored) })
	// A process that ends by itself while it is unmonitored is not started to be stopped.
	if err := s.StartAll(ctx); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "supervision again", func() bool { return stateOf(ctx, s) == StateRunning })
	if err := s.UnmonitorAll(ctx); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "the end of supervision", func() bool {
		st, err := s.Status(ctx)
		return err == nil && !st.Services[0].Monitored
	})
	last := pidOf(t, pidfile)
	if err := syscall.Kill(last, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "its end", func() bool { return !alive(last) })
	if err := s.StopAll(ctx, true); err != nil {
		t.Fatal(err)
	}
	if pid := pidOf(t, pidfile); pid != last || alive(pid) {
		t.Errorf("process %d was started while it was to be stopped", pid)
	}
	// And one that is monitored is stopped before StopAll returns.
	if err := s.StartAll(ctx); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "supervision again", func() bool { return stateOf(ctx, s) == StateRunning })
	if err := s.StopAll(ctx, true); err != nil {
		t.Fatal(err)
	}
	if alive(pidOf(t, pidfile)) {
		t.Error("the process survived a stop that was waited for")
	}
	// Only root may send alerts; a user without rights is turned away by the kernel's table.
	cmd := exec.Command("bash", "-c", fmt.Sprintf("exec 3<>/dev/tcp/127.0.0.1/%s; head -c 3 <&3", mailPort))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, _ := cmd.CombinedOutput(); strings.HasPrefix(string(out), "220") {
		t.Error("another user was served")
	}
	cmd = exec.Command("bash", "-c", fmt.Sprintf("exec 3<>/dev/tcp/127.0.0.1/%s; head -c 3 <&3", mailPort))
	if out, _ := cmd.CombinedOutput(); !strings.HasPrefix(string(out), "220") {
		t.Errorf("root was not served: %q", out)
	}
}

// realServices says of a monit of our own whether it runs.
type realServices struct{ m *monitProcess }

func (realServices) Setup(context.Context, string) error    { return nil }
func (r realServices) Running(context.Context, string) bool { return r.m.cmd != nil }
func (realServices) Started(string)                         {}

// TestRootMonitAccount: a monit that runs with the password that an earlier agent had made is
// replaced by one that knows the account of releases.
func TestRootMonitAccount(t *testing.T) {
	if os.Geteuid() != 0 {
		skiptest.Skip(t, "monit's files must belong to root")
	}
	if _, err := exec.LookPath("monit"); err != nil {
		skiptest.Skip(t, "monit is not installed")
	}
	dirs, port := vcap.New(t.TempDir()), freePort(t)
	dir := filepath.Dir(dirs.MonitUser())
	if err := os.MkdirAll(dirs.MonitJobs(), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"monit.user": "vcap:OWNPASSWORD",
		"monitrc": fmt.Sprintf("set daemon 1\nset httpd port %d and use address 127.0.0.1\n  allow cleartext %[2]s/monit.user\n"+
			"set pidfile %[2]s/monit.pid\nset statefile %[2]s/state\nset idfile %[2]s/id\n", port, dir),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m := &monitProcess{t: t, dir: dir}
	t.Cleanup(func() { _ = m.Kill(context.Background(), UnitName) })
	client := &Client{URL: fmt.Sprintf("http://127.0.0.1:%d", port), UserFile: dirs.MonitUser(), Daemon: m,
		Pause: 100 * time.Millisecond}
	if err := client.Reload(t.Context()); err != nil { // it runs, with the old account
		t.Fatal(err)
	}
	before := m.cmd.Process.Pid
	s := Starter{Dirs: dirs, Client: client, Services: realServices{m},
		HoldBack: func(context.Context) ([]string, error) { return nil, nil }}
	if made, err := s.Start(t.Context()); err != nil || len(made) != 2 || made[1].Op != OpRestart {
		t.Fatalf("made %v, %v; want the file and the restart", made, err)
	}
	if data, err := os.ReadFile(dirs.MonitUser()); err != nil || string(data) != "vcap:random-password" {
		t.Errorf("monit.user holds %q, %v", data, err)
	}
	if _, err := client.Status(t.Context()); err != nil || m.cmd.Process.Pid == before {
		t.Errorf("%v, pid %d before and %d after; want another monit that answers", err, before, m.cmd.Process.Pid)
	}
	after := m.cmd.Process.Pid
	if made, err := s.Start(t.Context()); err != nil || len(made) != 0 || m.cmd.Process.Pid != after {
		t.Errorf("the second time: made %v, %v, pid %d; want %d to stay", made, err, m.cmd.Process.Pid, after)
	}
}
