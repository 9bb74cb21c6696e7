package monit

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cambium/internal/sockowner"
)

// fakeMonit answers as monit does: old is 5.2.5, which answers actions with the service's page, and
// carries them out in its next cycle; else 5.33, which wants a token and redirects. Both refuse
// unknown services (404), unknown actions (400) and a second action before the first is done (503).
type fakeMonit struct {
	mu          sync.Mutex
	old         bool
	incarnation int64
	services    map[string]*fakeService
	order       []string
	actions     []string
	busy        int // answers to actions that are 503
	slow        int // how often an action is seen as pending before it is done
	ungrouped   map[string]bool
}

type fakeService struct {
	status, monitor, pending int
	message                  string
	stopped                  bool // its stop program ran
	fails                    bool // its stop program does
	todo                     string
	seen                     int // status reads since todo was ordered
}

// codes maps an action to the number that monit shows as pendingaction.
var codes = map[string]int{"restart": 2, "start": 3, "stop": 4, "unmonitor": 6, "monitor": 7}

// cycle does the daemon's work of one wakeup for a service.
func (f *fakeMonit) cycle(s *fakeService) {
	if s.todo == "" || s.seen < f.slow {
		s.seen++
		return
	}
	switch s.todo {
	case "start":
		s.monitor, s.status = 1, 0
	case "stop":
		s.stopped = s.stopped || f.old || s.monitor != 0
		s.monitor, s.status, s.message = 0, 0, ""
		if s.fails {
			s.monitor, s.status, s.message = 1, 1, "failed to stop"
		}
	case "monitor":
		s.monitor = 1
	case "unmonitor":
		s.monitor = 0
	}
	s.todo, s.pending = "", 0
}

// change alters what is served; a request whose caller has given up may still be under way.
func (f *fakeMonit) change(alter func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	alter()
}

func (f *fakeMonit) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if user, password, ok := r.BasicAuth(); !ok || user != "vcap" || password != "canary:pw" {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if r.Method == http.MethodGet && r.URL.Path == "/_status2" && r.URL.Query().Get("format") == "xml" {
		fmt.Fprint(w, f.xml())
		return
	}
	name := strings.TrimPrefix(r.URL.Path, "/")
	s, known := f.services[name]
	if r.Method != http.MethodPost || !known {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	if cookie, err := r.Cookie("securitytoken"); !f.old &&
		(err != nil || cookie.Value == "" || cookie.Value != r.FormValue("securitytoken")) {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	action := r.FormValue("action")
	if codes[action] == 0 {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if f.busy > 0 || s.todo != "" {
		f.busy = max(f.busy-1, 0)
		f.cycle(s)
		http.Error(w, "Other action already in progress -- please try again later", http.StatusServiceUnavailable)
		return
	}
	f.actions = append(f.actions, action+" "+name)
	s.todo, s.pending, s.seen = action, codes[action], 0
	if f.slow == 0 {
		f.cycle(s)
	}
	if f.old {
		fmt.Fprintf(w, "<html><body><h2>%s</h2></body></html>", name)
	}
	if !f.old {
		http.Redirect(w, r, "/"+name, http.StatusFound)
	}
}

func (f *fakeMonit) xml() string {
	var b strings.Builder
	fmt.Fprintf(&b, `<?xml version="1.0" encoding="ISO-8859-1"?><monit id="x" incarnation="%d" version="%s"><server><uptime>1</uptime></server><services>`, f.incarnation, map[bool]string{true: "5.2.5", false: "5.33.0"}[f.old])
	for _, name := range f.order {
		s := f.services[name]
		f.cycle(s)
		fmt.Fprintf(&b, `<service name="%s"><type>3</type><status>%d</status><status_message>%s</status_message><monitor>%d</monitor><pendingaction>%d</pendingaction>`+
			`<uptime>7</uptime><memory><percent>0.1</percent><percenttotal>0.4</percenttotal><kilobyte>1</kilobyte><kilobytetotal>8192</kilobytetotal></memory><cpu><percent>0.0</percent><percenttotal>0.2</percenttotal></cpu></service>`,
			name, s.status, s.message, s.monitor, s.pending)
	}
	b.WriteString(`<service name="system_x"><type>5</type><status>1</status><monitor>2</monitor></service></services><servicegroups><servicegroup name="vcap">`)
	for _, name := range f.order {
		if !f.ungrouped[name] {
			fmt.Fprintf(&b, "<service>%s</service>", name)
		}
	}
	b.WriteString(`</servicegroup><servicegroup name="other"><service>system_x</service></servicegroup></servicegroups></monit>`)
	return b.String()
}

func serve(t *testing.T, h http.Handler) *Client {
	t.Helper()
	web := httptest.NewServer(h)
	t.Cleanup(web.Close)
	user := filepath.Join(t.TempDir(), "monit.user")
	if err := os.WriteFile(user, []byte("vcap:canary:pw\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return &Client{URL: web.URL, UserFile: user, Pause: time.Millisecond, Owner: uint32(os.Getuid())}
}

func services(names ...string) *fakeMonit {
	f := &fakeMonit{incarnation: 1000, services: map[string]*fakeService{}}
	for _, name := range names {
		f.services[name] = &fakeService{monitor: 1}
		f.order = append(f.order, name)
	}
	return f
}

func stateOf(ctx context.Context, s Supervisor) string {
	state, _, _ := s.Observe(ctx)
	return state
}

func TestProcesses(t *testing.T) {
	f := services("nats")
	_, p, err := Supervisor{Client: serve(t, f)}.Observe(t.Context())
	if err != nil || len(p) != 1 {
		t.Fatalf("got %v, %v", p, err)
	}
	if got, want := fmt.Sprintf("%+v", p[0]),
		"{Name:nats State:running Uptime:{Seconds:7} Memory:{KB:8192 Percent:0.4} CPU:{Total:0.2}}"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestStateOfServices: one service that starts makes the state "starting", wherever it is in the list; otherwise one
// that is not monitored makes it "failing".
func TestStateOfServices(t *testing.T) {
	const unmonitored, monitored, starting = 0, 1, 2
	for want, monitors := range map[string][]int{
		"running, running":                   {monitored, monitored},
		"failing, running running failing":   {monitored, monitored, unmonitored},
		"starting, starting failing":         {starting, unmonitored},
		"starting, failing starting running": {unmonitored, starting, monitored},
		"starting, running failing starting": {monitored, unmonitored, starting},
	} {
		f := services("a", "b", "c")
		f.order = f.order[:len(monitors)]
		for i, name := range f.order {
			f.services[name].monitor = monitors[i]
		}
		state, p, err := Supervisor{Client: serve(t, f)}.Observe(t.Context())
		if first, _, _ := strings.Cut(want, ","); err != nil || state != first || len(p) != len(monitors) {
			t.Errorf("%s: got %q, %v, %v", want, state, p, err)
		}
	}
}

func TestStartUnmonitored(t *testing.T) {
	f := services("a", "b", "c")
	f.services["b"].monitor, f.services["c"].monitor = 0, 2
	s := Supervisor{Client: serve(t, f), Poll: time.Millisecond}
	for _, want := range []string{"b", ""} {
		started, err := s.StartUnmonitored(t.Context())
		if got := strings.Join(started, " "); err != nil || got != want {
			t.Errorf("got %q, %v; want %q", got, err, want)
		}
	}
	if got := strings.Join(f.actions, ", "); got != "start b" {
		t.Errorf("got %s, want start b", got)
	}
}

// TestDeadOrSlowMonit: the state is unknown at once, and known again when monit is back.
func TestDeadOrSlowMonit(t *testing.T) {
	f := services("a")
	var hang atomic.Bool
	release := make(chan struct{})
	c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if hang.Load() {
			select {
			case <-release:
			case <-r.Context().Done():
			}
			return
		}
		f.ServeHTTP(w, r)
	}))
	t.Cleanup(func() { close(release) })
	s := Supervisor{Client: c}
	hang.Store(true)
	begun := time.Now()
	if got := stateOf(t.Context(), s); got != StateUnknown {
		t.Errorf("slow: got %s", got)
	}
	if took := time.Since(begun); took > 3*statusTimeout {
		t.Errorf("slow: took %v, want about %v", took, statusTimeout)
	}
	hang.Store(false)
	if got := stateOf(t.Context(), s); got != StateRunning {
		t.Errorf("recovered: got %s", got)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener.Close()
	dead := Supervisor{Client: &Client{URL: "http://" + listener.Addr().String(), UserFile: c.UserFile, Owner: c.Owner}}
	if got := stateOf(t.Context(), dead); got != StateUnknown {
		t.Errorf("dead: got %s", got)
	}
	missing := Supervisor{Client: &Client{URL: c.URL, UserFile: "/nonexistent"}}
	if got := stateOf(t.Context(), missing); got != StateUnknown {
		t.Errorf("without credentials: got %s", got)
	}
}

type fakeDaemon struct {
	f       *fakeMonit
	kills   int
	needed  int // kills until it is a new one
	killErr error
}

func (d *fakeDaemon) Kill(context.Context, string) error { d.kills++; return d.killErr }

func (d *fakeDaemon) Start(context.Context, string) error {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	if d.kills >= d.needed {
		d.f.incarnation++
	}
	return nil
}

func TestReloadWaitsForANewIncarnation(t *testing.T) {
	f := services("a")
	d := &fakeDaemon{f: f, needed: 1}
	c := serve(t, f)
	c.Daemon = d
	if err := c.Reload(t.Context()); err != nil || d.kills != 1 {
		t.Errorf("got %v after %d kills", err, d.kills)
	}
	d.needed = 100
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := c.Reload(ctx); err == nil {
		t.Error("the same monit answers: got no error")
	}
}

func TestErrorsHideThePassword(t *testing.T) {
	f := services("a")
	c := serve(t, f)
	if err := os.WriteFile(c.UserFile, []byte("vcap:canary-wrong"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := c.Status(t.Context())
	if err == nil || strings.Contains(err.Error(), "canary") || !strings.Contains(err.Error(), "401") {
		t.Errorf("got %v", err)
	}
	if err := os.WriteFile(c.UserFile, []byte("canary"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Status(t.Context()); err == nil || strings.Contains(err.Error(), "canary") {
		t.Errorf("got %v", err)
	}
}

// end is a connection of the agent to monit's port.
type end struct{ net.Conn }

func (end) LocalAddr() net.Addr  { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 40000} }
func (end) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 2822} }

// TestAcceptedByAnotherUser: vcap listened while monit was down, accepted the agent's connection, and closed its
// listener, so that monit has the port again when its owner is looked up.
func TestAcceptedByAnotherUser(t *testing.T) {
	dir := t.TempDir()
	c := &Client{Sockets: sockowner.Table{Dir: dir}}
	const heading = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	const listener = "   0: 0100007F:0B06 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1\n"
	for _, s := range []struct {
		state   string
		uid     int
		refused bool
	}{
		{"01", 1000, true},
		{"04", 1000, true}, // it has closed its sending half, and still receives
		{"01", 0, false},
		{"03", 0, false},
	} {
		accepted := fmt.Sprintf("   1: 0100007F:0B06 0100007F:9C40 %s 00000000:00000000 00:00000000 00000000  %d        0 2\n", s.state, s.uid)
		if err := os.WriteFile(filepath.Join(dir, "tcp"), []byte(heading+listener+accepted), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := c.checkOwner(netip.MustParseAddrPort("127.0.0.1:2822")); err != nil {
			t.Fatal(err)
		}
		if err := c.checkAccepted(end{}); (err != nil) != s.refused {
			t.Errorf("state %s, user %d: got %v", s.state, s.uid, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "tcp"), []byte(heading+listener), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.checkAccepted(end{}); err != nil {
		t.Errorf("not listed yet: got %v", err)
	}
}

// TestPasswordIsForTheOwner lets a process of another user listen where monit should: it gets no request.
func TestPasswordIsForTheOwner(t *testing.T) {
	var asked atomic.Int32
	web := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	t.Cleanup(web.Close)
	user := filepath.Join(t.TempDir(), "monit.user")
	if err := os.WriteFile(user, []byte("vcap:random-password"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := &Client{URL: web.URL, UserFile: user, Owner: uint32(os.Getuid()) + 1}
	if _, err := c.Status(t.Context()); err == nil || !strings.Contains(err.Error(), "has monit's port") {
		t.Errorf("got %v, want an error that names the listener", err)
	}
	if asked.Load() != 0 {
		t.Error("another user's process was asked")
	}
}
