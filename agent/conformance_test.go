package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"cambium/internal/eventually"
	"cambium/internal/secret"
	"cambium/internal/testca"
	"cambium/internal/testnats"
	"cambium/mbus/natsbus"
	"cambium/settings"
)

var update = flag.Bool("update", false, "rewrite golden files")

// conformanceCase is a rule of the contract (contract.json), as a request and what comes of it. Its name begins with
// the rule's number.
type conformanceCase struct {
	Rule      string
	Method    string
	Protocol  *int
	Arguments []json.RawMessage
	Raw       *string // a whole envelope instead
	Only      string  // the one transport that the rule is about
	Early     bool    // asked before the agent is ready
	Silent    bool    // not answered; over HTTPS a bare status 500
	Task      bool    // the reply is that of the task's end
	Cancel    bool    // likewise, after it was canceled while it ran
	Handle    bool    // the reply is a task handle
	Reply     json.RawMessage
	Message   *string // of the exception, exactly
	Contains  string  // part of that message
	Matches   string  // pattern of that message
	Like      string  // pattern of the whole reply
	File      string  // golden reply
	Did       *[]string
	Reports   []string // to the Health Monitor: subject and body

	// A request to the HTTPS port that no action serves.
	HTTPS   *httpsRequest
	Status  int
	Text    *string
	Headers map[string]string

	// The common name of a NATS server, and whether the agent talks to it.
	Server   string
	Accepted bool

	// Settings, perhaps with an update, and what of them is in force.
	Settings, Update json.RawMessage
	Effective        *inForce

	// The pattern of the line that the audit has of a request.
	Audit string

	// What the agent reports by itself; see conformsReport.
	reported

	// The tests, as directory and name, that show a rule which no request or event does.
	Shown []string
}

type inForce struct {
	URLs          []string
	CA, Blobstore string
}

type httpsRequest struct{ Method, Path, Password, Body string }

const (
	dns7 = `{"version":7,"records":[["10.0.0.5","a.bosh"]],"record_keys":["id"],"unknown":{"kept":true}}`
	dns8 = `{"version":8,"records":[]}`
	dns9 = `{"version":18446744073709551615,"records":[]}`
)

func conformanceCases(t *testing.T) (cases []conformanceCase) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(must[[]byte](t)(os.ReadFile("testdata/conformance.json"))))
	d.DisallowUnknownFields()
	check(t, d.Decode(&cases))
	return cases
}

// TestConformance holds the agent to the contract, over NATS and over HTTPS.
func TestConformance(t *testing.T) {
	cases := conformanceCases(t)
	for _, transport := range []string{"nats", "https"} {
		t.Run(transport, func(t *testing.T) {
			w := newWorkshop(t)
			for _, c := range cases {
				if c.Early {
					t.Run(c.Rule, func(t *testing.T) { w.conforms(t, transport, c, strings.NewReplacer()) })
				}
			}
			w.ready()
			w.machine.blobs = map[string]string{"dns-7": dns7, "dns-8": dns8, "https://signed/9": dns9}
			write(t, filepath.Join(w.dirs.Tmp(), "logs.tgz"), "logs")
			write(t, filepath.Join(w.dirs.SysLog(), "a.log"), "a")
			fixtures := w.fixtures(t)
			for _, c := range cases {
				switch {
				case c.Early, c.reports(), c.Shown != nil, c.Server != "", c.Effective != nil, c.Only != "" &&
					c.Only != transport, c.HTTPS != nil && transport != "https":
				case c.HTTPS != nil:
					t.Run(c.Rule, func(t *testing.T) { w.conformsHTTPS(t, c) })
				default:
					t.Run(c.Rule+" "+c.Method, func(t *testing.T) { w.conforms(t, transport, c, fixtures) })
				}
			}
			if got := string(must[[]byte](t)(os.ReadFile(w.dirs.DNSRecords()))); got != dns9 {
				t.Errorf("records are %s, want those that came", got)
			}
			if _, err := os.Stat(filepath.Join(w.dirs.Tmp(), "logs.tgz")); !os.IsNotExist(err) {
				t.Errorf("the removed file: %v", err)
			}
		})
	}
	for _, c := range cases {
		switch {
		case c.Server != "":
			t.Run(c.Rule, func(t *testing.T) { conformsServer(t, c) })
		case c.Effective != nil:
			t.Run(c.Rule, func(t *testing.T) { conformsSettings(t, c) })
		case c.reports():
			t.Run(c.Rule, func(t *testing.T) { conformsReport(t, c) })
		}
	}
}

// conformsServer connects to a server whose certificate is of the right authority and has the
// name.
func conformsServer(t *testing.T, c conformanceCase) {
	d := testnats.Start(t, nil, agentID)
	d.Down()
	d.SetServerCertificate(must[testca.Pair](t)(d.CA.Issue(testca.Request{CommonName: c.Server,
		Hosts: []string{"127.0.0.1"}})))
	d.Up()
	pair := d.Client(testca.AgentName(agentID))
	bus := must[*natsbus.Bus](t)(natsbus.New(natsbus.Options{AgentID: agentID,
		Handler: NewDispatcher(t.Context(), quiet()), Log: quiet(), Identity: natsbus.Identity{
			URLs: []secret.URL{d.URL()}, CA: string(d.CA.PEM), Certificate: string(pair.Certificate),
			PrivateKey: secret.New(string(pair.PrivateKey))}}))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- bus.Run(ctx) }()
	eventually.True(t, "an attempt", func() bool { return bus.Connected() || bus.LastError() != nil })
	if bus.Connected() != c.Accepted {
		t.Errorf("connected %v (%v), want %v", bus.Connected(), bus.LastError(), c.Accepted)
	}
	cancel()
	check(t, <-ended)
}

func conformsSettings(t *testing.T, c conformanceCase) {
	s, problems := settings.Decode("settings", secret.NewJSON(c.Settings))
	check(t, problems.Err())
	var u settings.Update
	if c.Update != nil {
		u, problems = settings.DecodeUpdate("update", secret.NewJSON(c.Update))
		check(t, problems.Err())
	}
	e := settings.Merge(s, u)
	got := inForce{CA: e.Bus.Cert.CA, Blobstore: e.Blobstore.Provider}
	for _, u := range e.Bus.URLs {
		got.URLs = append(got.URLs, u.Reveal())
	}
	if !reflect.DeepEqual(got, *c.Effective) {
		t.Errorf("got %+v, want %+v", got, *c.Effective)
	}
}

// TestConformanceIsComplete: each method has a case in which it succeeds.
func TestConformanceIsComplete(t *testing.T) {
	// get_task and cancel_task succeed in every case that follows a task.
	succeeds := map[string]bool{"get_task": true, "cancel_task": true}
	for _, c := range conformanceCases(t) {
		if c.Reply != nil || c.Like != "" || c.File != "" || c.Handle {
			succeeds[c.Method] = true
		}
	}
	for _, name := range newWorkshop(t).table.Names() {
		if !succeeds[name] {
			t.Errorf("no case in which %s succeeds", name)
		}
	}
}

// TestConformanceHasTheLiterals: every text that callers look for is in a case about them.
func TestConformanceHasTheLiterals(t *testing.T) {
	literals := regexp.MustCompile(`(^|, )B\.[0-9]+`)
	var about strings.Builder
	for line := range strings.Lines(read(t, "testdata/conformance.json")) {
		if rule, _, _ := strings.Cut(strings.TrimPrefix(line, ` {"rule": "`), `"`); literals.MatchString(rule) {
			about.WriteString(strings.ReplaceAll(line, `\"`, `"`))
		}
	}
	for _, literal := range []string{"unknown message ", "restarting agent", "Timed out waiting for service", `"started"`,
		`"synced"`, `"success"`, `"running"`,
		`"blobstore_id"`, `"exit_code"`, `"stdout"`, `"stderr"`, `"result"`, `"sha1"`, `["disk-1"]`, `"handle": true`} {
		if !strings.Contains(about.String(), literal) {
			t.Errorf("no case has %s", literal)
		}
	}
}

// TestConformanceNamesTests: where the table names a test instead of a request, there is one.
func TestConformanceNamesTests(t *testing.T) {
	for _, c := range conformanceCases(t) {
		for _, shown := range c.Shown {
			dir, name, _ := strings.Cut(shown, ".")
			if !slices.ContainsFunc(must[[]string](t)(filepath.Glob(filepath.Join("..", dir, "*_test.go"))),
				func(file string) bool {
					return strings.Contains(read(t, file), "\nfunc "+name+"(t *testing.T) {")
				}) {
				t.Errorf("%s: there is no test %s", c.Rule, shown)
			}
		}
	}
}

// conformsHTTPS sends a request to the port and compares status, headers and body.
func (w *workshop) conformsHTTPS(t *testing.T, c conformanceCase) {
	r := must[*http.Request](t)(http.NewRequest(c.HTTPS.Method, strings.TrimSuffix(w.https, "/agent")+c.HTTPS.Path,
		strings.NewReader(c.HTTPS.Body)))
	if c.HTTPS.Password != "" {
		r.SetBasicAuth("mbus", c.HTTPS.Password)
	}
	response := must[*http.Response](t)(w.client.Do(r))
	body := must[[]byte](t)(io.ReadAll(response.Body))
	check(t, response.Body.Close())
	if response.StatusCode != c.Status || c.Text != nil && string(body) != *c.Text {
		t.Errorf("got %d %q, want %d %v", response.StatusCode, body, c.Status, c.Text)
	}
	if response.ProtoMajor != 1 {
		t.Errorf("got %s, want HTTP/1.1", response.Proto)
	}
	w.audited(t, c)
	for name, want := range c.Headers {
		if got := response.Header.Get(name); got != want {
			t.Errorf("header %s: got %q, want %q", name, got, want)
		}
	}
}

// stayedSilent sends an envelope that gets no answer, and shows that the agent lives.
func (w *world) stayedSilent(t *testing.T, transport, envelope string) {
	t.Helper()
	if transport == "https" {
		if status, body := w.post(envelope); status != http.StatusInternalServerError || body != "" {
			t.Errorf("got %d %q, want a bare 500", status, body)
		}
		return
	}
	subject, replies := w.director.Inbox(agentID)
	defer w.director.Forget(subject)
	check(t, w.director.Conn.Publish("agent."+agentID, []byte(strings.ReplaceAll(envelope, "REPLY", subject))))
	if got := w.director.Call(agentID, "ping"); got != `{"value":"pong"}` {
		t.Errorf("afterwards: %s", got)
	}
	select {
	case reply := <-replies:
		t.Errorf("answered with %s", reply)
	default:
	}
}

// ask sends one envelope and returns the reply.
func (w *world) ask(t *testing.T, transport, envelope string) string {
	t.Helper()
	if transport == "https" {
		status, body := w.post(strings.ReplaceAll(envelope, "REPLY", "cli"))
		if status != 200 {
			t.Fatalf("status %d", status)
		}
		return body
	}
	subject, replies := w.director.Inbox(agentID)
	defer w.director.Forget(subject)
	check(t, w.director.Conn.Publish("agent."+agentID, []byte(strings.ReplaceAll(envelope, "REPLY", subject))))
	return testnats.Receive(t, replies)
}

func (w *workshop) conforms(t *testing.T, transport string, c conformanceCase, fixtures *strings.Replacer) {
	envelope := ""
	if c.Raw != nil {
		envelope = *c.Raw
	} else {
		request := map[string]any{"method": c.Method, "arguments": c.Arguments, "reply_to": "REPLY", "protocol": 3}
		if c.Protocol != nil {
			request["protocol"] = *c.Protocol
		}
		if c.Arguments == nil {
			request["arguments"] = []any{}
		}
		envelope = string(must[[]byte](t)(json.Marshal(request)))
	}
	if c.Silent {
		w.stayedSilent(t, transport, envelope)
		return
	}
	reports := w.listen(t)
	w.machine.recordedCalls()
	got := w.ask(t, transport, fixtures.Replace(envelope))
	if c.Task || c.Handle || c.Cancel {
		got = w.follow(t, transport, c, got)
	}
	w.compare(t, c, got, fixtures)
	w.audited(t, c)
	if c.Did != nil {
		if did := w.machine.recordedCalls(); len(did)+len(*c.Did) > 0 && !reflect.DeepEqual(did, *c.Did) {
			t.Errorf("the machine did %q, want %q", did, *c.Did)
		}
	}
	for _, want := range c.Reports {
		m := must[*nats.Msg](t)(reports.NextMsg(10 * time.Second))
		if got := m.Subject + " " + string(m.Data); got != want {
			t.Errorf("reported %s, want %s", got, want)
		}
	}
}

// listen is the Health Monitor.
func (w *workshop) listen(t *testing.T) *nats.Subscription {
	t.Helper()
	if w.monitor == nil {
		w.monitor = w.deployment.Connect(testca.HealthMonitorName)
	}
	reports := must[*nats.Subscription](t)(w.monitor.SubscribeSync("hm.agent.>"))
	check(t, w.monitor.Flush())
	t.Cleanup(func() { _ = reports.Unsubscribe() })
	return reports
}

var handle = regexp.MustCompile(`^\{"value":\{"agent_task_id":"([0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12})","state":"running"\}\}$`)

// follow polls a task to its end, and once more: the answer stays.
func (w *workshop) follow(t *testing.T, transport string, c conformanceCase, reply string) string {
	t.Helper()
	found := handle.FindStringSubmatch(reply)
	if found == nil {
		t.Fatalf("got %s, want a task handle", reply)
	}
	if c.Cancel {
		w.running(t)
		w.cancel(t, transport, found[1])
	}
	poll := fmt.Sprintf(`{"method":"get_task","arguments":[%q],"reply_to":"REPLY"}`, found[1])
	end := ""
	eventually.True(t, "the end of the task", func() bool { end = w.ask(t, transport, poll); return end != reply })
	polls := 11 // callers of create-env ask this often about a failure
	if len(end) > 100<<10 {
		polls = 1
	}
	for range polls {
		if repeated := w.ask(t, transport, poll); repeated != end {
			t.Fatalf("asked again: got %s, want %s", repeated, end)
		}
	}
	// Canceling what has ended does nothing.
	w.cancel(t, transport, found[1])
	if repeated := w.ask(t, transport, poll); repeated != end {
		t.Fatalf("after cancel_task: got %s, want %s", repeated, end)
	}
	if c.Handle {
		return reply
	}
	return end
}

func (w *world) cancel(t *testing.T, transport, id string) {
	t.Helper()
	if got := w.ask(t, transport, fmt.Sprintf(`{"method":"cancel_task","arguments":[%q],"reply_to":"REPLY"}`,
		id)); got != `{"value":"canceled"}` {
		t.Fatalf("cancel_task: %s", got)
	}
}

func (w *workshop) compare(t *testing.T, c conformanceCase, got string, fixtures *strings.Replacer) {
	t.Helper()
	var exception struct {
		Exception *struct{ Message string }
	}
	check(t, json.Unmarshal([]byte(got), &exception))
	message := ""
	if exception.Exception != nil {
		message = exception.Exception.Message
	}
	switch {
	case c.Handle:
	case c.File != "":
		golden(t, c.File, got)
	case c.Reply != nil:
		want := fixtures.Replace(string(c.Reply))
		var a, b any
		check(t, json.Unmarshal([]byte(want), &a))
		check(t, json.Unmarshal([]byte(got), &b))
		if !reflect.DeepEqual(a, b) {
			t.Errorf("got %s, want %s", got, want)
		}
	case c.Message != nil:
		if exception.Exception == nil || message != *c.Message {
			t.Errorf("got %s, want the exception %q", got, *c.Message)
		}
	case c.Like != "":
		if !regexp.MustCompile(c.Like).MatchString(got) {
			t.Errorf("got %.300s, want a reply like %s", got, c.Like)
		}
	case c.Matches != "":
		if !regexp.MustCompile(c.Matches).MatchString(message) {
			t.Errorf("got %.300s, want an exception like %q", got, c.Matches)
		}
	default:
		if c.Contains == "" || !strings.Contains(message, c.Contains) {
			t.Errorf("got %.300s, want an exception with %q", got, c.Contains)
		}
	}
}

// golden compares byte by byte: the order of keys is that of other agents, too.
func golden(t *testing.T, file, got string) {
	t.Helper()
	path := filepath.Join("testdata", file)
	if *update {
		check(t, os.WriteFile(path, []byte(got+"\n"), 0o644))
	}
	want := strings.TrimSuffix(string(must[[]byte](t)(os.ReadFile(path))), "\n")
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
