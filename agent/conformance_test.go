package agent

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"cambium/internal/testnats"
)

var update = flag.Bool("update", false, "rewrite golden files")

// conformanceCase is one rule of the contract, as a request and what comes of it.
type conformanceCase struct {
	Rule      string
	Method    string
	Protocol  *int
	Arguments []json.RawMessage
	Raw       string // a whole envelope instead
	Task      bool   // the reply is that of the task's end
	Handle    bool   // the reply is a task handle
	Reply     json.RawMessage
	Message   *string // of the exception, exactly
	Contains  string  // part of that message
	Matches   string  // pattern of that message
	File      string  // golden reply
	Did       *[]string
}

const (
	dns7 = `{"version":7,"records":[["10.0.0.5","a.bosh"]],"record_keys":["id"],"unknown":{"kept":true}}`
	dns8 = `{"version":8,"records":[]}`
	dns9 = `{"version":18446744073709551615,"records":[]}`
)

// TestConformance holds the agent to the contract, over NATS and over HTTPS.
func TestConformance(t *testing.T) {
	var cases []conformanceCase
	check(t, json.Unmarshal(must[[]byte](t)(os.ReadFile("testdata/conformance.json")), &cases))
	for _, transport := range []string{"nats", "https"} {
		t.Run(transport, func(t *testing.T) {
			w := newWorld(t, nil).ready()
			w.machine.blobs = map[string]string{"dns-7": dns7, "dns-8": dns8, "https://signed/9": dns9}
			write(t, filepath.Join(w.dirs.Tmp(), "logs.tgz"), "logs")
			for _, c := range cases {
				t.Run(c.Rule+" "+c.Method, func(t *testing.T) { w.conforms(t, transport, c) })
			}
			if got := string(must[[]byte](t)(os.ReadFile(w.dirs.DNSRecords()))); got != dns9 {
				t.Errorf("records are %s, want those that came", got)
			}
			if _, err := os.Stat(filepath.Join(w.dirs.Tmp(), "logs.tgz")); !os.IsNotExist(err) {
				t.Errorf("the removed file: %v", err)
			}
		})
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

func (w *world) conforms(t *testing.T, transport string, c conformanceCase) {
	envelope := c.Raw
	if envelope == "" {
		request := map[string]any{"method": c.Method, "arguments": c.Arguments, "reply_to": "REPLY", "protocol": 3}
		if c.Protocol != nil {
			request["protocol"] = *c.Protocol
		}
		if c.Arguments == nil {
			request["arguments"] = []any{}
		}
		envelope = string(must[[]byte](t)(json.Marshal(request)))
	}
	envelope = strings.NewReplacer("TMP", w.dirs.Tmp(), "DIGEST7", sha256Digest(dns7), "DIGEST9", sha256Digest(dns9)).Replace(envelope)
	w.machine.done()
	got := w.ask(t, transport, envelope)
	if c.Task || c.Handle {
		got = w.follow(t, transport, c, got)
	}
	w.compare(t, c, got)
	if c.Did != nil {
		if did := w.machine.done(); len(did)+len(*c.Did) > 0 && !reflect.DeepEqual(did, *c.Did) {
			t.Errorf("the machine did %q, want %q", did, *c.Did)
		}
	}
}

var handle = regexp.MustCompile(`^\{"value":\{"agent_task_id":"([0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12})","state":"running"\}\}$`)

// follow polls a task to its end, and once more: the answer stays.
func (w *world) follow(t *testing.T, transport string, c conformanceCase, reply string) string {
	t.Helper()
	found := handle.FindStringSubmatch(reply)
	if found == nil {
		t.Fatalf("got %s, want a task handle", reply)
	}
	poll := fmt.Sprintf(`{"method":"get_task","arguments":[%q],"reply_to":"REPLY"}`, found[1])
	end := ""
	for deadline := time.Now().Add(20 * time.Second); ; {
		if end = w.ask(t, transport, poll); end != reply {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the task does not end")
		}
	}
	for range 11 {
		if again := w.ask(t, transport, poll); again != end {
			t.Fatalf("asked again: got %s, want %s", again, end)
		}
	}
	if c.Handle {
		return reply
	}
	return end
}

func (w *world) compare(t *testing.T, c conformanceCase, got string) {
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
		want := strings.ReplaceAll(string(c.Reply), "TMP", w.dirs.Tmp())
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
	case c.Matches != "":
		if !regexp.MustCompile(c.Matches).MatchString(message) {
			t.Errorf("got %s, want an exception like %q", got, c.Matches)
		}
	default:
		if c.Contains == "" || !strings.Contains(message, c.Contains) {
			t.Errorf("got %s, want an exception with %q", got, c.Contains)
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
