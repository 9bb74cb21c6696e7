// Package blobstore is a Director's blobstore: the part of WebDAV that agents use, over TLS, with basic authentication
// or signed URLs.
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
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"cambium/internal/testca"
	"cambium/lab/room"

	"github.com/google/uuid"
)

// signatureLife is the validity period of a signed URL.
const signatureLife = 24 * time.Hour

// Server stores blobs as files.
type Server struct {
	endpoint string
	ca       []byte
	user     string
	password string
	secret   []byte
	http     *http.Server
	dir      *os.Root // has a file for each blob, named by its id

	mu sync.Mutex
	// requests counts requests by method and kind of URL.
	requests map[string]int
}

// Options configures a blobstore.
type Options struct {
	Dir string // the directory of the blobs, which is kept when the server is closed
	CA  *testca.CA
	// Secret signs URLs, for callers that sign their own; random if empty.
	Secret string
}

// Start serves on the listener, which the server closes. The certificate is for the listener's address.
func Start(listener net.Listener, o Options) (*Server, error) {
	host, _, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		return nil, err
	}
	// Not a NATS server's name, but a certificate of the same deployment.
	pair, err := o.CA.Issue(testca.Request{CommonName: host, Hosts: []string{host}})
	if err != nil {
		return nil, err
	}
	cert, err := pair.TLS()
	if err != nil {
		return nil, err
	}
	if o.Secret == "" {
		o.Secret = rand.Text()
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, err
	}
	dir, err := os.OpenRoot(o.Dir)
	if err != nil {
		return nil, err
	}
	s := &Server{endpoint: "https://" + listener.Addr().String(), ca: o.CA.PEM, user: "agent", password: rand.Text(),
		secret: []byte(o.Secret), dir: dir, requests: map[string]int{}}
	s.http = &http.Server{Handler: s, ReadHeaderTimeout: 30 * time.Second, ErrorLog: log.New(io.Discard, "", 0),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}}
	go func() { _ = s.http.ServeTLS(listener, "", "") }()
	return s, nil
}

// Close stops the server and keeps the blobs.
func (s *Server) Close() {
	_ = s.http.Close()
	_ = s.dir.Close()
}

// Options returns the blobstore section of the settings. A Director that uses signed URLs leaves out the credentials.
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

// SignedURL returns a URL to fetch ("GET") or store ("PUT") a blob.
func (s *Server) SignedURL(method, id string) string {
	now, life := time.Now().Unix(), int64(signatureLife.Seconds())
	query := url.Values{"st": {s.signature(method, prefixed(id), now, life)}, "ts": {strconv.FormatInt(now, 10)},
		"e": {strconv.FormatInt(life, 10)}}
	return s.endpoint + "/signed/" + prefixed(id) + "?" + query.Encode()
}

func (s *Server) signature(method, path string, at, life int64) string {
	mac := hmac.New(sha256.New, s.secret)
	_, _ = fmt.Fprintf(mac, "%s%s%d%d", method, path, at, life)
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// Put stores a blob. It returns its new id and its digests in a Director's format.
func (s *Server) Put(data []byte) (id, digest string, err error) {
	id = uuid.NewString()
	return id, Digest(data), s.store(id, bytes.NewReader(data))
}

// store writes all of a blob, or nothing.
func (s *Server) store(id string, from io.Reader) error {
	temporary := unfinished + rand.Text()
	f, err := s.dir.OpenFile(temporary, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(room.At(s.dir.Name()).Writer(f, maxBlob), from)
	if err = errors.Join(err, f.Close()); err == nil {
		err = s.dir.Rename(temporary, id)
	}
	if err != nil {
		return errors.Join(err, s.dir.Remove(temporary))
	}
	return nil
}

// maxBlob bounds the size of a blob in bytes.
const maxBlob = 64 << 30

// unfinished is the prefix of files for blobs that are being received. No id has this prefix.
const unfinished = ".new-"

// Digest returns the sha1 and sha256 of data in a Director's format.
func Digest(data []byte) string {
	first, second := sha1.Sum(data), sha256.Sum256(data)
	return hex.EncodeToString(first[:]) + ";sha256:" + hex.EncodeToString(second[:])
}

// Matches reports whether data matches the strongest of the digests, as an agent checks it.
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
	data, err := s.dir.ReadFile(id)
	return data, err == nil
}

// Requests returns the number of requests, by keys such as "GET signed" and "PUT plain".
func (s *Server) Requests() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	counts := map[string]int{}
	for key, n := range s.requests {
		counts[key] = n
	}
	return counts
}

// ServeHTTP serves GET, PUT and DELETE of /<xx>/<id>, with a signature or basic authentication.
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
	if id == "" || path != prefixed(id) || strings.HasPrefix(id, ".") {
		http.Error(w, "path", http.StatusNotFound)
		return
	}
	s.answer(w, r, id)
}

// answer performs a request that is authorized.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, id string) {
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		f, err := s.dir.Open(id)
		if err != nil {
			http.Error(w, "no such blob", http.StatusNotFound)
			return
		}
		defer func() { _ = f.Close() }()
		http.ServeContent(w, r, "", time.Time{}, f)
	case http.MethodPut:
		if err := s.store(id, r.Body); errors.Is(err, room.ErrFull) {
			http.Error(w, err.Error(), http.StatusInsufficientStorage)
			return
		} else if err != nil {
			http.Error(w, "body", http.StatusBadRequest)
			return
		}
		w.WriteHeader(http.StatusCreated)
	case http.MethodDelete:
		if err := s.dir.Remove(id); errors.Is(err, os.ErrNotExist) {
			http.Error(w, "no such blob", http.StatusNotFound)
		} else if err != nil {
			http.Error(w, "not removed", http.StatusInternalServerError)
		} else {
			w.WriteHeader(http.StatusNoContent)
		}
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
