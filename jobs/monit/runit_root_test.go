//go:build root

package monit

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/platform/unit"

	"cambium/internal/skiptest"
)

// TestRootMonitUnderRunit is a machine whose first process is not systemd: monit runs under a real
// runsvdir and is restarted through the real sv.
func TestRootMonitUnderRunit(t *testing.T) {
	if os.Geteuid() != 0 {
		skiptest.Skip(t, "monit's files must belong to root")
	}
	for _, program := range []string{"monit", "runsvdir", "sv"} {
		if _, err := exec.LookPath(program); err != nil {
			skiptest.Skip(t, program+" is not installed")
		}
	}
	dir := t.TempDir()
	services := filepath.Join(dir, "etc/service")
	pidfile := filepath.Join(dir, "svc.pid")
	port := freePort(t)
	for name, content := range map[string]string{
		"monit.user":            "vcap:secret",
		"svc":                   "#!/bin/sh\ncase $1 in start) setsid sleep 1000 >/dev/null 2>&1 & echo $! > " + pidfile + ";; stop) kill $(cat " + pidfile + "); rm -f " + pidfile + ";; esac\n",
		"etc/service/monit/run": "#!/bin/sh\nexec monit -I -c " + dir + "/monitrc >" + dir + "/log 2>&1\n",
		"monitrc": fmt.Sprintf(`set daemon 1
set httpd port %d and use address 127.0.0.1
  allow cleartext %[2]s/monit.user
set pidfile %[2]s/monit.pid
set statefile %[2]s/state
set idfile %[2]s/id
check process svc with pidfile %[3]s
  start program "%[2]s/svc start"
  stop program "%[2]s/svc stop"
  group vcap
`, port, dir, pidfile),
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("SVDIR", services)
	scan := exec.Command("runsvdir", "-P", services)
	if err := scan.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// The hang-up signal makes it end its services as well; runsv holds a lock until then.
		_ = scan.Process.Signal(syscall.SIGHUP)
		_ = scan.Wait()
		if lock, err := os.Open(filepath.Join(services, "monit/supervise/lock")); err == nil {
			defer lock.Close()
			eventually.True(t, "the end of runsv", func() bool {
				return syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
			})
		}
		if pid := pidOf(t, pidfile); alive(pid) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(dir, "log"))
			t.Logf("monit said:\n%s", log)
		}
	})
	runit := &unit.Runit{Root: dir}
	ctx := t.Context()
	eventually.True(t, "runsv", func() bool {
		state, err := runit.State(ctx, "monit")
		return err == nil && state.Active == "active" && state.MainPID > 0
	})
	s := Supervisor{Client: &Client{URL: fmt.Sprintf("http://127.0.0.1:%d", port),
		UserFile: filepath.Join(dir, "monit.user"),
		Daemon:   runit, Pause: 100 * time.Millisecond}, Poll: 100 * time.Millisecond}
	eventually.True(t, "monit", func() bool { return stateOf(ctx, s) != StateUnknown })
	if err := s.StartAll(ctx); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "the service", func() bool { return stateOf(ctx, s) == StateRunning && alive(pidOf(t, pidfile)) })
	process := pidOf(t, pidfile)
	before, err := runit.State(ctx, "monit")
	if err != nil {
		t.Fatal(err)
	}
	// A reload kills monit and nothing else; runsv brings it back.
	if err := s.Reload(ctx); err != nil {
		t.Fatal(err)
	}
	after, err := runit.State(ctx, "monit")
	if err != nil || after.MainPID == before.MainPID || !alive(after.MainPID) {
		t.Errorf("after the reload: got %+v, %v; want a process other than %d", after, err, before.MainPID)
	}
	if now := pidOf(t, pidfile); now != process || !alive(process) {
		t.Errorf("the service did not survive a reload: %d became %d", process, now)
	}
	// A monit that was stopped is started, too.
	if err := runit.Stop(ctx, "monit"); err != nil {
		t.Fatal(err)
	}
	if got := stateOf(ctx, s); got != StateUnknown {
		t.Errorf("without monit: got %s", got)
	}
	if err := s.Reload(ctx); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "supervision again", func() bool { return stateOf(ctx, s) == StateRunning })
	if err := s.StopAll(ctx, true); err != nil {
		t.Fatal(err)
	}
	if alive(process) {
		t.Error("the service was not stopped")
	}
	if err := runit.Start(ctx, "absent"); err == nil {
		t.Error("a service that does not exist was started")
	}
}
