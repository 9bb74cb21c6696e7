package metadata

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// ask sends a request as if from the given address.
func ask(s *Server, from, method, path string, header http.Header) (int, string) {
	r := httptest.NewRequest(method, path, nil)
	r.RemoteAddr = from + ":1234"
	for key, values := range header {
		r.Header[key] = values
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	body, _ := io.ReadAll(w.Body)
	return w.Code, string(body)
}

func TestEC2(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New()
		s.Set("10.0.0.1", Instance{ID: "i-1", UserData: []byte("{}"), RequireToken: true})
		s.Set("10.0.0.2", Instance{ID: "i-2", UserData: []byte("{}"), PublicKey: "ssh-ed25519 A"})
		ttl := http.Header{"X-Aws-Ec2-Metadata-Token-Ttl-Seconds": {"300"}}
		status, token := ask(s, "10.0.0.1", "PUT", "/latest/api/token", ttl)
		if status != 200 || token == "" {
			t.Fatalf("token: %d %q, want 200 and one", status, token)
		}
		with := http.Header{"X-Aws-Ec2-Metadata-Token": {token}}
		for _, c := range []struct {
			name, from, method, path string
			header                   http.Header
			status                   int
		}{
			{"with token", "10.0.0.1", "GET", "/latest/user-data", with, 200},
			{"without token", "10.0.0.1", "GET", "/latest/user-data", nil, 401},
			{"another machine's token", "10.0.0.2", "GET", "/latest/user-data", with, 401},
			{"forged token", "10.0.0.1", "GET", "/latest/user-data", http.Header{"X-Aws-Ec2-Metadata-Token": {"9" + token}}, 401},
			{"token not demanded", "10.0.0.2", "GET", "/latest/user-data", nil, 200},
			{"no key", "10.0.0.1", "GET", "/latest/meta-data/public-keys/0/openssh-key", with, 404},
			{"key", "10.0.0.2", "GET", "/latest/meta-data/public-keys/0/openssh-key", nil, 200},
			{"token without ttl", "10.0.0.1", "PUT", "/latest/api/token", nil, 400},
			{"token by GET", "10.0.0.1", "GET", "/latest/api/token", ttl, 405},
			{"stranger", "10.0.0.3", "GET", "/latest/user-data", nil, 404},
		} {
			if status, _ := ask(s, c.from, c.method, c.path, c.header); status != c.status {
				t.Errorf("%s: status %d, want %d", c.name, status, c.status)
			}
		}
		time.Sleep(301 * time.Second)
		if status, _ := ask(s, "10.0.0.1", "GET", "/latest/user-data", with); status != 401 {
			t.Errorf("expired token: status %d, want 401", status)
		}
	})
}

func TestGoogle(t *testing.T) {
	s := New()
	s.Set("10.0.0.1", Instance{Attributes: map[string][]byte{"bosh_settings": []byte("{}")}})
	path := "/computeMetadata/v1/instance/attributes/bosh_settings"
	if status, _ := ask(s, "10.0.0.1", "GET", path, nil); status != 403 {
		t.Errorf("without header: status %d, want 403", status)
	}
	if status, body := ask(s, "10.0.0.1", "GET", path, http.Header{"Metadata-Flavor": {"Google"}}); status != 200 ||
		body != "{}" {
		t.Errorf("with header: %d %q, want 200 {}", status, body)
	}
}

// A machine with an address that a Director chose is recognized by its card.
func TestKnownByItsCard(t *testing.T) {
	s := New()
	mac := net.HardwareAddr{2, 0xca, 0, 0, 0, 1}
	s.Neighbor = func(address string) net.HardwareAddr {
		return map[string]net.HardwareAddr{"10.0.0.9": mac, "10.0.0.8": {2, 0xca, 0, 0, 0, 2}}[address]
	}
	s.Set("10.0.0.1", Instance{ID: "i-1", UserData: []byte("{}"), MAC: mac})
	s.Set("10.0.0.2", Instance{ID: "i-2", UserData: []byte("{}")}) // without a card
	for from, want := range map[string]int{"10.0.0.1": 200, "10.0.0.9": 200, "10.0.0.8": 404, "10.0.0.7": 404} {
		if status, body := ask(s, from, "GET", "/latest/meta-data/instance-id", nil); status != want ||
			want == 200 && body != "i-1" {
			t.Errorf("from %s: %d %q, want %d", from, status, body, want)
		}
	}
}

// TestTokensTakeNoMemory: a machine that asks for tokens without end gets them, and the service keeps none.
func TestTokensTakeNoMemory(t *testing.T) {
	s := New()
	s.Set("10.0.0.1", Instance{ID: "i-1"})
	ttl := http.Header{"X-Aws-Ec2-Metadata-Token-Ttl-Seconds": {"21600"}}
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	for range 10_000 {
		if status, token := ask(s, "10.0.0.1", "PUT", "/latest/api/token", ttl); status != 200 || token == "" {
			t.Fatalf("token: %d %q, want 200 and one", status, token)
		}
	}
	if grown := heap() - before; grown > 512<<10 {
		t.Errorf("10,000 tokens occupy %d KiB, want none of it kept", grown>>10)
	}
	runtime.KeepAlive(s)
}
