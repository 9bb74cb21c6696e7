package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"

	"cambium/internal/eventually"
	"cambium/internal/testca"
	"cambium/internal/testnats"
)

// pem writes a client's files and returns the flags that name them.
func pem(t *testing.T, d *testnats.Deployment, commonName string) []string {
	t.Helper()
	dir := t.TempDir()
	pair := d.Client(commonName)
	flags := []string{"--url", d.URL().Reveal()}
	for name, data := range map[string][]byte{"ca": d.CA.PEM, "cert": pair.Certificate, "key": pair.PrivateKey} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		flags = append(flags, "--"+name, path)
	}
	return flags
}

// agent answers as one does: a task that takes three questions, a failure, and a ping.
func agent(t *testing.T, nc *nats.Conn, id string) {
	t.Helper()
	asked := 0
	_, err := nc.Subscribe("agent."+id, func(m *nats.Msg) {
		var r struct {
			Method  string
			ReplyTo string `json:"reply_to"`
		}
		if err := json.Unmarshal(m.Data, &r); err != nil {
			t.Error(err)
		}
		reply := `{"value":"pong"}`
		switch r.Method {
		case "mount_disk":
			reply = `{"value":{"agent_task_id":"t-1","state":"running"}}`
		case "get_task":
			if reply = `{"value":{"agent_task_id":"t-1","state":"running"}}`; asked == 2 {
				reply = `{"value":{}}`
			}
			asked++
		case "stop":
			reply = `{"exception":{"message":"Action Failed stop: no"}}`
		case "silent":
			return
		}
		if err := nc.Publish(r.ReplyTo, []byte(reply)); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
}

// TestCallOverNATS asks an agent outside of labs, on a server as a Director configures it.
func TestCallOverNATS(t *testing.T) {
	d := testnats.Start(t, nil, "a-1")
	agent(t, d.Connect(testca.AgentName("a-1")), "a-1")
	as := pem(t, d, testca.DirectorName)
	for _, c := range []struct {
		name   string
		flags  []string
		args   string
		code   int
		stdout string
		stderr string
	}{
		{"ping", as, "--agent-id a-1 ping", 0, "\"pong\"\n", ""},
		{"a task is followed", as, "--agent-id a-1 --json mount_disk disk-1", 0, "{}\n", ""},
		{"or not", as, "--agent-id a-1 --no-follow --json mount_disk disk-1", 0, `"agent_task_id": "t-1"`, ""},
		{"an exception", as, "--agent-id a-1 stop", 1, "", "Action Failed stop: no"},
		{"no such agent", as, "--agent-id nobody --timeout 200ms ping", 1, "", "no answer in time"},
		{"no answer", as, "--agent-id a-1 --timeout 200ms silent", 1, "", "no answer in time"},
		{"a stranger", pem(t, d, "stranger.bosh-internal"), "--agent-id a-1 ping", 1, "", "uthorization"},
	} {
		t.Run(c.name, func(t *testing.T) {
			stdout, stderr, code := runLab(t, append(append([]string{"call"}, c.flags...), strings.Fields(c.args)...)...)
			if code != c.code || !strings.Contains(stdout, c.stdout) || !strings.Contains(stderr, c.stderr) {
				t.Errorf("status %d, output %q, errors %q, want %d, %q, %q", code, stdout, stderr, c.code, c.stdout, c.stderr)
			}
		})
	}
}

// output can be read while a command writes to it.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func TestWatchOverNATS(t *testing.T) {
	d := testnats.Start(t, nil, "a-1")
	nc := d.Connect(testca.AgentName("a-1"))
	ctx, cancel := context.WithCancel(t.Context())
	var stdout, stderr output
	ended := make(chan int)
	go func() {
		ended <- run(ctx, append([]string{"watch"}, pem(t, d, testca.HealthMonitorName)...), &stdout, &stderr)
	}()
	n := 0
	eventually.True(t, "the heartbeat is shown", func() bool {
		n++
		if err := nc.Publish("hm.agent.heartbeat.a-1",
			fmt.Appendf(nil, `{"job":"web-%d","job_state":"running","number_of_processes":2}`, n)); err != nil {
			t.Fatal(err)
		}
		return strings.Contains(stdout.String(), "a-1 heartbeat running\tweb-")
	})
	if err := nc.Publish("hm.agent.alert.a-1",
		[]byte(`{"id":"1","severity":1,"title":"web - does not exist","summary":"gone","created_at":1}`)); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "the alert is shown", func() bool {
		return strings.Contains(stdout.String(), "a-1 alert web - does not exist: gone")
	})
	cancel()
	if code := <-ended; code != 0 || stderr.String() != "" {
		t.Errorf("status %d, errors %q", code, stderr.String())
	}
}
