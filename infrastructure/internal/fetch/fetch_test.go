package fetch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cambium/infrastructure/internal/source"
	"cambium/internal/secret"
)

// wire serves raw bytes. talk gets the connection after the request's header was read.
func wire(t *testing.T, talk func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
					talk(conn)
				}
			}()
		}
	}()
	return "http://" + l.Addr().String()
}

// silence waits until the peer closes the connection.
func silence(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }

func TestPeersThatMisbehave(t *testing.T) {
	var sent atomic.Int64
	cases := []struct {
		name string
		talk func(net.Conn)
		want string // in the error; "" means that the body is want
		body string
	}{
		{name: "accepts and stays silent", talk: silence, want: "timeout"},
		{name: "half a header", talk: func(c net.Conn) { io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-"); silence(c) }, want: "timeout"},
		{name: "header, then silence", talk: func(c net.Conn) { io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"); silence(c) }, want: "deadline"},
		{name: "a byte now and then", talk: func(c net.Conn) {
			io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
			for {
				if _, err := io.WriteString(c, "x"); err != nil {
					return
				}
				time.Sleep(20 * time.Millisecond)
			}
		}, want: "deadline"},
		{name: "shorter than announced", talk: func(c net.Conn) { io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhello") }, want: "unexpected EOF"},
		{name: "a chunk cut short", talk: func(c net.Conn) {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10\r\nhello")
		}, want: "unexpected EOF"},
		{name: "longer than announced", talk: func(c net.Conn) { io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello, more") }, body: "hello"},
		{name: "10 GiB announced", talk: func(c net.Conn) {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 10737418240\r\n\r\n")
			silence(c)
		}, want: "too large"},
		{name: "endless", talk: func(c net.Conn) {
			io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
			for block := make([]byte, 32<<10); ; {
				n, err := c.Write(block)
				sent.Add(int64(n))
				if err != nil {
					return
				}
			}
		}, want: "too large"},
		{name: "endless header", talk: func(c net.Conn) {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nX: ")
			for {
				if _, err := io.WriteString(c, strings.Repeat("x", 4096)); err != nil {
					return
				}
			}
		}, want: "header"},
		{name: "closes at once", talk: func(net.Conn) {}, want: "EOF"},
		{name: "another protocol", talk: func(c net.Conn) { io.WriteString(c, "SSH-2.0-OpenSSH_9.2\r\n") }, want: "malformed"},
		{name: "no body", talk: func(c net.Conn) { io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n") }, body: ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			base := wire(t, c.talk)
			limits := Timeouts{Dial: time.Minute, TLS: time.Minute, Header: time.Minute, Request: time.Minute}
			switch c.want {
			case "timeout":
				limits.Header = time.Second
			case "deadline":
				limits.Request = 2 * time.Second
			}
			start := time.Now()
			r, err := Client{Timeouts: &limits}.Do(t.Context(), Request{URL: base + "/u?secret=canary", Limit: 64 << 10})
			if took := time.Since(start); took > 30*time.Second {
				t.Errorf("took %v", took)
			}
			if c.want == "" {
				if err != nil || string(r.Body) != c.body {
					t.Errorf("body %q, error %v; want %q", r.Body, err, c.body)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "canary") {
				t.Errorf("error %v shows the query", err)
			}
		})
	}
	t.Cleanup(func() { // after all of them
		if n := sent.Load(); n > 64<<20 {
			t.Errorf("an endless body was read for %d MiB", n>>20)
		}
	})
}

func TestRefusedAndUnusable(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := l.Addr().String()
	l.Close()
	if _, err := (Client{}).Do(t.Context(), Request{URL: "http://user:canary@" + closed + "/x", Limit: 10}); err == nil ||
		strings.Contains(err.Error(), "canary") || !strings.Contains(err.Error(), "refused") {
		t.Errorf("error %v, want connection refused without the password", err)
	}
	for _, bad := range []string{"", "ftp://127.0.0.1/x", "/etc/passwd", "http://", "http://a b/", "http://[::1",
		"file:///etc/passwd"} {
		_, err := Client{}.Do(t.Context(), Request{URL: bad, Limit: 10})
		if source.KindOf(err) != source.Definite {
			t.Errorf("%q: error %v, want a final one", bad, err)
		}
	}
}

func TestRedirects(t *testing.T) {
	var stolen atomic.Int32
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { stolen.Add(1) }))
	defer elsewhere.Close()
	var origin *httptest.Server
	origin = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/away":
			http.Redirect(w, r, elsewhere.URL+"/x", http.StatusFound)
		case "/name":
			http.Redirect(w, r, strings.Replace(origin.URL, "127.0.0.1", "localhost", 1)+"/good", http.StatusFound)
		case "/here":
			http.Redirect(w, r, "/good", http.StatusFound)
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		case "/file":
			http.Redirect(w, r, "file:///etc/passwd", http.StatusFound)
		case "/good":
			fmt.Fprint(w, r.Header.Get("X-Token"))
		}
	}))
	defer origin.Close()
	do := func(path string) (Response, error) {
		return Client{}.Do(t.Context(), Request{URL: origin.URL + path, Limit: 100,
			Header: map[string]secret.String{"X-Token": secret.New("t")}})
	}
	for _, path := range []string{"/away", "/name", "/loop", "/file"} {
		if _, err := do(path); err == nil {
			t.Errorf("%s was followed", path)
		}
	}
	if r, err := do("/here"); err != nil || string(r.Body) != "t" {
		t.Errorf("redirect on the same server: %q, %v; want the page with the header", r.Body, err)
	}
	if stolen.Load() != 0 {
		t.Error("the other server was asked")
	}
}

func TestCredentialsAndHeaders(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		fmt.Fprint(w, user, "/", password, "/", r.Header.Get("Metadata-Flavor"), "/", r.Host)
	}))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	for _, c := range []struct {
		r    Request
		want string
	}{
		{Request{URL: "http://u:p%40@" + host}, "u/p@//" + host},
		{Request{URL: server.URL, User: "k", Password: secret.New("w")}, "k/w//" + host},
		{Request{URL: "http://u:p@" + host, User: "k", Password: secret.New("w")}, "u/p//" + host},
		{Request{URL: server.URL, Header: map[string]secret.String{"Metadata-Flavor": secret.New("Google"), "host": secret.New("metadata")}}, "//Google/metadata"},
	} {
		c.r.Limit = 1000
		got, err := Client{}.Do(t.Context(), c.r)
		if err != nil || string(got.Body) != c.want {
			t.Errorf("%q, %v; want %q", got.Body, err, c.want)
		}
	}
}

func TestProxyIsForFarAwayOnly(t *testing.T) {
	var seen atomic.Value
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter,
		r *http.Request) {
		seen.Store(r.URL.String())
	}))
	defer proxy.Close()
	proxyURL, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	before := environmentProxy
	environmentProxy = http.ProxyURL(proxyURL)
	t.Cleanup(func() { environmentProxy = before })
	if _, err := (Client{}).Do(t.Context(), Request{URL: "http://registry.example.test/x", Limit: 10}); err != nil {
		t.Fatal(err)
	}
	client := Client{Connecting: func(_ context.Context,
		server netip.AddrPort) {
		t.Errorf("the proxy %s was announced", server)
	}}
	if _, err := client.Do(t.Context(), Request{URL: "http://registry.example.test/x", Limit: 10}); err != nil {
		t.Fatal(err)
	}
	if seen.Load() != "http://registry.example.test/x" {
		t.Errorf("proxy saw %v, want the request", seen.Load())
	}
	for host, direct := range map[string]bool{
		"169.254.169.254": true, "169.254.170.2": true, "fe80::1": true, "fe80::a9fe:a9fe%25eth0": true,
		"100.100.100.200": true, "168.63.129.16": true, "fd00:ec2::254": true,
		"::ffff:169.254.169.254": true, "127.0.0.1": true, "::1": true, "localhost": true, "metadata.google.internal": true,
		"metadata.google.internal.": true,
		"10.0.0.6":                  false, "registry": false, "fd00::1": false, "100.100.100.201": false,
	} {
		u := &url.URL{Scheme: "http", Host: host}
		if strings.Contains(host, ":") {
			u.Host = "[" + host + "]"
		}
		parsed, err := url.Parse(u.Scheme + "://" + u.Host + "/")
		if err != nil {
			t.Fatal(err)
		}
		got, err := proxyFor(parsed)
		if err != nil {
			t.Fatal(err)
		}
		if (got == nil) != direct {
			t.Errorf("%s: proxy %v, want direct %v", host, got, direct)
		}
	}
}

func proxyFor(u *url.URL) (*url.URL, error) { return proxy(&http.Request{URL: u}) }

func TestLookupReplacesTheResolver(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Host) }))
	defer server.Close()
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(server.URL, "http://"))
	dead := netip.MustParseAddr("127.0.0.2")
	client := Client{Lookup: func(_ context.Context, host string) ([]netip.Addr, error) {
		if host != "registry.example.test" {
			return nil, errors.New("unknown")
		}
		return []netip.Addr{dead, netip.MustParseAddr("127.0.0.1")}, nil
	}}
	r, err := client.Do(t.Context(), Request{URL: "http://registry.example.test:" + port + "/", Limit: 100})
	if err != nil || string(r.Body) != "registry.example.test:"+port {
		t.Errorf("%q, %v; want the server, asked by its name, at its second address", r.Body, err)
	}
}

// TestConnectionsAreAnnounced: Connecting is called with each address before a connection to it, so that a firewall can
// follow.
func TestConnectionsAreAnnounced(t *testing.T) {
	var events []string
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter,
		*http.Request) {
		events = append(events, "request")
	}))
	defer server.Close()
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(server.URL, "http://"))
	client := Client{Connecting: func(_ context.Context,
		server netip.AddrPort) {
		events = append(events, server.String())
	},
		Lookup: func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("127.0.0.1")}, nil
		}}
	for _, address := range []string{server.URL, "http://Metadata.example.test:" + port + "/"} {
		if _, err := client.Do(t.Context(), Request{URL: address, Limit: 100}); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"127.0.0.1:" + port, "request", "127.0.0.2:" + port, "127.0.0.1:" + port, "request"}
	if !slices.Equal(events, want) {
		t.Errorf("got %q, want %q", events, want)
	}
}

func TestEndOfContext(t *testing.T) {
	base := wire(t, silence)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("boot was stopped")
	time.AfterFunc(20*time.Millisecond, func() { cancel(why) })
	if _, err := (Client{}).Do(ctx, Request{URL: base, Limit: 10}); err == nil {
		t.Error("no error")
	}
}

func TestNeedsNetwork(t *testing.T) {
	for raw, want := range map[string]bool{
		"http://169.254.169.254/x": true, "http://registry:25777": true, "http://127.0.0.1:8080/x": false,
		"http://[::1]:80": false, "http://localhost": false, "/a/file": false,
	} {
		if got := NeedsNetwork(raw); got != want {
			t.Errorf("%s: %v, want %v", raw, got, want)
		}
	}
}
