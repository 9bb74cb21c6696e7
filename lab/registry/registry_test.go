package registry

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// TestRegistry asks with the endpoint of an instance, as its agent does.
func TestRegistry(t *testing.T) {
	s := New()
	server := httptest.NewServer(s)
	defer server.Close()
	ask := func(method, endpointOf, path string) (int, string) {
		t.Helper()
		at, err := url.Parse(s.Endpoint(server.Listener.Addr().String(), endpointOf))
		if err != nil {
			t.Fatal(err)
		}
		if endpointOf == "" {
			at.User = nil
		}
		r, err := http.NewRequest(method, at.String()+path, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		response, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = response.Body.Close() }()
		body := make([]byte, 1000)
		n, _ := response.Body.Read(body)
		return response.StatusCode, strings.TrimSpace(string(body[:n]))
	}
	const settings, own = "/instances/vm-1/settings", `{"settings":"{\"agent_id\":\"a\"}","status":"ok"}`
	s.Set("vm-1", []byte(`{"agent_id":"a"}`))
	s.Set("vm-2", []byte(`{"agent_id":"b"}`))
	for name, c := range map[string]struct {
		method, endpointOf, path string
		status                   int
		want                     string
	}{
		"the instance":        {http.MethodGet, "vm-1", settings, 200, own},
		"another instance":    {http.MethodGet, "vm-2", settings, 401, `{"status":"access_denied"}`},
		"without a password":  {http.MethodGet, "", settings, 401, `{"status":"access_denied"}`},
		"an unknown one":      {http.MethodGet, "vm-3", "/instances/vm-3/settings", 404, `{"status":"not_found"}`},
		"the instance writes": {http.MethodPut, "vm-1", settings, 404, `{"status":"not_found"}`},
		"and deletes":         {http.MethodDelete, "vm-1", settings, 404, `{"status":"not_found"}`},
		"other path":          {http.MethodGet, "vm-1", "/", 404, `{"status":"not_found"}`},
	} {
		if status, body := ask(c.method, c.endpointOf, c.path); status != c.status || body != c.want {
			t.Errorf("%s: got %d %s, want %d %s", name, status, body, c.status, c.want)
		}
	}
	s.Delete("vm-1")
	if status, body := ask(http.MethodGet, "vm-1", settings); status != 404 || s.Requests("vm-1") != 2 {
		t.Errorf("deleted: got %d %s after %d requests", status, body, s.Requests("vm-1"))
	}
}
