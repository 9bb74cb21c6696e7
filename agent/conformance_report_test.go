package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"cambium/internal/eventually"
	"cambium/internal/vcap"
	"cambium/jobs"
	"cambium/jobs/monit"
	"cambium/mbus"
)

// reported is the part of a case that no request begins.
type reported struct {
	// An event of the supervisor, and how grave it is; 0 is not reported.
	Event    string
	Severity int

	// A mail of the supervisor to a machine with these addresses, and the alert's body.
	Mail string
	IPs  []string

	// A machine, and the body of its heartbeat.
	Heartbeat *heart

	// Services as the supervisor shows them, or none where it does not answer, and the state of
	// the instance.
	Services *[]service
	Stopped  bool // by the agent
	Dead     bool // the supervisor
	State    string

	Body json.RawMessage
}

type heart struct {
	Applied   json.RawMessage
	Processes int
	Sick      string // how its vitals fail, while spec and supervisor do too
}

type service struct{ Status, Monitor int }

func (r reported) reports() bool {
	return r.Event != "" || r.Mail != "" || r.Heartbeat != nil || r.Services != nil
}

// conformsReport compares what is sent to the Health Monitor, byte by byte: the order of keys is
// that of other agents, too.
func conformsReport(t *testing.T, c conformanceCase) {
	switch {
	case c.Event != "":
		alert, worth := MonitAlert(monit.Alert{Service: "s", Event: c.Event}, nil)
		if worth != (c.Severity > 0) || alert.Severity != c.Severity {
			t.Errorf("got severity %d, sent %v; want %d", alert.Severity, worth, c.Severity)
		}
	case c.Mail != "":
		p := &publisher{connected: true}
		alerts := NewAlerts(quiet())
		mail, is := monit.ParseAlert(c.Mail)
		if alert, worth := MonitAlert(mail, c.IPs); is && worth {
			alerts.Send(alert)
		}
		alerts.flush(t.Context(), p)
		sameBody(t, c, body(t, p, "hm alert "))
	case c.Heartbeat != nil:
		// A supervisor that does not answer is waited for.
		synctest.Test(t, func(t *testing.T) { sameBody(t, c, c.Heartbeat.beat(t)) })
	case c.Services != nil:
		instance := &jobs.Instance{Dirs: vcap.New(t.TempDir()), Supervisor: monit.Supervisor{Client: serveStatus(t, c)},
			Log: quiet()}
		if c.Stopped {
			check(t, os.MkdirAll(instance.Dirs.Monit(), 0o755))
			write(t, instance.Dirs.MonitStopped(), "")
		}
		if got := instance.JobState(t.Context()); got != c.State {
			t.Errorf("got %s, want %s", got, c.State)
		}
		if got, want := read(t, instance.Dirs.Health()), fmt.Sprintf(`{"state":%q}`, c.State); got != want {
			t.Errorf("health.json: got %s, want %s", got, want)
		}
	}
}

func sameBody(t *testing.T, c conformanceCase, got string) {
	t.Helper()
	var want bytes.Buffer
	check(t, json.Compact(&want, c.Body))
	if got != want.String() {
		t.Errorf("got\n%s\nwant\n%s", got, want.String())
	}
}

func (h heart) beat(t *testing.T) string {
	t.Helper()
	p, m := &publisher{connected: true}, &machine{supposed: make([]jobs.Process, h.Processes)}
	beats := Heartbeats{Bus: p, Jobs: m, Vitals: m.vitals, Log: quiet()}
	m.spec = must[jobs.Spec](t)((&jobs.SpecFile{Dirs: vcap.New(t.TempDir())}).Spec())
	if h.Applied != nil {
		check(t, json.Unmarshal(h.Applied, &m.spec))
	}
	if h.Sick != "" {
		m.specErr, m.slow = errors.New("corrupt"), make(chan struct{})
		defer close(m.slow)
		beats.Vitals = func(context.Context) (any, error) {
			if h.Sick == "panic" {
				panic("broken")
			}
			return nil, errors.New(h.Sick)
		}
	}
	beats.send(t.Context(), beats.collect(t.Context()))
	return body(t, p, "hm heartbeat ")
}

// serveStatus is a supervisor that shows the services of a case, all in the group of the agent.
func serveStatus(t *testing.T, c conformanceCase) *monit.Client {
	t.Helper()
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `<?xml version="1.0" encoding="ISO-8859-1"?><monit id="x" incarnation="1" version="5.2.5"><services>`)
		var group strings.Builder
		for i, s := range *c.Services {
			fmt.Fprintf(w, `<service name="s%d"><type>3</type><status>%d</status><monitor>%d</monitor><pendingaction>0</pendingaction></service>`, i, s.Status, s.Monitor)
			fmt.Fprintf(&group, "<service>s%d</service>", i)
		}
		fmt.Fprintf(w, `</services><servicegroups><servicegroup name="vcap">%s</servicegroup></servicegroups></monit>`,
			group.String())
	}))
	t.Cleanup(web.Close)
	if c.Dead {
		web.Close()
	}
	user := filepath.Join(t.TempDir(), "monit.user")
	write(t, user, "vcap:x")
	return &monit.Client{URL: web.URL, UserFile: user, Owner: uint32(os.Getuid())}
}

// audit keeps the last lines.
type audit struct {
	mu    sync.Mutex
	lines []string
}

func (a *audit) Record(e mbus.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.lines = append(a.lines, e.String()); len(a.lines) > 100 {
		a.lines = slices.Delete(a.lines, 0, 50)
	}
}

// audited waits for the line of the case's request, which is written after the answer.
func (w *world) audited(t *testing.T, c conformanceCase) {
	t.Helper()
	if c.Audit == "" {
		return
	}
	want := regexp.MustCompile(c.Audit)
	eventually.True(t, "an audit line "+c.Audit, func() bool {
		w.audit.mu.Lock()
		defer w.audit.mu.Unlock()
		return slices.ContainsFunc(w.audit.lines, want.MatchString)
	})
}
