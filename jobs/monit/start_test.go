package monit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"cambium/internal/vcap"
)

// fakeMachine is a service manager with a monit that, like the real one, reads its account when it
// starts and at no other time.
type fakeMachine struct {
	dirs vcap.Dirs

	mu          sync.Mutex
	running     bool
	knows       string // the account that the running monit has read
	incarnation int64
	calls       []string
	monit       *fakeMonit // nil: one without services
}

func (f *fakeMachine) record(call string) { f.calls = append(f.calls, call) }

func (f *fakeMachine) Setup(context.Context, string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.record("setup")
	return nil
}

func (f *fakeMachine) Running(context.Context, string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.running
}

func (f *fakeMachine) Started(string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.record("started")
}

func (f *fakeMachine) Kill(context.Context, string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.record("kill")
	f.running = false
	return nil
}

func (f *fakeMachine) Start(context.Context, string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.record("start")
	if f.running {
		return nil
	}
	data, err := os.ReadFile(f.dirs.MonitUser())
	if err != nil {
		return err
	}
	f.running, f.knows, f.incarnation = true, string(data), f.incarnation+1
	return nil
}

func (f *fakeMachine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	knows, incarnation := f.knows, f.incarnation
	f.mu.Unlock()
	if user, password, _ := r.BasicAuth(); user+":"+password != knows {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	r.SetBasicAuth("vcap", "canary:pw") // what fakeMonit asks for
	fake := f.monit
	if fake == nil {
		fake = services()
	}
	fake.change(func() { fake.incarnation = incarnation })
	fake.ServeHTTP(w, r)
}

func (f *fakeMachine) did() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls := strings.Join(f.calls, ", ")
	f.calls = nil
	return calls
}

// newStarter returns a machine on which monit.user has the given content, "" for none, and on
// which monit runs with it or not.
func newStarter(t *testing.T, have string, running bool) (Starter, *fakeMachine) {
	t.Helper()
	dirs := vcap.New(t.TempDir())
	f := &fakeMachine{dirs: dirs}
	if have != "" {
		if err := errors.Join(os.MkdirAll(dirs.MonitJobs(), 0o700),
			os.WriteFile(dirs.MonitUser(), []byte(have), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if running {
		if err := f.Start(t.Context(), UnitName); err != nil {
			t.Fatal(err)
		}
		f.calls = nil
	}
	web := httptest.NewServer(f)
	t.Cleanup(web.Close)
	stopped := []string{"/stopped.monitrc"}
	return Starter{Dirs: dirs, Services: f, Client: &Client{URL: web.URL, UserFile: dirs.MonitUser(), Daemon: f,
		Owner: uint32(os.Getuid())},
		HeldBack: func(context.Context) ([]string, error) { return stopped, nil },
		HoldBack: func(context.Context) (removed []string, err error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.record("keep stopped")
			removed, stopped = stopped, nil
			return removed, nil
		}}, f
}

// pxc-release's galera-agent has the password built in, so monit.user holds exactly this, and the
// monit that runs in the end knows it.
func TestStartGivesMonitTheAccountThatReleasesKnow(t *testing.T) {
	for _, c := range []struct {
		name    string
		have    string
		running bool
		changes string
		did     string
	}{
		{"new machine", "", false, "[write monit.user remove /stopped.monitrc start monit]", "keep stopped, setup, start"},
		{"booted again", account, false, "[remove /stopped.monitrc start monit]", "keep stopped, setup, start"},
		{"agent started again", account, true, "[remove /stopped.monitrc]", "keep stopped, started"},
		{"booted with a password of its own", "vcap:OWNPASSWORD", false, "[write monit.user remove /stopped.monitrc start monit]", "keep stopped, setup, start"},
		{"agent replaced, which had made a password", "vcap:OWNPASSWORD", true, "[write monit.user remove /stopped.monitrc restart monit]", "keep stopped, kill, start"},
		{"line break after it", account + "\n", true, "[write monit.user remove /stopped.monitrc restart monit]",
			"keep stopped, kill, start"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, f := newStarter(t, c.have, c.running)
			short := func(changes []Change) string {
				return strings.ReplaceAll(fmt.Sprint(changes), filepath.Dir(s.Dirs.MonitUser())+"/", "")
			}
			planned, err := s.Plan(t.Context())
			if err != nil || short(planned) != c.changes || f.did() != "" {
				t.Errorf("planned %s, %v; want %s, and nothing done", short(planned), err, c.changes)
			}
			made, err := s.Start(t.Context())
			if did := f.did(); err != nil || short(made) != c.changes || did != c.did {
				t.Errorf("made %s (%s), %v; want %s (%s)", short(made), did, err, c.changes, c.did)
			}
			data, err := os.ReadFile(s.Dirs.MonitUser())
			if err != nil || string(data) != "vcap:random-password" {
				t.Errorf("monit.user holds %q, %v", data, err)
			}
			if info, err := os.Stat(s.Dirs.MonitUser()); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("monit.user has mode %v, %v; want 0600", info.Mode(), err)
			}
			if _, err := s.Client.Status(t.Context()); err != nil {
				t.Errorf("the running monit does not know the account: %v", err)
			}
			planned, planErr := s.Plan(t.Context())
			made, err = s.Start(t.Context())
			if did := f.did(); errors.Join(planErr,
				err) != nil || len(planned)+len(made) != 0 || did != "keep stopped, started" {
				t.Errorf("the second time: planned %s, made %s (%s), %v, %v; want nothing", short(planned), short(made), did,
					planErr, err)
			}
		})
	}
}

// TestSwitch: what was not monitored stays so in either direction, and the program monit is there while the agent's own
// supervisor is.
func TestSwitch(t *testing.T) {
	s, f := newStarter(t, account, true)
	run := t.TempDir()
	s.Client.JobFiles = s.Dirs.MonitFiles()
	f.monit = services("a", "off", "stopped")
	f.monit.services["off"].monitor, f.monit.services["stopped"].monitor = 0, 0
	f.monit.ungrouped = map[string]bool{"off": true}
	for name, pid := range map[string]int{"off": os.Getpid(), "stopped": 0} {
		path := filepath.Join(run, name+".pid")
		if err := errors.Join(os.WriteFile(path, fmt.Append(nil, pid), 0o600), os.WriteFile(filepath.Join(s.Dirs.MonitJobs(),
			name+".monitrc"), fmt.Appendf(nil, "check process %s pidfile %s", name, path), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	var before map[string]bool
	s.Program = DropIn{Path: filepath.Join(run, "unit.d", "x.conf"), Content: SupervisorUnit("/agent"), Agent: "/agent",
		Link: filepath.Join(run, "bin", "monit"), Reload: func(context.Context, string, string) error { return nil },
		Before: func(monitored map[string]bool) error { before = monitored; return nil }}
	if _, err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(before), "map[a:true off:false stopped:false system_x:true]"; got != want {
		t.Errorf("monitored: got %s, want %s", got, want)
	}
	if got, err := os.Readlink(s.Program.Link); err != nil || got != "/agent" {
		t.Errorf("the program monit leads to %q, %v", got, err)
	}
	if got := f.did(); got != "keep stopped, kill, start" || len(f.monit.actions) != 0 {
		t.Errorf("did %s, and asked for %q", got, f.monit.actions)
	}
	s.Program.Content, s.Program.Before = nil, nil
	if _, err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(f.monit.actions); got != "[unmonitor off stop stopped]" {
		t.Errorf("on the way back: asked for %s", got)
	}
	for _, path := range []string{s.Program.Link, s.Program.Path} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: got %v, want it to be gone", path, err)
		}
	}
}

func TestStartFails(t *testing.T) {
	s, f := newStarter(t, "", false)
	refused := errors.New("read-only file system")
	s.HoldBack = func(context.Context) ([]string, error) { return nil, refused }
	if _, err := s.Start(t.Context()); !errors.Is(err, refused) || f.did() != "" {
		t.Errorf("got %v, want %v and no start", err, refused)
	}
	s, f = newStarter(t, "", false)
	if err := os.WriteFile(filepath.Join(s.Dirs.Base(), "monit"), nil, 0o600); err != nil { // where a directory belongs
		t.Fatal(err)
	}
	var path *fs.PathError
	if made, err := s.Start(t.Context()); !errors.As(err, &path) || len(made) != 0 || f.did() != "" {
		t.Errorf("made %v, %v; want the failure and no start", made, err)
	}
}
