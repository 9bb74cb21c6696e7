package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/internal/skiptest"
	"cambium/internal/sockowner"
	"cambium/jobs/monit"
	"cambium/lab/stucktest"
	"cambium/supervisor/monitfile"

	"github.com/sirupsen/logrus"
)

// answering is a job that sends text to each connection as often as it is taken, and counts the bytes.
func answering(t *testing.T, text string, times int) (port int, sent *atomic.Int64) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	sent = new(atomic.Int64)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				for range times {
					n, err := io.WriteString(conn, text)
					sent.Add(int64(n))
					if err != nil {
						return
					}
				}
				_, _ = io.Copy(io.Discard, conn)
			}()
		}
	}()
	return listener.Addr().(*net.TCPAddr).Port, sent
}

// TestAnswersAreBounded: the supervisor reads no more of a job's answer than its status takes.
func TestAnswersAreBounded(t *testing.T) {
	const kernelBuffers = 16 << 20
	port, sent := answering(t, strings.Repeat("x", 64<<10), 8<<10)
	err := probe(t.Context(), monitfile.Endpoint{Host: "127.0.0.1", Port: port, HTTP: true, Request: "/",
		Timeout: time.Minute})
	if err == nil || !strings.Contains(err.Error(), "HTTP") {
		t.Errorf("got %v, want an error of HTTP", err)
	}
	if n := sent.Load(); n > kernelBuffers {
		t.Errorf("%d MiB of the answer were taken", n>>20)
	}
}

// TestAnswers: the first line decides.
func TestAnswers(t *testing.T) {
	for answer, want := range map[string]string{
		"HTTP/1.1 200 OK\r\n\r\n": "", "HTTP/1.0 302 Found\r\n": "", "HTTP/1.1 204\n\n": "",
		"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 1<<20): "", "HTTP/1.1 200 OK\r\nno header\r\n\r\n": "",
		"HTTP/1.1 503 Down\r\n\r\n": "HTTP status 503", "SSH-2.0\r\n": "HTTP: malformed HTTP response \"SSH-2.0\"",
		strings.Repeat("x", 5000) + "\r\n": "HTTP: the first line of the answer is longer than 4096 bytes",
	} {
		port, _ := answering(t, answer, 1)
		err := probe(t.Context(), monitfile.Endpoint{Host: "127.0.0.1", Port: port, HTTP: true, Request: "/",
			Timeout: time.Minute})
		if got := fmt.Sprint(err); err == nil && want != "" || err != nil && got != want {
			t.Errorf("%.40q: got %.200q, want %q", answer, got, want)
		}
	}
}

// intake is the agent's own, for a world.
func (w *world) intake() <-chan monit.Alert {
	w.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	log := logrus.New()
	log.SetOutput(w.t.Output())
	ctx, cancel := context.WithCancel(context.Background())
	alerts, done := make(chan monit.Alert, 1000), make(chan struct{})
	go func() {
		defer close(done)
		_ = monit.Alerts{Log: logrus.NewEntry(log), Owner: uint32(os.Getuid()), Sockets: sockowner.Table{},
			Listener: listener.(*net.TCPListener)}.Run(ctx, "", func(a monit.Alert) { alerts <- a })
	}()
	w.t.Cleanup(func() { cancel(); <-done })
	w.mailTo = listener.Addr().String()
	return alerts
}

// awaitAlert waits for the alert of a service.
func awaitAlert(t *testing.T, alerts <-chan monit.Alert, service string) monit.Alert {
	t.Helper()
	deadline := time.After(time.Minute)
	for {
		select {
		case a := <-alerts:
			if a.Service == service {
				return a
			}
		case <-deadline:
			t.Fatalf("no alert of %s has arrived", service)
		}
	}
}

// TestTextsOfAJobAreCut: what a job answers keeps no alert from the agent, and makes neither the status nor the state
// larger than the agent reads.
func TestTextsOfAJobAreCut(t *testing.T) {
	t.Parallel()
	for _, length := range []int{3000, 5000, 9 << 20} {
		t.Run(fmt.Sprint(length), func(t *testing.T) {
			t.Parallel()
			port, _ := answering(t, strings.Repeat("x", length)+"\r\n", 1)
			w := prepare(t, map[string]string{"0000_api.monitrc": fmt.Sprintf("check host api with address 127.0.0.1\n"+
				"  if failed port %d protocol http then alert\n  group vcap\n", port)})
			alerts := w.intake()
			w.run(50 * time.Millisecond)
			if a := awaitAlert(t, alerts, "api"); len(a.Description) > 2*maxText {
				t.Errorf("a description of %d bytes", len(a.Description))
			}
			w.write("ctl", "#!/bin/sh\nexit 1\n", 0o755)
			w.write("0001_b.monitrc", check(w.dir, "b", ""), 0o600)
			w.s.Reload()
			awaitAlert(t, alerts, "b")
			if text := w.get("/_status2?format=xml"); len(text) > 64<<10 {
				t.Errorf("the status has %d bytes", len(text))
			}
			w.halt()
			if info, err := os.Stat(filepath.Join(w.dir, "state")); err != nil || info.Size() > 64<<10 {
				t.Errorf("the state: %v, %v", info, err)
			}
		})
	}
}

// TestRefusedMailIsDropped: an alert that the agent refuses does not keep later ones from it; one that it could not
// take is sent again.
func TestRefusedMailIsDropped(t *testing.T) {
	t.Parallel()
	w := prepare(t, map[string]string{"0000_a.monitrc": check("DIR", "a", "")})
	w.refuse = "poison"
	keepMails(t, w, Mail{ID: "1", Service: "poison", Event: "x"}, Mail{ID: "2", Service: "later", Event: "y", Action: "z"})
	w.run(50 * time.Millisecond)
	eventually.True(t, "the later alert", func() bool { return w.count("later: y: z") == 1 })
	eventually.True(t, "an empty queue", func() bool { return len(w.s.alerts.pending()) == 0 })
}

// TestKeptMailsRecover: a queue on disk that an earlier version has filled with what the agent refuses.
func TestKeptMailsRecover(t *testing.T) {
	t.Parallel()
	w := prepare(t, map[string]string{"0000_a.monitrc": check("DIR", "a", "")})
	keepMails(t, w, Mail{ID: "1", Service: "long", Event: "x", Description: strings.Repeat("x", 5000)},
		Mail{ID: "2", Service: strings.Repeat("s", 9<<20), Event: strings.Repeat("e", 5000)},
		Mail{ID: "3", Service: "later", Event: "y"})
	alerts := w.intake()
	w.run(50 * time.Millisecond)
	awaitAlert(t, alerts, "long")
	awaitAlert(t, alerts, "later")
}

// keepMails writes a state with alerts that wait for the agent.
func keepMails(t *testing.T, w *world, mails ...Mail) {
	t.Helper()
	text, err := json.Marshal(state{Version: stateVersion, Mails: mails})
	if err != nil {
		t.Fatal(err)
	}
	w.write("state", string(text), 0o600)
}

// TestStuckProcess: a process of a job that holds its address space keeps neither a dead job from being restarted,
// whose pid file is a link to its command line, nor another one from being found by its command line.
func TestStuckProcess(t *testing.T) {
	skiptest.WithoutRoot(t, "to mount FUSE")
	t.Parallel()
	p, err := stucktest.Start(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	w := newWorld(t, 50*time.Millisecond, map[string]string{
		"0000_a.monitrc": check("DIR", "a", ""),
		"0001_m.monitrc": "check process m matching \"stuckbeside 1000\"\n  start program \"/bin/sh -c 'sleep 1000 & echo $!'\"\n  group vcap\n",
	})
	beside := exec.Command("sleep", "1000")
	beside.Args[0] = "stuckbeside"
	if err := beside.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = beside.Process.Kill(); _ = beside.Wait() }()
	w.await("a", "running")
	w.await("m", "running")
	pidFile := filepath.Join(w.dir, "a.pid")
	dead := w.kill("a")
	if err := errors.Join(os.Remove(pidFile), os.Symlink(fmt.Sprintf("/proc/%d/cmdline", p.Pid), pidFile)); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "an alert", func() bool { return w.count("a: Does not exist: restart") > 0 })
	// The control script writes its pid through the link, which fails: the job is not running, and says why.
	eventually.True(t, "the reason", func() bool {
		text := w.get("/_status2?format=xml")
		return strings.Contains(text, "a pid file must be on tmpfs or a local disk") ||
			strings.Contains(text, "failed to start")
	})
	if err := os.Remove(pidFile); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "a new process", func() bool { pid := w.pid("a"); return pid > 1 && pid != dead })
}
