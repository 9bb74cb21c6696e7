package observe

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"cambium/internal/secret"
	"cambium/internal/skiptest"
	"cambium/settings"
)

// TestBlobstoreIsAsked: a blob that is absent is an answer; a password that is refused, and a server that is down, are
// findings; without credentials, as with signed URLs, nothing is asked.
func TestBlobstoreIsAsked(t *testing.T) {
	requests := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests++
		if _, password, _ := r.BasicAuth(); password != "right" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.WriteHeader(http.StatusNotFound)
	}))
	defer server.Close()
	ask := func(options string) Blobstore {
		e := settings.Effective{Blobstore: settings.Blobstore{Provider: "dav", Options: secret.NewJSON([]byte(options))}}
		return askBlobstore(t.Context(), e, 10*time.Second)
	}
	if got := ask(`{"endpoint":"` + server.URL + `","user":"agent","password":"right"}`); !got.Asked || got.Err != "" {
		t.Errorf("right password: %+v", got)
	}
	if got := ask(`{"endpoint":"` + server.URL + `","user":"agent","password":"wrong"}`); !got.Refused ||
		strings.Contains(got.Err, "wrong") {
		t.Errorf("wrong password: %+v", got)
	}
	if got := ask(`{"endpoint":"http://127.0.0.1:1","user":"agent","password":"right"}`); got.Refused ||
		!strings.Contains(got.Err, "connection refused") {
		t.Errorf("server down: %+v", got)
	}
	before := requests
	if got := ask(`{"endpoint":"` + server.URL + `"}`); got.Asked || got.Err != "" || requests != before {
		t.Errorf("signed URLs: %+v, %d requests", got, requests-before)
	}
}

func TestChronySources(t *testing.T) {
	const text = "^,*,10.0.0.1,2,6,377,12,0.0,0.0,0.1\n^,?,10.0.0.2,0,6,0,-,0,0,0\n"
	if sources, reachable := chronySources(text); sources != 2 || reachable != 1 {
		t.Errorf("got %d sources, %d reachable", sources, reachable)
	}
}

// TestNameServers: any answer counts, and none if nothing listens. Port 53 of a loopback address is used, and nothing
// outside.
func TestNameServers(t *testing.T) {
	conn, err := net.ListenPacket("udp", "127.88.0.53:53")
	if err != nil {
		skiptest.Skip(t, err)
	}
	defer func() { _ = conn.Close() }()
	go func() {
		buffer := make([]byte, 512)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo(buffer[:n], from)
		}
	}()
	got := askNameServers(t.Context(), []OfNetwork{{"a", "127.88.0.53"}, {"a", "127.88.0.54"}, {"b", "not an address"}},
		3*time.Second)
	if !got[0].Answers || got[1].Answers || got[2].Answers {
		t.Errorf("got %+v", got)
	}
}
