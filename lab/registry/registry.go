// Package registry is the settings registry of CPI API version 1. The CPI stores an instance's settings there. The
// agent fetches them with the address and the password in its user data.
package registry

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
)

// Port is the usual port of a registry.
const Port = 25777

// Server is a registry.
type Server struct {
	secret []byte // from which passwords are derived

	mu        sync.Mutex
	instances map[string][]byte
	requests  map[string]int
}

// New returns an empty registry.
func New() *Server {
	return &Server{secret: []byte(rand.Text()), instances: map[string][]byte{}, requests: map[string]int{}}
}

const user = "registry"

// password returns an instance's password, with which it can read only its own settings.
func (s *Server) password(id string) string {
	h := hmac.New(sha256.New, s.secret)
	_, _ = h.Write([]byte(id)) // never fails
	return hex.EncodeToString(h.Sum(nil))
}

// Endpoint returns the registry's URL for the user data of an instance, with the instance's password.
func (s *Server) Endpoint(hostPort, id string) string {
	return "http://" + user + ":" + s.password(id) + "@" + hostPort
}

// Set stores the settings of an instance.
func (s *Server) Set(id string, settings []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.instances[id] = append([]byte{}, settings...)
}

// Delete forgets an instance.
func (s *Server) Delete(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.instances, id)
}

// Requests returns the number of requests for an instance.
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

// ServeHTTP answers GET /instances/<id>/settings to that instance.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id, ok := strings.CutPrefix(r.URL.Path, "/instances/")
	id, tail, _ := strings.Cut(id, "/")
	if !ok || id == "" || tail != "settings" || r.Method != http.MethodGet {
		answer(w, http.StatusNotFound, "not_found", nil)
		return
	}
	name, password, _ := r.BasicAuth()
	if name != user || !hmac.Equal([]byte(password), []byte(s.password(id))) {
		w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
		answer(w, http.StatusUnauthorized, "access_denied", nil)
		return
	}
	s.mu.Lock()
	s.requests[id]++
	settings, known := s.instances[id]
	s.mu.Unlock()
	if !known {
		answer(w, http.StatusNotFound, "not_found", nil)
		return
	}
	answer(w, http.StatusOK, "ok", settings)
}
