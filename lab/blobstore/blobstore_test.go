package blobstore

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"cambium/internal/testca"
)

func TestServer(t *testing.T) {
	ca, err := testca.New("blobs")
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	s, err := Start(listener, Options{Dir: dir, CA: ca, Secret: "given"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.Pool()}}}
	do := func(method, url, user, body string) (int, string) {
		t.Helper()
		r, err := http.NewRequest(method, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if user != "" {
			r.SetBasicAuth(user, s.password)
		}
		response, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = response.Body.Close() }()
		data, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(data)
	}
	id, digest, err := s.Put([]byte("content"))
	if err != nil || string(s.secret) != "given" {
		t.Fatalf("secret %q, %v; want the given one", s.secret, err)
	}
	if !Matches([]byte("content"), digest) || Matches([]byte("other"), digest) || Matches(nil, "") {
		t.Errorf("digest %q does not tell contents apart", digest)
	}
	unsignedURL := s.endpoint + "/" + prefixed(id)
	later := s.SignedURL("PUT", "later")
	for _, c := range []struct {
		name, method, url, user, body string
		status                        int
		want                          string
	}{
		{"plain get", "GET", unsignedURL, "agent", "", 200, "content"},
		{"plain get by a stranger", "GET", unsignedURL, "", "", 401, "credentials\n"},
		{"wrong user", "GET", unsignedURL, "director", "", 401, "credentials\n"},
		{"plain put", "PUT", s.endpoint + "/" + prefixed("new"), "agent", "new", 201, ""},
		{"without prefix", "GET", s.endpoint + "/" + id, "agent", "", 404, "path\n"},
		{"unknown", "GET", s.endpoint + "/" + prefixed("x"), "agent", "", 404, "no such blob\n"},
		{"signed get", "GET", s.SignedURL("GET", id), "", "", 200, "content"},
		{"signed put", "PUT", later, "", "log", 201, ""},
		{"signature of another method", "GET", later, "", "", 403, "signature\n"},
		{"signature of another blob", "GET", strings.Replace(s.SignedURL("GET", id), prefixed(id), prefixed("later"), 1), "", "", 403, "signature\n"},
		{"plain put over another", "PUT", s.endpoint + "/" + prefixed("new"), "agent", "newer", 201, ""},
		{"the last one counts", "GET", s.endpoint + "/" + prefixed("new"), "agent", "", 200, "newer"},
		{"delete by a stranger", "DELETE", s.endpoint + "/" + prefixed("new"), "", "", 401, "credentials\n"},
		{"delete", "DELETE", s.endpoint + "/" + prefixed("new"), "agent", "", 204, ""},
		{"gone", "GET", s.endpoint + "/" + prefixed("new"), "agent", "", 404, "no such blob\n"},
		{"delete again", "DELETE", s.endpoint + "/" + prefixed("new"), "agent", "", 404, "no such blob\n"},
		{"another file", "PUT", s.endpoint + "/" + prefixed(".."), "agent", "", 404, "path\n"},
		{"unknown method", "PATCH", unsignedURL, "agent", "", 405, "method\n"},
		{"signature extended", "GET", strings.Replace(s.SignedURL("GET", id), "e=86400", "e=96400", 1), "", "", 403, "signature\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if status, body := do(c.method, c.url, c.user, c.body); status != c.status || body != c.want {
				t.Errorf("got %d %q, want %d %q", status, body, c.status, c.want)
			}
		})
	}
	if data, ok := s.Get("later"); !ok || !bytes.Equal(data, []byte("log")) {
		t.Errorf("stored %q, %v, want what was put under the signed URL", data, ok)
	}
	s.Close()
	// Blobs outlive the server, and nothing else is left of what was received.
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 2 {
		t.Errorf("files are %v (%v), want the two blobs", files, err)
	}
}
