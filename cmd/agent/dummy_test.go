package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"cambium/internal/testca"
)

// dummyMachine is what a Director's test suite makes for an agent without a machine.
type dummyMachine struct {
	t    *testing.T
	conn *nats.Conn
	done chan int
}

// director asks and waits for the reply, following tasks.
func (d dummyMachine) ask(method string, arguments ...any) json.RawMessage {
	d.t.Helper()
	reply := d.send(method, arguments...)
	for {
		var handle struct {
			ID    string `json:"agent_task_id"`
			State string `json:"state"`
		}
		if json.Unmarshal(reply, &handle) != nil || handle.State != "running" {
			return reply
		}
		reply = d.send("get_task", handle.ID)
	}
}

func (d dummyMachine) send(method string, arguments ...any) json.RawMessage {
	d.t.Helper()
	if arguments == nil {
		arguments = []any{}
	}
	subject := "director.me.dummy-1." + fmt.Sprint(time.Now().UnixNano())
	inbox, err := d.conn.SubscribeSync(subject)
	if err != nil {
		d.t.Fatal(err)
	}
	defer func() { _ = inbox.Unsubscribe() }()
	body, _ := json.Marshal(map[string]any{"protocol": 3, "method": method, "arguments": arguments, "reply_to": subject})
	for range 20 {
		if err := d.conn.Publish("agent.dummy-1", body); err != nil {
			d.t.Fatal(err)
		}
		message, err := inbox.NextMsg(3 * time.Second)
		if err != nil {
			continue // not subscribed yet
		}
		var envelope struct {
			Value     json.RawMessage
			Exception *struct{ Message string }
		}
		if err := json.Unmarshal(message.Data, &envelope); err != nil {
			d.t.Fatalf("%s: %v in %s", method, err, message.Data)
		}
		if envelope.Exception != nil {
			if strings.HasPrefix(envelope.Exception.Message, "restarting agent") {
				continue
			}
			d.t.Fatalf("%s: %s", method, envelope.Exception.Message)
		}
		return envelope.Value
	}
	d.t.Fatalf("%s: no answer", method)
	return nil
}

// dummyAgent is an agent as a Director's own test suite runs it: no machine, a file as source, a
// real NATS server with mutual TLS.
type dummyAgent struct {
	dummyMachine
	base, url string
	ca        *testca.CA
}

func newDummyAgent(t *testing.T) dummyAgent {
	t.Helper()
	ca, err := testca.New("test")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", os.TempDir()) // the agent, which is this process, sets its own
	server, url, directorTLS := startNATS(t, ca)
	t.Cleanup(server.Shutdown)
	a := dummyAgent{dummyMachine{t: t, done: make(chan int, 1)}, t.TempDir(), url, ca}
	if a.conn, err = nats.Connect(url, nats.Secure(directorTLS)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.conn.Close)
	return a
}

func (a dummyAgent) write(name string, content any) string {
	a.t.Helper()
	path := filepath.Join(a.base, name)
	data, err := json.Marshal(content)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o755)
	}
	if err == nil {
		err = os.WriteFile(path, data, 0o600)
	}
	if err != nil {
		a.t.Fatal(err)
	}
	return path
}

// start runs the agent under a certificate until stop is called.
func (a dummyAgent) start(pair testca.Pair) (stop func()) {
	a.t.Helper()
	source := a.write("bosh/dummy-cpi-agent-env.json", map[string]any{
		"agent_id": "dummy-1", "vm": map[string]any{"name": "vm-dummy"}, "disks": map[string]any{"persistent": map[string]any{}},
		"networks":  map[string]any{"a": map[string]any{"type": "manual", "ip": "127.0.0.9", "netmask": "255.0.0.0"}},
		"blobstore": map[string]any{"provider": "local", "options": map[string]any{"blobstore_path": filepath.Join(a.base, "blobstore")}},
		"env": map[string]any{"bosh": map[string]any{"mbus": map[string]any{"urls": []string{a.url},
			"cert": map[string]any{"ca": string(a.ca.PEM), "certificate": string(pair.Certificate), "private_key": string(pair.PrivateKey)}}}},
	})
	config := a.write("agent.json", map[string]any{"Infrastructure": map[string]any{"Settings": map[string]any{"UseRegistry": true,
		"Sources": []any{map[string]any{"Type": "File", "SettingsPath": source}}}}})
	ctx, cancel := context.WithCancel(a.t.Context())
	go func() {
		a.done <- runAgent(ctx, []string{"-P", "dummy", "-M", "dummy-nats", "-b", a.base, "-C", config, "-r", "/x", "-no-alerts"}, io.Discard, io.Discard)
	}()
	return func() {
		cancel()
		select {
		case <-a.done:
		case <-time.After(20 * time.Second):
			a.t.Error("the agent does not end with its context")
		}
	}
}

// A warning that a certificate is about to end is not repeated by an agent that starts again, and
// a new certificate has its own.
func TestCertificateWarningsAreToldOnce(t *testing.T) {
	d := newDummyAgent(t)
	var subscriptions []*nats.Subscription
	for _, topic := range []string{"alert", "heartbeat"} {
		s, err := d.conn.SubscribeSync("hm.agent." + topic + ".dummy-1")
		if err != nil {
			t.Fatal(err)
		}
		subscriptions = append(subscriptions, s)
	}
	alerts, heartbeats := subscriptions[0], subscriptions[1]
	issue := func(days int) testca.Pair {
		t.Helper()
		pair, err := d.ca.Issue(testca.Request{CommonName: testca.AgentName("dummy-1"), NotAfter: time.Now().Add(time.Duration(days) * 24 * time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		return pair
	}
	next := func(s *nats.Subscription) string {
		t.Helper()
		m, err := s.NextMsg(30 * time.Second)
		if err != nil {
			t.Fatal(err)
		}
		return string(m.Data)
	}
	soon, sooner := issue(20), issue(5)
	stop := d.start(soon)
	first := next(alerts)
	next(heartbeats)
	stop()

	stop = d.start(soon)
	next(heartbeats)
	d.ask("ping")
	stop()

	stop = d.start(sooner)
	second := next(alerts) // the next one of all
	stop()
	for got, want := range map[string]string{first: `"severity":4,"title":"bus client certificate expires on `, second: `"severity":3,"title":"bus client certificate expires on `} {
		if !strings.Contains(got, want) {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if info, err := os.Stat(filepath.Join(d.base, "bosh", expiryFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("what was told is not kept: %v, %v", info, err)
	}
}

func TestDummyAgentServesADirector(t *testing.T) {
	d := newDummyAgent(t)
	base := d.base
	pair, err := d.ca.Client(testca.AgentName("dummy-1"))
	if err != nil {
		t.Fatal(err)
	}
	defer d.start(pair)()

	if got := d.ask("ping"); string(got) != `"pong"` {
		t.Errorf("ping: %s", got)
	}
	if got, want := os.Getenv("TMPDIR"), filepath.Join(base, "data", "tmp"); got != want {
		t.Errorf("TMPDIR is %q, want %q", got, want)
	}
	var state struct {
		AgentID  string `json:"agent_id"`
		JobState string `json:"job_state"`
		VM       struct{ Name string }
	}
	if err := json.Unmarshal(d.ask("get_state", "full"), &state); err != nil || state.AgentID != "dummy-1" || state.VM.Name != "vm-dummy" || state.JobState != "running" {
		t.Errorf("get_state: %+v, %v", state, err)
	}
	d.ask("add_persistent_disk", "disk-1", "attached")
	d.ask("mount_disk", "disk-1")
	if got := d.ask("list_disk"); string(got) != `["disk-1"]` {
		t.Errorf("list_disk: %s", got)
	}
	d.ask("apply", map[string]any{"deployment": "d", "name": "n", "id": "i", "index": 0, "networks": map[string]any{"a": map[string]any{"type": "manual"}}})
	if got, err := os.ReadFile(filepath.Join(base, "instance", "deployment")); err != nil || string(got) != "d" {
		t.Errorf("instance/deployment: %q, %v", got, err)
	}
	if got := d.ask("start"); string(got) != `"started"` {
		t.Errorf("start: %s", got)
	}
	if mounts, err := os.ReadFile(filepath.Join(base, "bosh", "mounts.json")); err != nil || !strings.Contains(string(mounts), "disk-1") {
		t.Errorf("mounts.json: %s, %v", mounts, err)
	}
}

func startNATS(t *testing.T, ca *testca.CA) (*natsserver.Server, string, *tls.Config) {
	t.Helper()
	serverPair, err := ca.Server("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	directorPair, err := ca.Client(testca.DirectorName)
	if err != nil {
		t.Fatal(err)
	}
	serverCert, err := serverPair.TLS()
	if err != nil {
		t.Fatal(err)
	}
	directorCert, err := directorPair.TLS()
	if err != nil {
		t.Fatal(err)
	}
	server, err := natsserver.NewServer(&natsserver.Options{Host: "127.0.0.1", Port: natsserver.RANDOM_PORT, NoLog: true, NoSigs: true, TLSTimeout: 10,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{serverCert}, ClientCAs: ca.Pool(), ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12}})
	if err != nil {
		t.Fatal(err)
	}
	go server.Start()
	if !server.ReadyForConnections(10 * time.Second) {
		t.Fatal("NATS server did not start")
	}
	return server, "nats://" + server.Addr().String(), &tls.Config{Certificates: []tls.Certificate{directorCert}, RootCAs: ca.Pool(), MinVersion: tls.VersionTLS12}
}
