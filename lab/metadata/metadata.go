// Package metadata is the metadata service of an IaaS, from which a machine reads data about itself at 169.254.169.254.
// It answers like EC2's, with session tokens, and like Google's.
package metadata

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Address is the address of the service.
const Address = "169.254.169.254"

// Instance is the metadata of a machine.
type Instance struct {
	ID        string
	UserData  []byte
	PublicKey string // if empty, the service answers 404, as for a machine without a key
	// Attributes are Google's instance attributes.
	Attributes map[string][]byte
	// RequireToken rejects requests without a session token.
	RequireToken bool
	// MAC is the hardware address of the machine's network card.
	MAC net.HardwareAddr
}

// Server is the service. It recognizes a machine by its source address, or else by its network card, because a Director
// may have given the machine an address other than the IaaS's.
type Server struct {
	// Neighbor returns the hardware address for an IP address, or nil if it is unknown.
	Neighbor func(address string) net.HardwareAddr

	secret []byte // signs session tokens, so that none needs to be stored

	mu        sync.Mutex
	instances map[string]Instance
}

// New returns a service without machines.
func New() *Server {
	return &Server{secret: []byte(rand.Text()), instances: map[string]Instance{}}
}

// Set adds or replaces the machine at an address.
func (s *Server) Set(address string, i Instance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.instances[address] = i
}

// Delete removes a machine.
func (s *Server) Delete(address string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.instances, address)
}

// Headers of the two services.
const (
	ttlHeader    = "X-Aws-Ec2-Metadata-Token-Ttl-Seconds"
	tokenHeader  = "X-Aws-Ec2-Metadata-Token"
	googleHeader = "Metadata-Flavor"
)

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	address, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		http.Error(w, "address", http.StatusBadRequest)
		return
	}
	i, known := s.find(address)
	if !known {
		http.NotFound(w, r)
		return
	}
	if attribute, ok := strings.CutPrefix(r.URL.Path, "/computeMetadata/v1/instance/attributes/"); ok {
		s.google(w, r, i, attribute)
		return
	}
	if r.URL.Path == "/latest/api/token" {
		s.token(w, r, address)
		return
	}
	if !s.allowed(r, address, i.RequireToken) {
		http.Error(w, "token", http.StatusUnauthorized)
		return
	}
	var body []byte
	switch r.URL.Path {
	case "/latest/user-data":
		body = i.UserData
	case "/latest/meta-data/instance-id":
		body = []byte(i.ID)
	case "/latest/meta-data/public-keys/0/openssh-key", "/latest/meta-data/public-keys":
		body = []byte(i.PublicKey)
	}
	if len(body) == 0 {
		http.NotFound(w, r)
		return
	}
	_, _ = w.Write(body)
}

// find returns the metadata of the machine with the address.
func (s *Server) find(address string) (Instance, bool) {
	s.mu.Lock()
	i, known := s.instances[address]
	s.mu.Unlock()
	if known || s.Neighbor == nil {
		return i, known
	}
	mac := s.Neighbor(address)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range s.instances {
		if len(mac) > 0 && bytes.Equal(i.MAC, mac) {
			return i, true
		}
	}
	return Instance{}, false
}

func (s *Server) google(w http.ResponseWriter, r *http.Request, i Instance, attribute string) {
	w.Header().Set(googleHeader, "Google")
	if r.Header.Get(googleHeader) != "Google" {
		http.Error(w, "missing header", http.StatusForbidden)
		return
	}
	body, ok := i.Attributes[attribute]
	if !ok {
		http.NotFound(w, r)
		return
	}
	_, _ = w.Write(body)
}

// token answers with a session token that only this machine can use.
func (s *Server) token(w http.ResponseWriter, r *http.Request, address string) {
	if r.Method != http.MethodPut {
		http.Error(w, "method", http.StatusMethodNotAllowed)
		return
	}
	seconds, err := strconv.Atoi(r.Header.Get(ttlHeader))
	if err != nil || seconds < 1 || seconds > 21600 {
		http.Error(w, "ttl", http.StatusBadRequest)
		return
	}
	w.Header().Set(ttlHeader, strconv.Itoa(seconds))
	_, _ = io.WriteString(w, s.sign(address, time.Now().Add(time.Duration(seconds)*time.Second).Unix()))
}

// sign returns a machine's token: the time at which it expires in seconds, and a signature.
func (s *Server) sign(address string, expires int64) string {
	mac := hmac.New(sha256.New, s.secret)
	_, _ = fmt.Fprintf(mac, "%d %s", expires, address) // never fails
	return fmt.Sprintf("%d.%s", expires, base64.RawURLEncoding.EncodeToString(mac.Sum(nil)))
}

func (s *Server) allowed(r *http.Request, address string, required bool) bool {
	given := r.Header.Get(tokenHeader)
	if given == "" {
		return !required
	}
	second, _, _ := strings.Cut(given, ".")
	expires, err := strconv.ParseInt(second, 10, 64)
	return err == nil && hmac.Equal([]byte(given), []byte(s.sign(address, expires))) && time.Now().Unix() < expires
}
