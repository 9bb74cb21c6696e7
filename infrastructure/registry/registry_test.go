package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"cambium/infrastructure/internal/source"
	"cambium/internal/secret"
	"cambium/internal/skiptest"
)

func TestRead(t *testing.T) {
	full := `{"server":{"name":"vm-7c1f"},` +
		`"registry":{"endpoint":"http://reg:canary@10.0.0.6:25777","user":"u","password":"canary"},` +
		`"dns":{"nameserver":["10.0.0.2"]},"networks":{"private":{"type":"manual"}}}`
	p, err := ParsePointer([]byte(full))
	if err != nil || p == nil {
		t.Fatalf("pointer %v, error %v", p, err)
	}
	if p.Endpoint.Reveal() != "http://reg:canary@10.0.0.6:25777" || p.User != "u" || p.Password.Reveal() != "canary" ||
		p.ServerName != "vm-7c1f" ||
		fmt.Sprint(p.NameServers) != "[10.0.0.2]" || string(p.Networks) != `{"private":{"type":"manual"}}` {
		t.Errorf("pointer %+v", p)
	}
	if text := fmt.Sprintf("%+v %#v", *p, *p); strings.Contains(text, "canary") {
		t.Errorf("the pointer prints its credentials: %s", text)
	}
	for _, none := range []string{"null", "{}"} {
		if p, err := ParsePointer([]byte(`{"registry":{"endpoint":"/f"},"networks":` + none + `}`)); err != nil ||
			p == nil || p.Networks != nil {
			t.Errorf("networks %s: %+v, %v; want none", none, p, err)
		}
	}
	for document, want := range map[string]string{
		`{"registry":{"endpoint":"/f"},"networks":[1]}`:                          "error",
		`{"agent_id":"a","registry":{"endpoint":"http://x"}}`:                    "none", // settings already
		`{"Agent_ID":"a","registry":{"endpoint":"http://x"}}`:                    "none", // keys without case
		`{"agent_id":"","registry":{"endpoint":"http://x"}}`:                     "pointer",
		`{"agent_id":null,"registry":{"endpoint":"http://x"}}`:                   "pointer",
		`{"agent_id":7,"registry":{"endpoint":"http://x"}}`:                      "none",
		`{"agent_id":"a","registry":7}`:                                          "none",
		`{}`:                                                                     "none",
		`{"registry":null}`:                                                      "none",
		`{"registry":{"endpoint":""}}`:                                           "none",
		`{"registry":{"endpoint":"/f"},"server":null,"dns":{"nameserver":null}}`: "pointer",
		`{"registry":7}`:                                                         "error",
		`{"registry":{"endpoint":7}}`:                                            "error",
		`{"registry":{"endpoint":"/f"},"dns":{"nameserver":"10.0.0.2"}}`:         "error",
		`{"registry":{"endpoint":"/f"},"server":{"name":7}}`:                     "error",
		`[]`: "error",
	} {
		p, err := ParsePointer([]byte(document))
		got := "none"
		if err != nil {
			got = "error"
		} else if p != nil {
			got = "pointer"
		}
		if got != want {
			t.Errorf("%s: %s (%v), want %s", document, got, err, want)
		}
	}
}

func TestEnvelope(t *testing.T) {
	for body, want := range map[string]string{
		`{"status":"ok","settings":"{\"agent_id\":\"a-1\"}"}`: `{"agent_id":"a-1"}`,
		`{"settings":{"agent_id":"a-2"}}`:                     `{"agent_id":"a-2"}`,
	} {
		if got, err := envelope([]byte(body)); err != nil || string(got) != want {
			t.Errorf("%s: %s, %v; want %s", body, got, err, want)
		}
	}
	for body, want := range map[string]string{
		"":                          "envelope: empty",
		"<html>canary":              "envelope: neither",
		`{"status":"not_found"}`:    "no settings in it",
		`{"settings":null}`:         "no settings in it",
		`{"settings":""}`:           "settings in the envelope: empty",
		`{"settings":"{canary"}`:    "settings in the envelope: not valid JSON at line 1, column 2",
		`{"settings":[1]}`:          "settings in the envelope",
		`{"settings":"\"canary\""}`: "settings in the envelope",
	} {
		if _, err := envelope([]byte(body)); err == nil || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: error %v, want %q and no content", body, err, want)
		}
	}
}

// server serves a registry with one instance and preset responses.
func server(t *testing.T) (string, *[]string) {
	var asked []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		asked = append(asked, fmt.Sprintf("%s %s %s:%s", r.Method, r.URL.EscapedPath(), user, password))
		if !strings.HasSuffix(r.URL.Path, "/instances/vm 1/settings") &&
			!strings.HasSuffix(r.URL.Path, "/instances/i-1/settings") {
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"status":"not_found"}`)
			return
		}
		json.NewEncoder(w).Encode(map[string]string{"status": "ok", "settings": `{"agent_id":"from-registry"}`})
	}))
	t.Cleanup(s.Close)
	return s.URL, &asked
}

func instance(id string) func(context.Context) (string, error) {
	return func(context.Context) (string, error) { return id, nil }
}

func TestHTTPRegistry(t *testing.T) {
	base, asked := server(t)
	host := strings.TrimPrefix(base, "http://")
	at := func(endpoint string) Pointer { return Pointer{Endpoint: secret.NewURL(endpoint)} }
	named := Pointer{Endpoint: secret.NewURL(base), ServerName: "vm 1"}
	cases := []struct {
		name    string
		client  Client
		pointer Pointer
		id      string
		want    string // request
		err     string
		kind    source.Kind
	}{
		{name: "by server name", client: Client{UseServerName: true}, pointer: named, id: "i-1",
			want: "GET /instances/vm%201/settings :"},
		{name: "by instance id", pointer: named, id: "i-1", want: "GET /instances/i-1/settings :"},
		{name: "no instance id to have", pointer: named, want: "GET /instances/vm%201/settings :"},
		{name: "user information", pointer: at("http://reg:p%40ss@" + host + "/"), id: "i-1",
			want: "GET /instances/i-1/settings reg:p@ss"},
		{name: "separate keys", pointer: Pointer{Endpoint: secret.NewURL(base), User: "reg", Password: secret.New("pw")},
			id: "i-1", want: "GET /instances/i-1/settings reg:pw"},
		{name: "below a path", pointer: at(base + "/api/"), id: "i-1", want: "GET /api/instances/i-1/settings :"},
		{name: "not there yet", pointer: at(base), id: "i-2", err: "404 Not Found", kind: source.NotYetThere},
		{name: "a key is one part of the path", pointer: at(base), id: "../../admin",
			want: "GET /instances/..%2F..%2Fadmin/settings :", err: "404", kind: source.NotYetThere},
		{name: "no server name", client: Client{UseServerName: true}, pointer: at(base), id: "i-1",
			err: "server.name is missing", kind: source.NotYetThere},
		{name: "no key at all", pointer: at(base), err: "no instance id", kind: source.NotYetThere},
		{name: "bad endpoint", pointer: at("http://u:canary@[x"), id: "i-1",
			err: "not a valid URL", kind: source.NotYetThere},
		{name: "bad scheme", pointer: at("httpx://u:canary@h"), id: "i-1",
			err: "not an http", kind: source.NotYetThere},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			*asked = nil
			raw, from, err := c.client.Settings(t.Context(), c.pointer, instance(c.id))
			if c.err == "" && (err != nil || string(raw) != `{"agent_id":"from-registry"}` ||
				!strings.HasPrefix(from, "registry http://")) {
				t.Errorf("%s from %q, %v", raw, from, err)
			}
			if c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err) || source.KindOf(err) != c.kind) {
				t.Errorf("error %v of kind %d, want %q of kind %d", err, source.KindOf(err), c.err, c.kind)
			}
			if err != nil && strings.Contains(err.Error(), "canary") || strings.Contains(from, "p%40ss") {
				t.Errorf("credentials in %q, %v", from, err)
			}
			if c.want != "" && fmt.Sprint(*asked) != "["+c.want+"]" {
				t.Errorf("asked %q, want %q", *asked, c.want)
			}
		})
	}
}

func TestFileRegistry(t *testing.T) {
	path := filepath.Join(t.TempDir(), "settings.json")
	follow := func(endpoint string) ([]byte, string, error) {
		return Client{NetworkUp: func(context.Context) bool { return false }}.Settings(t.Context(),
			Pointer{Endpoint: secret.NewURL(endpoint)}, nil)
	}
	if _, _, err := follow(path); source.KindOf(err) != source.NotYetThere {
		t.Errorf("missing file: error %v, want one that is asked again", err)
	}
	if err := os.WriteFile(path, []byte(`{"agent_id":"f"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, endpoint := range []string{path, "file://" + path} {
		if raw, from, err := follow(endpoint); err != nil || string(raw) != `{"agent_id":"f"}` ||
			from != "registry file "+path {
			t.Errorf("%s from %q, %v", raw, from, err)
		}
	}
}

func TestNetworksAreHandedOn(t *testing.T) {
	c := Client{NetworkUp: func(context.Context) bool { return false }}
	_, _, err := c.Settings(t.Context(), Pointer{Endpoint: secret.NewURL("http://10.0.0.6:25777"),
		Networks: json.RawMessage(`{"a":{"type":"manual"}}`)}, instance("i-1"))
	var need *source.NeedNetwork
	if !errors.As(err, &need) || string(need.Networks) != `{"a":{"type":"manual"}}` {
		t.Errorf("error %v, want the need of these networks", err)
	}
}

// nameServer answers DNS queries over UDP and TCP from a table. Other names do not exist, and "silent." gets no reply.
func nameServer(t *testing.T) string {
	t.Helper()
	var udp net.PacketConn
	var tcp net.Listener
	for try := 0; ; try++ {
		var err error
		if udp, err = net.ListenPacket("udp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		if tcp, err = net.Listen("tcp", udp.LocalAddr().String()); err == nil {
			break
		}
		udp.Close()
		if try == 20 {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { udp.Close(); tcp.Close() })
	go func() {
		buffer := make([]byte, 1500)
		for {
			n, from, err := udp.ReadFrom(buffer)
			if err != nil {
				return
			}
			if reply := answer(buffer[:n], true); reply != nil {
				_, _ = udp.WriteTo(reply, from)
			}
		}
	}()
	go func() {
		for {
			conn, err := tcp.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				head := make([]byte, 2)
				if _, err := conn.Read(head); err != nil {
					return
				}
				question := make([]byte, int(head[0])<<8|int(head[1]))
				if _, err := conn.Read(question); err != nil {
					return
				}
				reply := answer(question, false)
				_, _ = conn.Write(append([]byte{byte(len(reply) >> 8), byte(len(reply))}, reply...))
			}()
		}
	}()
	return udp.LocalAddr().String()
}

func answer(question []byte, udp bool) []byte {
	var p dnsmessage.Parser
	h, err := p.Start(question)
	if err != nil {
		return nil
	}
	q, err := p.Question()
	if err != nil {
		return nil
	}
	name := strings.ToLower(q.Name.String())
	reply := dnsmessage.Header{ID: h.ID, Response: true, RecursionAvailable: true, Authoritative: true}
	if name == "silent.example.test." {
		return nil
	}
	if name == "big.example.test." && udp {
		reply.Truncated = true
	}
	switch name {
	case "missing.example.test.":
		reply.RCode = dnsmessage.RCodeNameError
	case "broken.example.test.":
		reply.RCode = dnsmessage.RCodeServerFailure
	case "garbage.example.test.":
		return append(question[:2:2], "garbage"...)
	case "foreign.example.test.":
		reply.ID++ // an answer to another query
	}
	b := dnsmessage.NewBuilder(nil, reply)
	_ = b.StartQuestions()
	_ = b.Question(q)
	_ = b.StartAnswers()
	header := func(n string) dnsmessage.ResourceHeader {
		return dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(n), Class: dnsmessage.ClassINET, TTL: 1}
	}
	switch name {
	case "alias.example.test.":
		_ = b.CNAMEResource(header(name), dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName("registry.example.test.")})
		if q.Type == dnsmessage.TypeA {
			_ = b.AResource(header("registry.example.test."), dnsmessage.AResource{A: [4]byte{127, 0, 0, 1}})
		}
	case "six.example.test.":
		if q.Type == dnsmessage.TypeAAAA {
			_ = b.AAAAResource(header(name), dnsmessage.AAAAResource{AAAA: [16]byte{15: 1}})
		}
	case "registry.example.test.", "big.example.test.":
		if q.Type == dnsmessage.TypeA && !reply.Truncated {
			_ = b.AResource(header(name), dnsmessage.AResource{A: [4]byte{127, 0, 0, 1}})
		}
	}
	out, _ := b.Finish()
	return out
}

func TestEndpointIsResolvedByTheMetadatasNameServers(t *testing.T) {
	base, asked := server(t)
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(base, "http://"))
	dns := nameServer(t)
	for name, servers := range map[string][]string{
		"registry.example.test": {dns},
		"alias.example.test":    {dns},              // a CNAME comes first in the answer
		"big.example.test":      {dns},              // truncated over UDP, complete over TCP
		"localhost":             {"192.0.2.1"},      // no server is asked
		"127.0.0.1":             {"192.0.2.1"},      // no server is asked
		"Registry.Example.Test": {"not-an-ip", dns}, // the first server is not a server
	} {
		t.Run(name, func(t *testing.T) {
			*asked = nil
			raw, _, err := Client{}.Settings(t.Context(),
				Pointer{Endpoint: secret.NewURL("http://u:p@" + name + ":" + port), NameServers: servers}, instance("i-1"))
			if err != nil || string(raw) != `{"agent_id":"from-registry"}` || len(*asked) != 1 ||
				!strings.HasSuffix((*asked)[0], " u:p") {
				t.Errorf("%s, %v, asked %q", raw, err, *asked)
			}
		})
	}
	t.Run("a name that does not exist", func(t *testing.T) {
		_, _, err := Client{}.Settings(t.Context(), Pointer{Endpoint: secret.NewURL("http://missing.example.test:" + port),
			NameServers: []string{dns}}, instance("i-1"))
		if err == nil || !strings.Contains(err.Error(), "look up missing.example.test at "+dns) ||
			source.KindOf(err) != source.Transport {
			t.Errorf("error %v, want the name and the server that was asked", err)
		}
	})
}

func TestIPv6Endpoints(t *testing.T) {
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		skiptest.Skip(t, fmt.Errorf("no IPv6 loopback: %w", err))
	}
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter,
		r *http.Request) {
		fmt.Fprint(w, `{"settings":"{\"agent_id\":\"six\"}"}`)
	})}}
	s.Start()
	defer s.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	for _, endpoint := range []string{"http://u:p@[::1]:" + port, "http://six.example.test:" + port} {
		raw, _, err := Client{}.Settings(t.Context(),
			Pointer{Endpoint: secret.NewURL(endpoint), NameServers: []string{nameServer(t)}}, instance("i-1"))
		if err != nil || string(raw) != `{"agent_id":"six"}` {
			t.Errorf("%s: %s, %v", endpoint, raw, err)
		}
	}
}

func TestSilentNameServerIsPassedOver(t *testing.T) {
	dns := nameServer(t)
	quiet, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer quiet.Close()
	start := time.Now()
	found, err := resolver{servers: []string{quiet.LocalAddr().String(), dns},
		timeout: 3 * time.Second}.lookup(t.Context(), "registry.example.test")
	if err != nil || len(found) != 1 || found[0].String() != "127.0.0.1" {
		t.Errorf("%v, %v; want the second server's answer", found, err)
	}
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("took %v", took)
	}
}

func TestNameServerThatMisbehaves(t *testing.T) {
	dns := nameServer(t)
	for _, name := range []string{"missing", "broken", "garbage", "foreign", "silent"} {
		start := time.Now()
		found, err := resolver{servers: []string{dns}, timeout: 200 * time.Millisecond}.lookup(t.Context(),
			name+".example.test")
		if err == nil || !strings.Contains(err.Error(), "look up "+name+".example.test at "+dns) {
			t.Errorf("%s: %v, %v; want an error with name and server", name, found, err)
		}
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("%s: took %v", name, took)
		}
	}
}

func TestServerAddress(t *testing.T) {
	for in, want := range map[string]string{"10.0.0.2": "10.0.0.2:53", " 10.0.0.2 ": "10.0.0.2:53",
		"fd00::2": "[fd00::2]:53", "[fd00::2]": "[fd00::2]:53", "10.0.0.2:5353": "10.0.0.2:5353",
		"[fd00::2]:5353": "[fd00::2]:5353", "name": "", "": ""} {
		if got, err := serverAddress(in); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v; want %q", in, got, err, want)
		}
	}
}

func FuzzEnvelope(f *testing.F) {
	f.Add([]byte(`{"status":"ok","settings":"{\"agent_id\":\"a\"}"}`))
	f.Add([]byte(`{"settings":{"agent_id":"a"}}`))
	f.Add([]byte(`{"settings":"eyJhIjoxfQ=="}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		document, err := envelope(body)
		if err == nil && (!json.Valid(document) || document[0] != '{') {
			t.Errorf("accepted %q", document)
		}
	})
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"server":{"name":"vm"},"registry":{"endpoint":"http://a:b@c","user":"u"},` +
		`"dns":{"nameserver":["10.0.0.2"]},"networks":{}}`))
	f.Add([]byte(`{"agent_id":"a"}`))
	f.Fuzz(func(t *testing.T, document []byte) {
		p, err := ParsePointer(document)
		if err == nil && p != nil && p.Endpoint.Empty() {
			t.Error("a pointer without an endpoint")
		}
		if p != nil {
			if made, err := address(p.Endpoint.Reveal(), "i-1"); err == nil &&
				!strings.HasSuffix(made, "/instances/i-1/settings") {
				t.Errorf("address %q", made)
			}
		}
	})
}
