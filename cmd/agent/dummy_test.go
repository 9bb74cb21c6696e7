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
	"sync"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"cambium/internal/testca"
)

// dummyMachine runs an agent without a machine and talks to it over NATS, as a Director's test suite does.
type dummyMachine struct {
	t    *testing.T
	conn *nats.Conn
	done chan int
	log  *lockedLog
}

// lockedLog is the log of an agent that is read while it runs.
type lockedLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// ask asks and waits for the reply, following tasks.
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
	value, exception := d.answer(method, arguments...)
	if exception != "" {
		d.t.Fatalf("%s: %s", method, exception)
	}
	return value
}

// fails asks for what cannot be done and returns the exception.
func (d dummyMachine) fails(method string, arguments ...any) string {
	d.t.Helper()
	reply, exception := d.answer(method, arguments...)
	for exception == "" {
		var handle struct {
			ID    string `json:"agent_task_id"`
			State string `json:"state"`
		}
		if json.Unmarshal(reply, &handle) != nil || handle.State != "running" {
			d.t.Fatalf("%s succeeded: %s", method, reply)
		}
		reply, exception = d.answer("get_task", handle.ID)
	}
	return exception
}

func (d dummyMachine) answer(method string, arguments ...any) (value json.RawMessage, exception string) {
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
			return nil, envelope.Exception.Message
		}
		return envelope.Value, ""
	}
	d.t.Fatalf("%s: no answer", method)
	return nil, ""
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
	server, url, directorTLS := startNATS(t, ca)
	t.Cleanup(server.Shutdown)
	a := dummyAgent{dummyMachine{t: t, done: make(chan int, 1), log: &lockedLog{}}, t.TempDir(), url, ca}
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
		"agent_id": "dummy-1", "vm": map[string]any{"name": "vm-dummy"},
		"disks": map[string]any{"persistent": map[string]any{}},
		"networks": map[string]any{"a": map[string]any{"type": "manual", "ip": "127.0.0.9", "netmask": "255.0.0.0"},
			"b": map[string]any{"type": "dynamic", "default": []string{"gateway"}}},
		"blobstore": map[string]any{"provider": "local",
			"options": map[string]any{"blobstore_path": filepath.Join(a.base, "blobstore")}},
		"env": map[string]any{"bosh": map[string]any{"password": "$6$hash", "mbus": map[string]any{"urls": []string{a.url},
			"cert": map[string]any{"ca": string(a.ca.PEM), "certificate": string(pair.Certificate),
				"private_key": string(pair.PrivateKey)}}}},
	})
	config := a.write("agent.json", map[string]any{"Infrastructure": map[string]any{"Settings": map[string]any{"UseRegistry": true,
		"Sources": []any{map[string]any{"Type": "File", "SettingsPath": source}}}}})
	ctx, cancel := context.WithCancel(a.t.Context())
	go func() {
		a.done <- runAgent(ctx, []string{"-P", "dummy", "-M", "dummy-nats", "-b", a.base, "-C", config, "-r", "/x",
			"-no-alerts"}, io.Discard, a.log)
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
		pair, err := d.ca.Issue(testca.Request{CommonName: testca.AgentName("dummy-1"),
			NotAfter: time.Now().Add(time.Duration(days) * 24 * time.Hour)})
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
	for got, want := range map[string]string{first: `"severity":4,"title":"bus client certificate expires on `,
		second: `"severity":3,"title":"bus client certificate expires on `} {
		if !strings.Contains(got, want) {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	info, err := os.Stat(filepath.Join(d.base, "bosh", "cambium_expiry.json"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the announced alerts are not recorded: %v, %v", info, err)
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
	var state struct {
		AgentID  string `json:"agent_id"`
		JobState string `json:"job_state"`
		VM       struct{ Name string }
	}
	if err := json.Unmarshal(d.ask("get_state", "full"), &state); err != nil || state.AgentID != "dummy-1" ||
		state.VM.Name != "vm-dummy" || state.JobState != "unknown" {
		t.Errorf("get_state: %+v, %v", state, err)
	}
	d.ask("add_persistent_disk", "disk-1", "attached")
	d.ask("mount_disk", "disk-1")
	if got := d.ask("list_disk"); string(got) != `["disk-1"]` {
		t.Errorf("list_disk: %s", got)
	}
	d.ask("apply", map[string]any{"deployment": "d", "name": "n", "id": "i", "index": 0,
		"networks": map[string]any{"a": map[string]any{"type": "manual"}}})
	if got, err := os.ReadFile(filepath.Join(base, "instance", "deployment")); err != nil || string(got) != "d" {
		t.Errorf("instance/deployment: %q, %v", got, err)
	}
	if got := d.ask("start"); string(got) != `"started"` {
		t.Errorf("start: %s", got)
	}
	if mounts, err := os.ReadFile(filepath.Join(base, "bosh", "mounts.json")); err != nil ||
		!strings.Contains(string(mounts), "disk-1") {
		t.Errorf("mounts.json: %s, %v", mounts, err)
	}
}

// tell sends a message of the Director's suite: its status is beside the arguments, not among them.
func (d dummyMachine) tell(method, status string) (answer string, answered bool) {
	d.t.Helper()
	inbox, err := d.conn.SubscribeSync("integration.tests")
	if err != nil {
		d.t.Fatal(err)
	}
	defer func() { _ = inbox.Unsubscribe() }()
	body, _ := json.Marshal(map[string]any{"method": method, "status": status, "reply_to": "integration.tests"})
	if err := d.conn.Publish("agent.dummy-1", body); err != nil {
		d.t.Fatal(err)
	}
	// The answer to a ping comes after that to what was asked before it, if there is one.
	d.ask("ping")
	message, err := inbox.NextMsg(100 * time.Millisecond)
	if err != nil {
		return "", false
	}
	return string(message.Data), true
}

// TestDummyAgentIsWhatTheDirectorsSuiteRunsOn goes through what the specs of a Director's own integration suite do
// with an agent and read of it.
func TestDummyAgentIsWhatTheDirectorsSuiteRunsOn(t *testing.T) {
	d := newDummyAgent(t)
	alerts, err := d.conn.SubscribeSync("hm.agent.alert.dummy-1")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := d.ca.Client(testca.AgentName("dummy-1"))
	if err != nil {
		t.Fatal(err)
	}
	d.write("bosh/dummy-default-network-settings.json", map[string]any{"ip": "192.168.1.7", "netmask": "255.255.255.0"})
	stop := d.start(pair)
	file := func(name string) string {
		t.Helper()
		data, err := os.ReadFile(filepath.Join(d.base, name))
		if err != nil {
			t.Error(err)
		}
		return string(data)
	}
	state := func() (s struct {
		JobState  string `json:"job_state"`
		Processes []struct{ Name, State string }
		Vitals    struct{ Mem struct{ KB string } }
		Networks  map[string]struct{ IP string }
	}) {
		t.Helper()
		if err := json.Unmarshal(d.ask("get_state", "full"), &s); err != nil {
			t.Fatal(err)
		}
		return s
	}

	if got := state(); got.JobState != "unknown" || len(got.Processes) != 3 || got.Processes[0].Name != "process-1" ||
		got.Processes[2].State != "failing" || got.Vitals.Mem.KB == "" || got.Vitals.Mem.KB == "0" {
		t.Errorf("before the first apply: %+v", got)
	}
	if got, err := os.Readlink(filepath.Join(d.base, "sys")); err != nil || got != filepath.Join(d.base, "data", "sys") {
		t.Errorf("sys leads to %q, %v", got, err)
	}
	if got := file("bosh/vcap/password") + file("bosh/root/password"); got != "$6$hash$6$hash" {
		t.Errorf("passwords: %q", got)
	}
	d.ask("apply", map[string]any{"deployment": "d", "name": "n", "id": "i", "index": 0,
		"networks": map[string]any{"b": map[string]any{"type": "dynamic"}}})
	if got := state(); got.JobState != "running" || got.Networks["b"].IP != "192.168.1.7" {
		t.Errorf("after apply: %+v", got)
	}
	if got := string(d.ask("ssh", "setup", map[string]any{"user": "bosh_x",
		"public_key": "ssh-rsa A"})); !strings.Contains(got, `"ip":"192.168.1.7"`) ||
		!strings.Contains(got, `"host_public_key":"dummy-public-key"`) {
		t.Errorf("ssh: %s", got)
	}

	// A job fails, and a start.
	if got, _ := d.tell("set_dummy_status", "failing"); got != `{"value":"ok"}` {
		t.Errorf("set_dummy_status: %s", got)
	}
	if got := state().JobState; got != "failing" {
		t.Errorf("job_state is %s", got)
	}
	if m, err := alerts.NextMsg(10 * time.Second); err != nil ||
		!strings.Contains(string(m.Data), `"id":"fake-monit-alert","severity":2,"title":"fake-monit-service (127.0.0.9, 192.168.1.7) - failing - start","summary":"fake-monit-description","created_at":1306076861`) {
		t.Errorf("alert: %+v, %v", m, err)
	}
	if got, answered := d.tell("set_task_fail", "fail_task"); answered {
		t.Errorf("set_task_fail was answered: %s", got)
	}
	if got := d.fails("start"); !strings.Contains(got, "fake-task-fail-error") {
		t.Errorf("start: %s", got)
	}
	d.tell("set_dummy_status", "running")

	// Disks fail as on a machine, and the one on the store comes back with the agent.
	for method, argument := range map[string]any{"unmount_disk": "nowhere", "mount_disk": "nowhere",
		"update_settings": map[string]any{"disk_associations": []any{map[string]any{"name": "db", "cid": "nowhere"}}}} {
		if got := d.fails(method, argument); !strings.Contains(got, "nowhere") {
			t.Errorf("%s: %s", method, got)
		}
	}
	d.ask("add_persistent_disk", "disk-1", "attached")
	d.ask("mount_disk", "disk-1")
	d.ask("delete_arp_entries", map[string]any{"ips": []string{"192.168.1.3"}})
	d.ask("shutdown")
	stop()
	if err := os.Remove(filepath.Join(d.base, "bosh", "mounts.json")); err != nil {
		t.Fatal(err)
	}
	defer d.start(pair)()
	if got := d.ask("list_disk"); string(got) != `["disk-1"]` {
		t.Errorf("list_disk after a restart: %s", got)
	}
	if got := file("bosh/mounts.json"); !strings.Contains(got, `"DiskCid":"disk-1"`) ||
		!strings.Contains(got, filepath.Join(d.base, "store")) {
		t.Errorf("mounts.json after a restart: %s", got)
	}
	for _, want := range []string{"Running sync action delete_arp_entries",
		`"method":"delete_arp_entries","arguments":[{"ips":["192.168.1.3"]`,
		"Running sync action shutdown", `"method":"shutdown","arguments":[]`} {
		if !strings.Contains(d.log.String(), want) {
			t.Errorf("the log lacks %q", want)
		}
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
	server, err := natsserver.NewServer(&natsserver.Options{Host: "127.0.0.1", Port: natsserver.RANDOM_PORT, NoLog: true,
		NoSigs: true, TLSTimeout: 10,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{serverCert}, ClientCAs: ca.Pool(),
			ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12}})
	if err != nil {
		t.Fatal(err)
	}
	go server.Start()
	if !server.ReadyForConnections(10 * time.Second) {
		t.Fatal("NATS server did not start")
	}
	return server, "nats://" + server.Addr().String(),
		&tls.Config{Certificates: []tls.Certificate{directorCert}, RootCAs: ca.Pool(), MinVersion: tls.VersionTLS12}
}
