package httpsbus

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/internal/atomicfile"
	"cambium/internal/eventually"
	"cambium/internal/secret"
	"cambium/internal/testca"
	"cambium/mbus"
)

func quiet() *logrus.Entry {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return logrus.NewEntry(l)
}

// dir is a directory of blobs.
type dir string

func (d dir) path(id string) (string, error) {
	if id == ".." || strings.ContainsAny(id, "/\x00") {
		return "", errors.New("not a valid blob id")
	}
	return filepath.Join(string(d), id), nil
}

func (d dir) Open(id string) (*os.File, error) {
	path, err := d.path(id)
	if err != nil {
		return nil, err
	}
	return os.Open(path)
}

func (d dir) Write(id string, content io.Reader) error {
	path, err := d.path(id)
	if err != nil {
		return err
	}
	data, err := io.ReadAll(content)
	if err != nil {
		return err
	}
	return atomicfile.Write(path, data, 0o640)
}

type handler func(ctx context.Context, r mbus.Request, reply func(mbus.Reply))

func (h handler) Handle(ctx context.Context, r mbus.Request, reply func(mbus.Reply)) {
	h(ctx, r, reply)
}

type audit struct {
	mu    sync.Mutex
	lines []string
}

func (a *audit) Record(e mbus.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lines = append(a.lines, e.String())
}

type served struct {
	*Bus
	base  string
	blobs dir
	audit *audit
	http  *http.Client
}

func start(t *testing.T, h handler, change func(*Options)) *served {
	t.Helper()
	if h == nil {
		h = func(_ context.Context, r mbus.Request, reply func(mbus.Reply)) {
			if r.Method == "ping" {
				reply(mbus.Value("pong"))
				return
			}
			reply(mbus.Exception("unknown message " + r.Method))
		}
	}
	s := &served{blobs: dir(t.TempDir()), audit: &audit{}}
	o := Options{URL: secret.NewURL("https://mbus:s3cret@127.0.0.1:0"), KeyFile: filepath.Join(t.TempDir(), "https.pem"),
		Handler: h, Blobs: s.blobs, Audit: s.audit, Log: quiet()}
	if change != nil {
		change(&o)
	}
	b, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Bus = b
	listening := make(chan struct{})
	b.options.OnListen = func(string) { close(listening) }
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(20 * time.Second):
			t.Error("Run does not end")
		}
	})
	<-listening
	s.base = "https://" + b.Address().String()
	s.http = &http.Client{Timeout: 30 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	t.Cleanup(s.http.CloseIdleConnections)
	return s
}

func (s *served) do(t *testing.T, method, path, password, body string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequest(method, s.base+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if password != "" {
		r.SetBasicAuth("mbus", password)
	}
	response, err := s.http.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		t.Fatal(err)
	}
	return response, string(data)
}

// What is answered to what, and what the audit says of it, is in the conformance table.
func TestAuditTellsNoPassword(t *testing.T) {
	s := start(t, nil, nil)
	for password, want := range map[string]int{"s3cret": 200, "": 401, "S3cret": 401} {
		if response, _ := s.do(t, "POST", "/agent", password,
			`{"method":"ping","arguments":[],"reply_to":"cli"}`); response.StatusCode != want {
			t.Errorf("password %q: got %d, want %d", password, response.StatusCode, want)
		}
	}
	s.audit.mu.Lock()
	defer s.audit.mu.Unlock()
	if log := strings.Join(s.audit.lines, "\n"); len(s.audit.lines) != 3 ||
		strings.Contains(strings.ToLower(log), "s3cret") {
		t.Errorf("got %d lines, want three without a password:\n%s", len(s.audit.lines), log)
	}
}

func TestDirectoryIsNoBlob(t *testing.T) {
	s := start(t, nil, nil)
	if err := os.Mkdir(filepath.Join(string(s.blobs), "directory"), 0o700); err != nil {
		t.Fatal(err)
	}
	if response, _ := s.do(t, "GET", "/blobs/a9/directory", "s3cret", ""); response.StatusCode != 404 {
		t.Errorf("got %d, want 404", response.StatusCode)
	}
}

func TestInterruptedUploadLeavesNothing(t *testing.T) {
	s := start(t, nil, nil)
	if err := s.blobs.Write("blob-1", strings.NewReader("old")); err != nil {
		t.Fatal(err)
	}
	conn, err := tls.Dial("tcp", s.Address().String(), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	r, _ := http.NewRequest("PUT", "/blobs/a9/blob-1", nil)
	r.SetBasicAuth("mbus", "s3cret")
	fmt.Fprintf(conn, "PUT /blobs/a9/blob-1 HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\nAuthorization: %s\r\n\r\nhalf",
		r.Header.Get("Authorization"))
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if _, body := s.do(t, "GET", "/blobs/a9/blob-1", "s3cret", ""); body != "old" {
		t.Errorf("got %q, want the old content", body)
	}
	entries, err := os.ReadDir(string(s.blobs))
	if err != nil || len(entries) != 1 {
		t.Errorf("got %v, %v; want one blob", entries, err)
	}
}

// TestBlobMethods: as with cloudfoundry/bosh-agent a blob can be put and fetched, and nothing else.
func TestBlobMethods(t *testing.T) {
	s := start(t, nil, nil)
	if response, _ := s.do(t, "PUT", "/blobs/a9/kept", "s3cret", "content"); response.StatusCode != 201 {
		t.Fatalf("put: %d", response.StatusCode)
	}
	for _, c := range []struct {
		method, path string
		want         int
	}{
		{"DELETE", "/blobs/a9/kept", 404}, {"HEAD", "/blobs/a9/kept", 404}, {"POST", "/blobs/a9/kept", 404},
		{"PUT", "/blobs/", 500}, {"GET", "/blobs/", 404},
	} {
		if response, body := s.do(t, c.method, c.path, "s3cret", ""); response.StatusCode != c.want {
			t.Errorf("%s %s: got %d %s, want %d", c.method, c.path, response.StatusCode, body, c.want)
		}
	}
	if response, body := s.do(t, "GET", "/blobs/a9/kept", "s3cret", ""); response.StatusCode != 200 || body != "content" {
		t.Errorf("afterwards: %d %q", response.StatusCode, body)
	}
}

func TestLargeBlob(t *testing.T) {
	s := start(t, nil, nil)
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
	if response, body := s.do(t, "PUT", "/blobs/a9/big", "s3cret", string(content)); response.StatusCode != 201 {
		t.Fatalf("got %d %s", response.StatusCode, body)
	}
	_, got := s.do(t, "GET", "/blobs/a9/big", "s3cret", "")
	if sha256.Sum256([]byte(got)) != sha256.Sum256(content) {
		t.Errorf("got %d bytes, want the %d that were put", len(got), len(content))
	}
}

func TestSlowAnswersAndKeepAlive(t *testing.T) {
	release := make(chan struct{})
	s := start(t, func(_ context.Context, r mbus.Request, reply func(mbus.Reply)) {
		if !r.KeepsWaiting {
			t.Errorf("got %+v", r)
		}
		go func() {
			if r.Method == "slow" {
				<-release
			}
			reply(mbus.Value(r.Method))
		}()
	}, nil)
	slow := make(chan string, 1)
	go func() {
		_, body := s.do(t, "POST", "/agent", "s3cret", `{"method":"slow"}`)
		slow <- body
	}()
	for range 50 {
		if _, body := s.do(t, "POST", "/agent", "s3cret", `{"method":"ping"}`); body != `{"value":"ping"}` {
			t.Fatalf("got %s", body)
		}
	}
	close(release)
	if got := <-slow; got != `{"value":"slow"}` {
		t.Errorf("got %s", got)
	}
}

func TestSilenceAndCallersThatLeave(t *testing.T) {
	left := make(chan struct{})
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	s := start(t, func(ctx context.Context, r mbus.Request, reply func(mbus.Reply)) {
		if r.Method == "silence" {
			reply(mbus.Silence())
			return
		}
		leave()
		go func() {
			<-ctx.Done()
			close(left)
			reply(mbus.Silence())
		}()
	}, nil)
	if response, body := s.do(t, "POST", "/agent", "s3cret", `{"method":"silence"}`); response.StatusCode != 503 ||
		body != "" {
		t.Errorf("got %d %q", response.StatusCode, body)
	}
	r, _ := http.NewRequestWithContext(ctx, "POST", s.base+"/agent", strings.NewReader(`{"method":"wait"}`))
	r.SetBasicAuth("mbus", "s3cret")
	// The client says goodbye in TLS before it closes the connection, and may just see what the
	// server has to say about that.
	if response, err := s.http.Do(r); err == nil && response.StatusCode != http.StatusServiceUnavailable {
		t.Fatalf("answered with %d", response.StatusCode)
	}
	select {
	case <-left:
	case <-time.After(20 * time.Second):
		t.Error("the handler's context does not end when the caller disconnects")
	}
}

func TestGuessingIsSlowedDown(t *testing.T) {
	a := newAuth("mbus", "s3cret")
	now := time.Now()
	for i := range freeGuesses {
		if got := a.delay("10.0.0.1", now); got != 0 {
			t.Fatalf("guess %d is answered after %s", i, got)
		}
	}
	before := time.Duration(0)
	for range 20 {
		got := a.delay("10.0.0.1", now)
		if got < before || got == 0 || got > longestDelay {
			t.Fatalf("got %s after %s", got, before)
		}
		before = got
	}
	if before != longestDelay {
		t.Errorf("got %s in the end, want %s", before, longestDelay)
	}
	if got := a.delay("10.0.0.2", now); got != 0 {
		t.Errorf("another address is answered after %s", got)
	}
	if got := a.delay("10.0.0.1", now.Add(40*guessRefill)); got != 0 {
		t.Errorf("much later: answered after %s", got)
	}
	for i := range 2 * maxPeers {
		a.delay(fmt.Sprint("peer ", i), now)
	}
	if len(a.failures) > maxPeers {
		t.Errorf("%d peers are remembered", len(a.failures))
	}
}

// TestTheRightPasswordAlwaysWorks: every password is compared at once, and only the answer to a wrong one is late. While
// guesses from an address await theirs, the right password from that address is answered.
func TestTheRightPasswordAlwaysWorks(t *testing.T) {
	s := start(t, nil, nil)
	for range freeGuesses {
		if response, _ := s.do(t, "POST", "/agent", "guess", ""); response.StatusCode != http.StatusUnauthorized {
			t.Errorf("a guess is answered with %d, want 401", response.StatusCode)
		}
	}
	const waiting = 8 // for 0.5, 1, 2 … 30 seconds
	answered := make(chan int, waiting)
	ctx, cancel := context.WithCancel(t.Context())
	var guesses sync.WaitGroup
	t.Cleanup(func() { cancel(); guesses.Wait() })
	for range waiting {
		guesses.Go(func() {
			r, err := http.NewRequestWithContext(ctx, "POST", s.base+"/agent", http.NoBody)
			if err != nil {
				t.Error(err)
				return
			}
			r.SetBasicAuth("mbus", "guess")
			if response, err := s.http.Do(r); err == nil { // otherwise the test has ended
				_ = response.Body.Close()
				answered <- response.StatusCode
			}
		})
	}
	counted := func() (most float64) {
		s.auth.mu.Lock()
		defer s.auth.mu.Unlock()
		for _, f := range s.auth.failures {
			most = max(most, f.times)
		}
		return most
	}
	eventually.Nil(t, "the comparison of all guesses", func() error {
		if n := counted(); n < freeGuesses+waiting-0.5 {
			return fmt.Errorf("%v guesses were compared, want %d", n, freeGuesses+waiting)
		}
		return nil
	})
	for range 5 {
		if response, body := s.do(t, "POST", "/agent", "s3cret", `{"method":"ping"}`); response.StatusCode != 200 ||
			body != `{"value":"pong"}` {
			t.Errorf("the right password is answered with %d %s", response.StatusCode, body)
		}
	}
	if late := waiting - len(answered); late < 2 {
		t.Errorf("only %d of %d guesses still wait when the right password has been answered", late, waiting)
	}
	if status := <-answered; status != http.StatusUnauthorized {
		t.Errorf("a late answer to a guess is %d, want 401", status)
	}
}

func TestCertificates(t *testing.T) {
	file := filepath.Join(t.TempDir(), "https.pem")
	leaf := func(s *served) string {
		t.Helper()
		conn, err := tls.Dial("tcp", s.Address().String(), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		if v := conn.ConnectionState().Version; v < tls.VersionTLS12 {
			t.Errorf("TLS version %x", v)
		}
		return string(conn.ConnectionState().PeerCertificates[0].Raw)
	}
	one := leaf(start(t, nil, func(o *Options) { o.KeyFile = file }))
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("kept key: %v, %v; want mode 0600", info.Mode(), err)
	}
	if second := leaf(start(t, nil, func(o *Options) { o.KeyFile = file })); second != one {
		t.Error("the certificate changed with a restart")
	}
	if other := leaf(start(t, nil, nil)); other == one {
		t.Error("two machines have the same certificate")
	}
	if err := os.WriteFile(file, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if second := leaf(start(t, nil, func(o *Options) { o.KeyFile = file })); second == one {
		t.Error("a damaged certificate was served")
	}

	ca, err := testca.New("ca")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Server("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, nil, func(o *Options) {
		o.Certificate, o.PrivateKey = string(pair.Certificate), secret.New(string(pair.PrivateKey))
	})
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		conn, err := tls.Dial("tcp", s.Address().String(),
			&tls.Config{RootCAs: ca.Pool(), MinVersion: version, MaxVersion: version})
		if err != nil {
			t.Errorf("TLS %x with the certificate of the settings: %v", version, err)
			continue
		}
		_ = conn.Close()
	}
	if _, err := tls.Dial("tcp", s.Address().String(),
		&tls.Config{RootCAs: ca.Pool(), MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}); err == nil {
		t.Error("TLS 1.1 was accepted")
	}
}

func TestBadOptions(t *testing.T) {
	for _, raw := range []string{"", "http://a:b@c:1", "https://c:1", "https://a@c:1", "https://a:@c:1",
		"https://a:s3cret@c", "https://a:s3cret@%zz"} {
		_, err := New(Options{URL: secret.NewURL(raw), KeyFile: filepath.Join(t.TempDir(), "k"), Log: quiet()})
		if err == nil {
			t.Errorf("%q was accepted", raw)
		} else if strings.Contains(err.Error(), "s3cret") {
			t.Errorf("the error tells the password: %v", err)
		}
	}
	if _, err := New(Options{URL: secret.NewURL("https://a:b@127.0.0.1:0"), Certificate: "x", Log: quiet()}); err == nil {
		t.Error("an unreadable certificate was accepted")
	}
}

// Callers that send a byte now and then are cut off, in the handshake, the header or the body.
func TestTricklesAreCutOff(t *testing.T) {
	header, grace := headerTime, transferGrace
	headerTime, transferGrace = 2*time.Second, 200*time.Millisecond // headerTime is also the limit of a good handshake
	t.Cleanup(func() { headerTime, transferGrace = header, grace })
	s := start(t, nil, nil)
	r, _ := http.NewRequest("POST", "/agent", nil)
	r.SetBasicAuth("mbus", "s3cret")
	authorization := r.Header.Get("Authorization")
	for name, begin := range map[string]string{
		"header":   "POST /agent HTTP/1.1\r\nHost: a\r\nX-",
		"envelope": "POST /agent HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\nAuthorization: " + authorization + "\r\n\r\n{",
		"blob":     "PUT /blobs/a9/trickle HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\nAuthorization: " + authorization + "\r\n\r\n{",
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := tls.Dial("tcp", s.Address().String(), &tls.Config{InsecureSkipVerify: true})
			if err != nil {
				t.Fatal(err)
			}
			cutOff(t, conn, begin)
		})
	}
	t.Run("handshake", func(t *testing.T) {
		conn, err := net.Dial("tcp", s.Address().String())
		if err != nil {
			t.Fatal(err)
		}
		cutOff(t, conn, "\x16\x03\x01")
	})
	if _, err := s.blobs.Open("trickle"); err == nil {
		t.Error("half a blob was kept")
	}
}

// cutOff sends begin, then a byte every now and then, and waits for the server to close the connection.
func cutOff(t *testing.T, conn net.Conn, begin string) {
	t.Helper()
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, begin); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	defer func() { <-done }()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		defer close(done)
		for {
			select {
			case <-time.After(20 * time.Millisecond):
				_, _ = io.WriteString(conn, "a")
			case <-stop:
				return
			}
		}
	}()
	if err := conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	var timeout net.Error
	if _, err := io.Copy(io.Discard, conn); errors.As(err, &timeout) && timeout.Timeout() {
		t.Error("the server waits on")
	}
}

func TestPaceAllowsAnySize(t *testing.T) {
	if got := allowance(0); got != transferGrace {
		t.Errorf("first byte: got %v", got)
	}
	if got := allowance(1 << 30); got < time.Hour {
		t.Errorf("a gigabyte: got %v", got)
	}
}
