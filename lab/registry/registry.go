// Package registry is the settings registry of CPI API version 1: the CPI puts an instance's
// settings there, the agent fetches them with the address it found in its user data.
package registry

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
)

// Port is the registry's usual one.
const Port = 25777

// Server is a registry.
type Server struct {
	user, password string

	mu        sync.Mutex
	instances map[string]entry
	requests  map[string]int
}

type entry struct {
	settings []byte
	address  string // of the instance, which may read without credentials
}

// New makes an empty registry with credentials of its own.
func New() *Server {
	return &Server{user: "registry", password: rand.Text(), instances: map[string]entry{}, requests: map[string]int{}}
}

// Endpoint is what goes into user data, credentials included.
func (s *Server) Endpoint(hostPort string) string {
	return "http://" + s.user + ":" + s.password + "@" + hostPort
}

// Set stores the settings of an instance that has the given address.
func (s *Server) Set(id, address string, settings []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.instances[id] = entry{settings: append([]byte(nil), settings...), address: address}
}

// Delete forgets an instance.
func (s *Server) Delete(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.instances, id)
}

// Requests returns how often an instance was asked for.
func (s *Server) Requests(id string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[id]
}

func answer(w http.ResponseWriter, code int, status string, settings []byte) {
	body := map[string]string{"status": status}
	if settings != nil {
		body["settings"] = string(settings) // a document in a string
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}

// ServeHTTP answers /instances/<id>/settings.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id, ok := strings.CutPrefix(r.URL.Path, "/instances/")
	id, tail, _ := strings.Cut(id, "/")
	if !ok || id == "" || tail != "settings" {
		answer(w, http.StatusNotFound, "not_found", nil)
		return
	}
	user, password, _ := r.BasicAuth()
	trusted := user == s.user && subtle.ConstantTimeCompare([]byte(password), []byte(s.password)) == 1
	s.mu.Lock()
	s.requests[id]++
	e, known := s.instances[id]
	s.mu.Unlock()
	address, _, _ := net.SplitHostPort(r.RemoteAddr)
	own := r.Method == http.MethodGet && known && e.address == address
	if !trusted && !own {
		w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
		answer(w, http.StatusUnauthorized, "access_denied", nil)
		return
	}
	switch {
	case r.Method == http.MethodPut:
		data, err := io.ReadAll(r.Body)
		if err != nil || !json.Valid(data) {
			answer(w, http.StatusInternalServerError, "error", nil)
			return
		}
		s.Set(id, e.address, data)
		answer(w, http.StatusOK, "ok", nil)
	case r.Method == http.MethodDelete && known:
		s.Delete(id)
		answer(w, http.StatusOK, "ok", nil)
	case r.Method == http.MethodGet && known:
		answer(w, http.StatusOK, "ok", e.settings)
	default:
		answer(w, http.StatusNotFound, "not_found", nil)
	}
}
