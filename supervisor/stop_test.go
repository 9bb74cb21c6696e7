package supervisor

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/internal/pidfile"
	"cambium/internal/sockowner"
	"cambium/jobs/monit"
	"cambium/supervisor/monitfile"
)

// agent is the agent's side of the supervisor.
func (w *world) agent(budget time.Duration) monit.Supervisor {
	return monit.Supervisor{Poll: 20 * time.Millisecond, StopBudget: budget, Client: &monit.Client{URL: w.url,
		UserFile: filepath.Join(w.dir, "user"), JobFiles: filepath.Join(w.dir, "*.monitrc"),
		Owner: uint32(os.Getuid()), Sockets: sockowner.Table{}, Pause: 20 * time.Millisecond}}
}

func (w *world) awaitState(a monit.Supervisor, state string) {
	w.t.Helper()
	eventually.True(w.t, "the state "+state, func() bool {
		got, _, _ := a.Observe(w.t.Context())
		return got == state
	})
}

// TestDirectorStopsDependantsFirst: services are unmonitored when the Director stops them, and end before what they
// depend on.
func TestDirectorStopsDependantsFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t, long, map[string]string{
		"0000_a.monitrc": check("DIR", "base", "") + check("DIR", "worker", "depends on base"), // in this order
	})
	a := w.agent(time.Minute)
	w.awaitState(a, monit.StateRunning)
	if err := a.UnmonitorAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := a.StopAll(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if got, want := w.calls(), "start base, start worker, stop worker, stop base"; got != want {
		t.Errorf("calls: got %q, want %q", got, want)
	}
}

// TestRestartWithUnmonitoredDependant: what runs is stopped before what it depends on, and is back after it; what does
// not run stays so.
func TestRestartWithUnmonitoredDependant(t *testing.T) {
	t.Parallel()
	w := newWorld(t, long, map[string]string{
		"0000_a.monitrc": check("DIR", "base", ""),
		"0001_b.monitrc": check("DIR", "runs", "depends on base"),
		"0002_c.monitrc": check("DIR", "stopped", "depends on base"),
	})
	w.awaitState(w.agent(0), monit.StateRunning)
	w.request("stopped", "stop")
	w.await("stopped", "not monitored")
	w.request("runs", "unmonitor")
	w.await("runs", "not monitored")
	before := w.calls()
	w.request("base", "restart")
	w.await("runs", "running")
	w.await("base", "running")
	if got, want := strings.TrimPrefix(w.calls(), before), ", stop runs, stop base, start base, start runs"; got != want {
		t.Errorf("calls: got %q, want %q", got, want)
	}
	if got := w.state("stopped"); got != "not monitored" {
		t.Errorf("what was stopped: got %q", got)
	}
}

// TestFileRestartWaits: the start program of a file does not meet its stop program, which waits for it for three seconds.
func TestFileRestartWaits(t *testing.T) {
	t.Parallel()
	w := prepare(t, map[string]string{"thing": "x",
		"0000_a.monitrc": "check file thing path DIR/thing\n start program \"DIR/ctl start thing\"\n" +
			" stop program \"DIR/ctl stop thing\"\n group vcap\n"})
	w.write("ctl", `#!/bin/sh
cd $(dirname $0)
echo "$1 $2" >>calls
[ $1 = start ] && exit
for i in $(seq 30); do grep -q start calls || sleep 0.1; done
echo stopped >>calls
`, 0o755)
	w.run(long)
	w.await("thing", "accessible")
	w.request("thing", "restart")
	eventually.True(t, "three calls", func() bool { return strings.Count(w.calls(), ",") == 2 })
	if got, want := w.calls(), "stop thing, stopped, start thing"; got != want {
		t.Errorf("calls: got %q, want %q", got, want)
	}
}

// TestRestartWaitsForTheStopProgram: it removes the pid file after the process has ended, and must not meet the new one.
func TestRestartWaitsForTheStopProgram(t *testing.T) {
	t.Parallel()
	w := newWorld(t, long, map[string]string{"0000_a.monitrc": strings.Replace(check("DIR", "a", ""), "ctl stop", "stop",
		1)})
	w.write("stop", "#!/bin/sh\ncd $(dirname $0)\nkill $(cat $1.pid)\n"+
		"for i in $(seq 30); do [ $(grep -c start calls) = 2 ] || sleep 0.1; done\nrm $1.pid\necho stopped >>calls\n", 0o755)
	w.await("a", "running")
	w.request("a", "restart")
	eventually.True(t, "three calls", func() bool { return strings.Count(w.calls(), ",") == 2 })
	if got, want := w.calls(), "start a, stopped, start a"; got != want {
		t.Errorf("calls: got %q, want %q", got, want)
	}
}

// TestFileStopThatHangs: a start does not follow a stop program that has used up its time.
func TestFileStopThatHangs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, long, map[string]string{"thing": "x",
		"ctl": "#!/bin/sh\necho \"$1 $2\" >>$(dirname $0)/calls\necho $$ >$(dirname $0)/ctl.pid\nexec sleep 1000\n",
		"0000_a.monitrc": "check file thing path DIR/thing\n start program \"/bin/sh DIR/ctl start thing\"\n" +
			" stop program \"/bin/sh DIR/ctl stop thing\" with timeout 1 second\n group vcap\n"})
	w.await("thing", "accessible")
	w.request("thing", "restart")
	eventually.True(t, "the alert", func() bool { return w.count("thing: Execution failed: alert") == 1 })
	if got := w.calls(); got != "stop thing" {
		t.Errorf("calls: got %q", got)
	}
}

// TestUnmonitorWhileAStartIsPending: it follows the start, and neither is lost.
func TestUnmonitorWhileAStartIsPending(t *testing.T) {
	t.Parallel()
	w := prepare(t, map[string]string{"0000_a.monitrc": check("DIR", "a", ""),
		"state": `{"version":1,"services":{"a":{"monitored":false}}}`})
	release := w.hold()
	w.write("ctl", "#!/bin/sh\ndir=$(dirname $0)\necho \"$1 $2\" >>$dir/calls\nread x <$dir/hold\n"+
		"sleep 1000 & echo $! >$dir/$2.pid\n", 0o755)
	w.run(long)
	a := w.agent(time.Minute)
	if err := a.StartAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "the start", func() bool { return w.calls() == "start a" })
	for range 2 {
		if err := a.UnmonitorAll(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := w.post("a", "stop"); got != http.StatusServiceUnavailable {
		t.Errorf("stop in between: got %d", got)
	}
	if got := w.state("a"); !strings.HasSuffix(got, "start pending") {
		t.Errorf("state in between: got %q", got)
	}
	release()
	w.await("a", "not monitored")
	if pid := w.pid("a"); !pidfile.Alive(pid) {
		t.Errorf("process %d is not alive", pid)
	}
}

// TestFailingServiceIsStopped: also without a drain before, and with one.
func TestFailingServiceIsStopped(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, more, ctl, calls string }{
		{"port", fmt.Sprintf("  if failed host 127.0.0.1 port %d then alert\n", closed), controlScript, "start web, stop web"},
		{"process", "  if does not exist then alert\n", "#!/bin/sh\necho $1 $2 >>$(dirname $0)/calls\n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := prepare(t, map[string]string{"0000_a.monitrc": check("DIR", "web", c.more)})
			w.write("ctl", c.ctl, 0o755)
			if c.calls != "" {
				w.write("state", `{"version":1,"services":{"web":{"monitored":false}}}`, 0o600)
			}
			w.run(50 * time.Millisecond)
			a := w.agent(time.Minute)
			if c.calls != "" {
				if err := a.StartAll(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			w.awaitState(a, monit.StateFailing)
			eventually.True(t, "the fault", func() bool {
				s, err := a.Status(t.Context())
				return err == nil && s.Services[0].Fault != ""
			})
			if err := a.StopAll(t.Context(), true); err != nil {
				t.Errorf("stop: %v", err)
			}
			if got := w.calls(); got != c.calls {
				t.Errorf("calls: got %q, want %q", got, c.calls)
			}
			if err := a.UnmonitorAll(t.Context()); err != nil {
				t.Errorf("drain: %v", err)
			}
			if err := a.StopAll(t.Context(), true); err != nil {
				t.Errorf("stop after a drain: %v", err)
			}
		})
	}
}

// TestStopThatFails: the process outlives its stop program, and the error names it, so that no update goes on with it.
// A later stop that works ends that.
func TestStopThatFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t, long, map[string]string{"0000_a.monitrc": strings.Replace(check("DIR", "web", ""), "ctl stop web\"",
		"stop web\" with timeout 1 second", 1)})
	w.write("stop", "#!/bin/sh\n", 0o755)
	w.awaitState(w.agent(0), monit.StateRunning)
	pid := w.pid("web")
	err := w.agent(3*time.Second).StopAll(t.Context(), true)
	if want := fmt.Sprintf("process %d of web", pid); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want an error with %q", err, want)
	}
	w.write("stop", "#!/bin/sh\nexec $(dirname $0)/ctl stop web\n", 0o755)
	if err := w.agent(time.Minute).StopAll(t.Context(), true); err != nil || pidfile.Alive(pid) {
		t.Errorf("the second stop: %v; process %d is alive: %v", err, pid, pidfile.Alive(pid))
	}
}

// TestUDPPorts: a port passes that does not refuse, also one that says nothing.
func TestUDPPorts(t *testing.T) {
	t.Parallel()
	listen := func() (net.PacketConn, int) {
		l, err := net.ListenPacket("udp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return l, l.LocalAddr().(*net.UDPAddr).Port
	}
	open, silent := listen()
	defer open.Close()
	talking, answers := listen()
	defer talking.Close()
	go func() {
		buffer := make([]byte, 16)
		for {
			_, from, err := talking.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = talking.WriteTo(buffer[:1], from) // one that was lost is as good as silence
		}
	}()
	gone, closed := listen()
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, host string
		port       int
		fails      bool
	}{
		{"silent", "127.0.0.1", silent, false},
		{"by name", "localhost", silent, false}, // which may be ::1 first
		{"answers", "127.0.0.1", answers, false},
		{"closed", "127.0.0.1", closed, true},
		{"closed by name", "localhost", closed, true},
		{"no such host", "host.invalid", closed, true},
	} {
		err := probe(t.Context(), monitfile.Endpoint{Host: c.host, Port: c.port, UDP: true, Timeout: 5 * time.Second})
		if (err != nil) != c.fails {
			t.Errorf("%s: got %v, want an error: %v", c.name, err, c.fails)
		}
	}
}
