// Package blobstore is a Director's blobstore: WebDAV as far as agents use it, over TLS, with
// basic authentication, and with signed URLs that need none.
package blobstore

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"cambium/internal/testca"

	"github.com/google/uuid"
)

// SignatureLife is how long a signed URL is good for.
const SignatureLife = 24 * time.Hour

// Server holds blobs in memory.
type Server struct {
	endpoint string
	ca       []byte
	user     string
	password string
	secret   []byte
	http     *http.Server

	mu    sync.Mutex
	blobs map[string][]byte
	// requests counts what was asked for, by method and kind of URL.
	requests map[string]int
}

// Start serves on the listener, which it closes in the end. The certificate is for the
// listener's own address.
func Start(listener net.Listener, ca *testca.CA) (*Server, error) {
	host, _, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		return nil, err
	}
	// Not a NATS server's name, but a certificate of the same deployment.
	pair, err := ca.Issue(testca.Request{CommonName: host, Hosts: []string{host}})
	if err != nil {
		return nil, err
	}
	cert, err := pair.TLS()
	if err != nil {
		return nil, err
	}
	s := &Server{endpoint: "https://" + listener.Addr().String(), ca: ca.PEM, user: "agent", password: rand.Text(),
		secret: []byte(rand.Text()), blobs: map[string][]byte{}, requests: map[string]int{}}
	s.http = &http.Server{Handler: s, ReadHeaderTimeout: 30 * time.Second, ErrorLog: log.New(io.Discard, "", 0),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}}
	go func() { _ = s.http.ServeTLS(listener, "", "") }()
	return s, nil
}

// Close ends the server.
func (s *Server) Close() { _ = s.http.Close() }

// Options are the "blobstore" of a settings document. With signed URLs a Director leaves the
// credentials out.
func (s *Server) Options(credentials bool) map[string]any {
	options := map[string]any{"endpoint": s.endpoint,
		"tls": map[string]any{"cert": map[string]any{"ca": string(s.ca)}}}
	if credentials {
		options["user"], options["password"] = s.user, s.password
	}
	return map[string]any{"provider": "dav", "options": options}
}

func prefixed(id string) string {
	sum := sha1.Sum([]byte(id))
	return hex.EncodeToString(sum[:1]) + "/" + id
}

// SignedURL returns a URL under which the blob can be fetched ("GET") or stored ("PUT").
func (s *Server) SignedURL(method, id string) string {
	now, life := time.Now().Unix(), int64(SignatureLife.Seconds())
	query := url.Values{"st": {s.signature(method, prefixed(id), now, life)}, "ts": {strconv.FormatInt(now, 10)},
		"e": {strconv.FormatInt(life, 10)}}
	return s.endpoint + "/signed/" + prefixed(id) + "?" + query.Encode()
}

func (s *Server) signature(method, path string, at, life int64) string {
	mac := hmac.New(sha256.New, s.secret)
	_, _ = fmt.Fprintf(mac, "%s%s%d%d", method, path, at, life)
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// Put stores a blob and returns its new id and its digests, as a Director writes them.
func (s *Server) Put(data []byte) (id, digest string) {
	id = uuid.NewString()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blobs[id] = bytes.Clone(data)
	return id, Digest(data)
}

// Digest is sha1 and sha256 of data in the notation of a Director.
func Digest(data []byte) string {
	first, second := sha1.Sum(data), sha256.Sum256(data)
	return hex.EncodeToString(first[:]) + ";sha256:" + hex.EncodeToString(second[:])
}

// Matches reports whether data has the strongest of the given digests, as agents check it.
func Matches(data []byte, digests string) bool {
	ok := false
	for digest := range strings.SplitSeq(digests, ";") {
		algorithm, want, found := strings.Cut(digest, ":")
		if !found {
			algorithm, want = "sha1", digest
		}
		var got string
		switch algorithm {
		case "sha1":
			sum := sha1.Sum(data)
			got = hex.EncodeToString(sum[:])
		case "sha256":
			sum := sha256.Sum256(data)
			got = hex.EncodeToString(sum[:])
		case "sha512":
			sum := sha512.Sum512(data)
			got = hex.EncodeToString(sum[:])
		}
		if got != want {
			return false
		}
		ok = true
	}
	return ok
}

// Get returns a blob.
func (s *Server) Get(id string) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	data, ok := s.blobs[id]
	return data, ok
}

// Requests returns how often it was asked, by keys such as "GET signed" and "PUT plain".
func (s *Server) Requests() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	counts := map[string]int{}
	for key, n := range s.requests {
		counts[key] = n
	}
	return counts
}

// ServeHTTP answers GET and PUT of /<xx>/<id>, signed or with basic authentication.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path, signed := strings.CutPrefix(r.URL.Path, "/signed/")
	kind := "signed"
	if !signed {
		path, kind = strings.TrimPrefix(r.URL.Path, "/"), "plain"
	}
	s.mu.Lock()
	s.requests[r.Method+" "+kind]++
	s.mu.Unlock()
	if signed && !s.signedBy(r, path) {
		http.Error(w, "signature", http.StatusForbidden)
		return
	}
	if !signed && !s.authorized(r) {
		w.Header().Set("WWW-Authenticate", `Basic realm="blobstore"`)
		http.Error(w, "credentials", http.StatusUnauthorized)
		return
	}
	id := path[strings.LastIndexByte(path, '/')+1:]
	if id == "" || path != prefixed(id) {
		http.Error(w, "path", http.StatusNotFound)
		return
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		data, ok := s.Get(id)
		if !ok {
			http.Error(w, "no such blob", http.StatusNotFound)
			return
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	case http.MethodPut:
		data, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, "body", http.StatusBadRequest)
			return
		}
		s.mu.Lock()
		s.blobs[id] = data
		s.mu.Unlock()
		w.WriteHeader(http.StatusCreated)
	default:
		http.Error(w, "method", http.StatusMethodNotAllowed)
	}
}

func (s *Server) authorized(r *http.Request) bool {
	user, password, ok := r.BasicAuth()
	return ok && user == s.user && subtle.ConstantTimeCompare([]byte(password), []byte(s.password)) == 1
}

func (s *Server) signedBy(r *http.Request, path string) bool {
	query := r.URL.Query()
	at, err1 := strconv.ParseInt(query.Get("ts"), 10, 64)
	life, err2 := strconv.ParseInt(query.Get("e"), 10, 64)
	if err1 != nil || err2 != nil || time.Now().Unix() > at+life {
		return false
	}
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	return hmac.Equal([]byte(query.Get("st")), []byte(s.signature(method, path, at, life)))
}
