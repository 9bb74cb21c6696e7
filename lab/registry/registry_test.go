package registry

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestRegistry(t *testing.T) {
	s := New()
	ask := func(from, method, path, body string, trusted bool) (int, string) {
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		r.RemoteAddr = from + ":1"
		if trusted {
			r.SetBasicAuth(s.user, s.password)
		}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		return w.Code, strings.TrimSpace(w.Body.String())
	}
	s.Set("vm-1", "10.0.0.1", []byte(`{"agent_id":"a"}`))
	for _, c := range []struct {
		name, from, method, path, body string
		trusted                        bool
		status                         int
		want                           string
	}{
		{"with credentials", "10.9.9.9", http.MethodGet, "/instances/vm-1/settings", "", true, 200, `{"settings":"{\"agent_id\":\"a\"}","status":"ok"}`},
		{"the instance itself", "10.0.0.1", http.MethodGet, "/instances/vm-1/settings", "", false, 200, `{"settings":"{\"agent_id\":\"a\"}","status":"ok"}`},
		{"another instance", "10.0.0.2", http.MethodGet, "/instances/vm-1/settings", "", false, 401, `{"status":"access_denied"}`},
		{"the instance writes", "10.0.0.1", http.MethodPut, "/instances/vm-1/settings", "{}", false, 401, `{"status":"access_denied"}`},
		{"unknown", "10.0.0.1", http.MethodGet, "/instances/vm-2/settings", "", true, 404, `{"status":"not_found"}`},
		{"put", "10.0.0.1", http.MethodPut, "/instances/vm-1/settings", `{"b":1}`, true, 200, `{"status":"ok"}`},
		{"put and get", "10.0.0.1", http.MethodGet, "/instances/vm-1/settings", "", false, 200, `{"settings":"{\"b\":1}","status":"ok"}`},
		{"put nonsense", "10.0.0.1", http.MethodPut, "/instances/vm-1/settings", `{`, true, 500, `{"status":"error"}`},
		{"delete", "10.0.0.1", http.MethodDelete, "/instances/vm-1/settings", "", true, 200, `{"status":"ok"}`},
		{"gone", "10.0.0.1", http.MethodGet, "/instances/vm-1/settings", "", true, 404, `{"status":"not_found"}`},
		{"other path", "10.0.0.1", http.MethodGet, "/", "", true, 404, `{"status":"not_found"}`},
	} {
		if status, body := ask(c.from, c.method, c.path, c.body, c.trusted); status != c.status || body != c.want {
			t.Errorf("%s: got %d %s, want %d %s", c.name, status, body, c.status, c.want)
		}
	}
}
