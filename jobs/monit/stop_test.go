package monit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"cambium/internal/retry"
)

func TestActionsOnBothVersions(t *testing.T) {
	for _, old := range []bool{true, false} {
		f := services("a", "b")
		f.old, f.busy, f.slow = old, 2, 2
		s := Supervisor{Client: serve(t, f), Poll: time.Millisecond}
		gone := filepath.Join(t.TempDir(), "job")
		s.JobFiles = filepath.Join(gone, "*.monitrc")
		if err := errors.Join(os.Mkdir(gone, 0o700), os.WriteFile(filepath.Join(gone, "0000_b.monitrc"),
			[]byte("check process b\n  with pidfile "+gone+"/b.pid\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{s.StartAll(t.Context()), s.UnmonitorAll(t.Context()), s.StopAll(t.Context(), true)} {
			if err != nil {
				t.Errorf("old %v: %v", old, err)
			}
		}
		// The process of b ended by itself: it is not supervised again, lest it be started.
		want := "start a, start b, unmonitor a, unmonitor b, stop a, stop b"
		if !old {
			want = strings.Replace(want, "stop a", "monitor a, stop a", 1)
		}
		if got := strings.Join(f.actions, ", "); got != want {
			t.Errorf("old %v: got %s, want %s", old, got, want)
		}
		if !f.services["a"].stopped {
			t.Errorf("old %v: a was not stopped", old)
		}
		if err := s.Start(t.Context(), "nope"); err == nil || !strings.Contains(err.Error(), "404") {
			t.Errorf("unknown service: got %v", err)
		}
	}
}

func TestStopAndWait(t *testing.T) {
	f := services("a", "b")
	s := Supervisor{Client: serve(t, f), Poll: time.Millisecond, StopBudget: time.Second}
	f.services["a"].pending = 1
	err := s.StopAll(t.Context(), true)
	if err == nil || !strings.HasPrefix(err.Error(), "Timed out waiting for services 'a' to") {
		t.Errorf("a pending action: got %v", err)
	}
	s.StopBudget = time.Minute
	f.change(func() {
		f.services["a"].pending = 0
		f.services["b"].fails = true
	})
	if err := s.StopAll(t.Context(), true); err == nil || !strings.Contains(err.Error(), "b: failed to stop") {
		t.Errorf("a failed service: got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	f.change(func() { f.services["b"].fails, f.services["a"].pending = false, 1 })
	cancel()
	if err := s.StopAll(ctx, true); err == nil || strings.Contains(err.Error(), "Timed out waiting for service") {
		t.Errorf("canceled: got %v, want something other than a timeout", err)
	}
}

// TestRequestsToOldMonit: the monit of stock stemcells gets these requests, and no others.
func TestRequestsToOldMonit(t *testing.T) {
	f := services("base", "worker", "ended")
	f.old = true
	f.services["worker"].monitor, f.services["ended"].monitor = 0, 0
	var mu sync.Mutex
	var requests []string
	s := Supervisor{Poll: time.Millisecond, Client: serve(t,
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			request := r.Method + " " + r.URL.RequestURI()
			if r.Method == http.MethodPost {
				request += " " + r.FormValue("action")
			}
			mu.Lock()
			requests = append(requests, request)
			mu.Unlock()
			f.ServeHTTP(w, r)
		}))}
	jobFiles(t, &s, "check process base pidfile DIR/base.pid\ncheck process worker pidfile DIR/worker.pid depends on base\n"+
		"check process ended pidfile DIR/ended.pid\n")
	const status = "GET /_status2?format=xml"
	each := func(action string) string {
		return status + ", POST /base " + action + ", POST /worker " + action + ", POST /ended " + action
	}
	for _, c := range []struct {
		name, want string
		do         func(context.Context) error
	}{
		{"start", each("start"), s.StartAll},
		{"drain", each("unmonitor"), s.UnmonitorAll},
		{"stop", status + ", " + each("stop") + ", " + status, func(ctx context.Context) error { return s.StopAll(ctx, true) }},
		{"stop of create-env", each("stop"), func(ctx context.Context) error { return s.StopAll(ctx, false) }},
	} {
		requests = nil
		if err := c.do(t.Context()); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if got := strings.Join(requests, ", "); got != c.want {
			t.Errorf("%s: got\n%s\nwant\n%s", c.name, got, c.want)
		}
	}
}

// jobFiles gives the supervisor the file of a job, in a directory for which DIR stands.
func jobFiles(t *testing.T, s *Supervisor, text string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	s.JobFiles = filepath.Join(dir, "*.monitrc")
	text = strings.ReplaceAll(text, "DIR", dir)
	if err := os.WriteFile(filepath.Join(dir, "0000_job.monitrc"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestStopWakesNobody: monit supervises with a service what that depends on, and starts it. So nothing has been stopped
// when the last service is supervised again.
func TestStopWakesNobody(t *testing.T) {
	f := services("base", "worker_1", "worker_2")
	s := Supervisor{Client: serve(t, f), Poll: time.Millisecond}
	if err := errors.Join(s.UnmonitorAll(t.Context()), s.StopAll(t.Context(), true)); err != nil {
		t.Fatal(err)
	}
	const want = "unmonitor base, unmonitor worker_1, unmonitor worker_2, " +
		"monitor base, monitor worker_1, monitor worker_2, stop base, stop worker_1, stop worker_2"
	if got := strings.Join(f.actions, ", "); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestStopOfAFailingService: what failed before the stop is not a fault of the stop.
func TestStopOfAFailingService(t *testing.T) {
	for _, old := range []bool{true, false} {
		f := services("a", "b")
		f.old, f.slow = old, 3
		f.services["b"].status, f.services["b"].message = 0x20, "failed, cannot connect to INET[127.0.0.1:80]"
		s := Supervisor{Client: serve(t, f), Poll: time.Millisecond, StopBudget: time.Minute}
		if err := s.StopAll(t.Context(), true); err != nil {
			t.Errorf("old %v: %v", old, err)
		}
		if !f.services["a"].stopped || !f.services["b"].stopped {
			t.Errorf("old %v: not everything was stopped", old)
		}
	}
}

// TestPendingActionIsWaitedFor: by a stop and a drain, which must not fail because a start takes its time.
func TestPendingActionIsWaitedFor(t *testing.T) {
	pending, down := statusError{code: http.StatusServiceUnavailable}, errors.New("connection refused")
	for _, c := range []struct {
		action string
		err    error
		tried  time.Duration
		waits  bool
		final  bool
	}{
		{"unmonitor", pending, 0, true, false},
		{"stop", pending, 0, true, false},
		{"start", pending, 19 * time.Second, false, false},
		{"start", pending, 20 * time.Second, false, true},
		{"stop", down, 19 * time.Second, false, false},
		{"stop", down, 20 * time.Second, false, true},
		{"stop", statusError{code: http.StatusNotFound}, 0, false, true},
		{"stop", nil, time.Hour, false, false},
	} {
		if got := waits(c.action, c.err); got != c.waits {
			t.Errorf("%s, %v: waits is %v", c.action, c.err, got)
		}
		if _, got := retry.IsFinal(lasting(c.err, c.tried)); got != c.final {
			t.Errorf("%s, %v after %v: final is %v", c.action, c.err, c.tried, got)
		}
	}
}

// TestStopLooksAtTheProcess: monit says that it has stopped the service, and the process decides whether that is so.
func TestStopLooksAtTheProcess(t *testing.T) {
	const check = "check process a pidfile DIR/a.pid "
	const file = check + "stop program \"/bin/stop\"\n"
	for _, c := range []struct {
		name, file, pid string
		ends, fails     bool
	}{
		{name: "lives", file: file, fails: true},
		{name: "ends later", file: file, ends: true},
		{name: "without a stop program", file: check},
		{name: "init's pid", file: file, pid: "1"},
		{name: "no pid", file: file, pid: "x"},
		{name: "file that is not understood", file: file + "nonsense"},
	} {
		t.Run(c.name, func(t *testing.T) {
			process := exec.Command("sleep", "1000")
			if err := process.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = process.Process.Kill() // it may have ended
				_ = process.Wait()         // killed
			})
			f := services("a")
			f.old = true
			budget := time.Minute
			if c.fails {
				budget = 200 * time.Millisecond
			}
			polls := 0 // after the stop
			client := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				f.change(func() {
					if f.services["a"].stopped {
						polls++
					}
					if c.ends && polls == 3 {
						_ = process.Process.Kill() // it runs
					}
				})
				f.ServeHTTP(w, r)
			}))
			s := Supervisor{Client: client, Poll: time.Millisecond, StopBudget: budget}
			dir := jobFiles(t, &s, c.file)
			if c.pid == "" {
				c.pid = fmt.Sprint(process.Process.Pid)
			}
			if err := os.WriteFile(filepath.Join(dir, "a.pid"), []byte(c.pid+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			err := s.StopAll(t.Context(), true)
			if (err != nil) != c.fails {
				t.Errorf("got %v, want an error: %v", err, c.fails)
			}
			if want := "process " + c.pid + " of a"; err != nil && (!strings.Contains(err.Error(), want) ||
				strings.Contains(err.Error(), "Timed out waiting for service")) {
				t.Errorf("got %v, want %s, and not the words that a Director takes for a stop", err, want)
			}
		})
	}
}
