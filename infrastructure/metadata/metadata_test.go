package metadata

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/infrastructure/internal/fetch"
	"cambium/infrastructure/internal/source"
	"cambium/internal/secret"
)

func logger() (*logrus.Entry, *bytes.Buffer) {
	var out bytes.Buffer
	l := logrus.New()
	l.Out = &out
	l.Level = logrus.DebugLevel
	return logrus.NewEntry(l), &out
}

// imds is a metadata service with tokens.
type imds struct {
	mu       sync.Mutex
	token    string // "" means IMDSv1: token requests are refused
	required bool
	status   int // of token requests
	requests []string
}

func (m *imds) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	token, ttl, extra := r.Header.Get(tokenHeader), r.Header.Get(tokenTTLHeader), r.Header.Get("X-Extra")
	m.requests = append(m.requests, r.Method+" "+r.URL.Path+" token="+token+" ttl="+ttl+" x="+extra)
	switch {
	case r.Method == http.MethodPut && r.URL.Path == "/latest/api/token":
		if m.token == "" {
			w.WriteHeader(m.status)
			return
		}
		fmt.Fprint(w, m.token)
	case m.required && (m.token == "" || r.Header.Get(tokenHeader) != m.token):
		w.WriteHeader(http.StatusUnauthorized)
	case r.URL.Path == "/latest/user-data":
		fmt.Fprint(w, `{"agent_id":"a"}`)
	case r.URL.Path == "/latest/meta-data/public-keys/0/openssh-key":
		fmt.Fprint(w, "ssh-rsa AAAA vcap\n")
	case r.URL.Path == "/latest/meta-data/instance-id":
		fmt.Fprint(w, "i-0123\n")
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

func aws(uri string) Options {
	log, _ := logger()
	return Options{URI: secret.NewURL(uri), SettingsPath: "/latest/user-data",
		InstanceIDPath: "/latest/meta-data/instance-id",
		SSHKeysPath:    "/latest/meta-data/public-keys/0/openssh-key", TokenPath: "/latest/api/token",
		Headers: map[string]secret.String{"X-Extra": secret.New("1")}, Log: log}
}

// Contract S.10.
func TestTokenFlow(t *testing.T) {
	cases := []struct {
		name    string
		service imds
		err     string
		want    []string
		warns   bool
	}{
		{name: "IMDSv2", service: imds{token: "tok", required: true}, want: []string{
			"PUT /latest/api/token token= ttl=300 x=", "GET /latest/user-data token=tok ttl= x=1"}},
		{name: "IMDSv1 without tokens", service: imds{status: 404}, warns: true, want: []string{
			"PUT /latest/api/token token= ttl=300 x=", "GET /latest/user-data token= ttl= x=1"}},
		{name: "tokens fail but are required", service: imds{status: 503, required: true}, warns: true,
			err: "401 Unauthorized", want: []string{
				"PUT /latest/api/token token= ttl=300 x=", "GET /latest/user-data token= ttl= x=1"}},
		{name: "a token that cannot be one", service: imds{token: "a\nb"}, warns: true, want: []string{
			"PUT /latest/api/token token= ttl=300 x=", "GET /latest/user-data token= ttl= x=1"}},
	}
	for i := range cases {
		c := &cases[i]
		t.Run(c.name, func(t *testing.T) {
			server := httptest.NewServer(&c.service)
			defer server.Close()
			o := aws(server.URL)
			log, out := logger()
			o.Log = log
			answer, err := NewHTTP(o).Settings(t.Context())
			if c.err == "" && (err != nil || string(answer.Raw.Reveal()) != `{"agent_id":"a"}`) {
				t.Errorf("error %v", err)
			}
			if c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("error %v, want %q", err, c.err)
			}
			if fmt.Sprint(c.service.requests) != fmt.Sprint(c.want) {
				t.Errorf("requests\n %q\nwant\n %q", c.service.requests, c.want)
			}
			if got := strings.Contains(out.String(), "no metadata token"); got != c.warns {
				t.Errorf("warned: %v, want %v\n%s", got, c.warns, out)
			}
			if strings.Contains(out.String(), "tok\"") {
				t.Errorf("the log shows the token: %s", out)
			}
		})
	}
}

func TestTokenWarningIsGivenOnce(t *testing.T) {
	server := httptest.NewServer(&imds{status: 404})
	defer server.Close()
	o := aws(server.URL)
	log, out := logger()
	o.Log = log
	s := NewHTTP(o)
	for range 5 {
		if _, err := s.Settings(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(out.String(), "no metadata token"); n != 1 {
		t.Errorf("warned %d times, want once", n)
	}
}

func TestSilentTokenServiceCostsLittle(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			<-r.Context().Done()
			return
		}
		fmt.Fprint(w, `{"agent_id":"a"}`)
	}))
	defer server.Close()
	o := aws(server.URL)
	s := NewHTTP(o)
	s.client.Timeouts = &fetch.Timeouts{Dial: 3 * time.Second, TLS: 3 * time.Second, Header: 3 * time.Second,
		Request: 3 * time.Second}
	if _, err := s.Settings(t.Context()); err != nil {
		t.Errorf("error %v, want the settings without a token", err)
	}
}

// Contract S.9.
func TestUserDataShapes(t *testing.T) {
	document := `{"agent_id":"a?>","x":"ÿþ"}`
	std, urlSafe := base64.StdEncoding.EncodeToString([]byte(document)),
		base64.RawURLEncoding.EncodeToString([]byte(document))
	for name, body := range map[string]string{
		"json": document, "standard base64": std, "url-safe": urlSafe, "quoted": `"` + urlSafe + `"`,
		"quoted standard": `"` + std + `"`, "with line end": std + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, body) }))
			defer server.Close()
			answer, err := NewHTTP(Options{URI: secret.NewURL(server.URL), SettingsPath: "/x"}).Settings(t.Context())
			if err != nil || string(answer.Raw.Reveal()) != document {
				t.Errorf("error %v", err)
			}
			if want := "HTTP " + server.URL + "/x"; answer.From != want {
				t.Errorf("from %q, want %q", answer.From, want)
			}
		})
	}
}

func TestKindsOfFailure(t *testing.T) {
	for _, c := range []struct {
		name   string
		status int
		body   string
		kind   source.Kind
		text   string
	}{
		{"not there yet", 404, "", source.NotYetThere, "404 Not Found"},
		{"gone", 410, "", source.NotYetThere, "410 Gone"},
		{"empty", 200, "", source.NotYetThere, "empty answer"},
		{"no content", 204, "", source.NotYetThere, "empty answer"},
		{"bad json", 200, "{\"agent_id\": \"canary\",\n}", source.NotYetThere,
			"not valid JSON at line 1, column 22: trailing comma"},
		{"an error page", 200, "<html>canary</html>", source.NotYetThere, "neither a JSON object nor base64"},
		{"trouble", 500, "canary", source.Transport, "500 Internal Server Error"},
		{"refused", 403, "canary", source.Transport, "403 Forbidden"},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(c.status)
				fmt.Fprint(w, c.body)
			}))
			defer server.Close()
			for _, s := range []*Source{NewHTTP(aws(server.URL)), NewInstanceMetadata(aws(server.URL))} {
				s.o.TokenPath = ""
				_, err := s.Settings(t.Context())
				if err == nil || source.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.text) {
					t.Errorf("%s: error %v of kind %d, want %q of kind %d", s.Name(), err, source.KindOf(err), c.text, c.kind)
				}
				if err != nil && strings.Contains(err.Error(), "canary") {
					t.Errorf("error %v shows content", err)
				}
			}
		})
	}
}

func TestPublicKey(t *testing.T) {
	for _, c := range []struct {
		name     string
		statuses []int
		body     string
		want     string
		fails    bool
		asked    int
	}{
		{"there", []int{200}, "ssh-rsa AAAA\n", "ssh-rsa AAAA\n", false, 1},
		{"404 is final", []int{404}, "<html>", "", false, 1},
		{"403 is not a key", []int{403}, "<html>", "", false, 1},
		{"500 then there", []int{500, 200}, "ssh-rsa AAAA", "ssh-rsa AAAA", false, 2},
		{"500 for good is not a key", []int{500, 500, 500, 500}, "<html>", "", false, keyTries},
		{"not text", []int{200}, "\x00\x01", "", true, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			asked := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(c.statuses[min(asked, len(c.statuses)-1)])
				asked++
				fmt.Fprint(w, c.body)
			}))
			defer server.Close()
			o := aws(server.URL)
			o.TokenPath = ""
			key, err := NewHTTP(o).PublicKey(t.Context())
			if key != c.want || (err != nil) != c.fails || asked != c.asked {
				t.Errorf("key %q, error %v, asked %d times; want %q, %v, %d", key, err, asked, c.want, c.fails, c.asked)
			}
		})
	}
	if key, err := NewHTTP(Options{URI: secret.NewURL("http://192.0.2.1"),
		NetworkUp: func(context.Context) bool { return false }}).PublicKey(t.Context()); key != "" || err != nil {
		t.Errorf("without SSHKeysPath: %q, %v; want nothing, and no request", key, err)
	}
	if key, err := NewInstanceMetadata(aws("http://192.0.2.1")).PublicKey(t.Context()); key != "" || err != nil {
		t.Errorf("InstanceMetadata: %q, %v; want nothing", key, err)
	}
}

func TestNeedsANetwork(t *testing.T) {
	down := func(context.Context) bool { return false }
	o := aws("http://192.0.2.1")
	o.NetworkUp = down
	for _, s := range []*Source{NewHTTP(o), NewInstanceMetadata(o)} {
		_, err := s.Settings(t.Context())
		if _, needs := errors.AsType[*source.NeedNetwork](err); !needs {
			t.Errorf("%s: error %v, want the need of a network", s.Name(), err)
		}
	}
	server := httptest.NewServer(&imds{status: 404})
	defer server.Close()
	o = aws(server.URL)
	o.NetworkUp = down
	if _, err := NewHTTP(o).Settings(t.Context()); err != nil {
		t.Errorf("a service on this machine: error %v, want none without a network", err)
	}
}

func TestInstanceID(t *testing.T) {
	server := httptest.NewServer(&imds{token: "t"})
	defer server.Close()
	if id, err := NewHTTP(aws(server.URL)).InstanceID(t.Context()); id != "i-0123" || err != nil {
		t.Errorf("%q, %v; want i-0123", id, err)
	}
}

func TestUnusableOptions(t *testing.T) {
	for _, s := range []*Source{NewHTTP(Options{}), NewInstanceMetadata(Options{URI: secret.NewURL("http://192.0.2.1")}),
		NewHTTP(Options{URI: secret.NewURL("gopher://x")})} {
		if _, err := s.Settings(t.Context()); source.KindOf(err) != source.Definite {
			t.Errorf("%q: error %v, want a final one", s.Name(), err)
		}
	}
}

func TestNameShowsNoCredentials(t *testing.T) {
	if got := NewHTTP(Options{URI: secret.NewURL("http://u:canary@h"),
		SettingsPath: "/x?k=canary"}).Name(); strings.Contains(got, "canary") {
		t.Errorf("name %q", got)
	}
}
