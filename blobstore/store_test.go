package blobstore

import (
	"bytes"
	"context"
	"crypto/sha1"
	"crypto/sha512"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"cambium/internal/blob"
	"cambium/internal/retry"
	"cambium/internal/secret"
	"cambium/internal/vcap"

	"github.com/sirupsen/logrus"
)

var quick = retry.Backoff{Min: time.Millisecond}

func entry(t *testing.T) *logrus.Entry {
	l := logrus.New()
	l.SetOutput(t.Output())
	return logrus.NewEntry(l)
}

func dirs(t *testing.T) vcap.Dirs {
	t.Helper()
	d := vcap.New(t.TempDir())
	for _, path := range []string{d.Tmp(), d.Blobs(), d.SensitiveBlobs(), d.BoshEtc()} {
		if err := os.MkdirAll(path, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

func digestOf(t *testing.T, content []byte) blob.Digest {
	t.Helper()
	d, err := blob.ParseDigest(fmt.Sprintf("%x;sha512:%x", sha1.Sum(content), sha512.Sum512(content)))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func noise(size int) []byte {
	content := make([]byte, size)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range content {
		content[i] = byte(rng.Uint32())
	}
	return content
}

func options(t *testing.T, v any) secret.JSON {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return secret.NewJSON(raw)
}

// server is a DAV server with basic auth and signed URLs that can misbehave.
type server struct {
	mu    sync.Mutex
	blobs map[string][]byte
	// cut ends that many answers in the middle; ignoreRange answers everything from the start;
	// busy answers 503.
	cut, busy   int
	ignoreRange bool
	requests    []string
	headers     []http.Header
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, r.Method+" "+r.URL.Path+" "+r.Header.Get("Range"))
	s.headers = append(s.headers, r.Header.Clone())
	key := strings.TrimPrefix(r.URL.Path, "/signed")
	if key == r.URL.Path {
		if user, password, ok := r.BasicAuth(); !ok || user != "u" || password != "canary-pw" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
	} else if r.URL.Query().Get("st") != "canary-hmac" {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	if s.busy > 0 {
		s.busy--
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	if r.Method == http.MethodPut {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		s.blobs[key] = body
		w.WriteHeader(http.StatusCreated)
		return
	}
	content, ok := s.blobs[key]
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	if s.ignoreRange {
		r.Header.Del("Range")
	}
	if s.cut > 0 {
		s.cut--
		var from int
		fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from)
		w.Header().Set("Content-Length", fmt.Sprint(len(content)-from))
		if from > 0 {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(content)-1, len(content)))
			w.WriteHeader(http.StatusPartialContent)
		}
		w.Write(content[from : from+(len(content)-from)/2])
		w.(http.Flusher).Flush()
		conn, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			conn.Close()
		}
		return
	}
	http.ServeContent(w, r, "", time.Unix(1, 0), bytes.NewReader(content))
}

func dave(t *testing.T) (*server, *httptest.Server) {
	t.Helper()
	s := &server{blobs: map[string][]byte{}}
	web := httptest.NewServer(s)
	t.Cleanup(web.Close)
	return s, web
}

// externalProgram installs a blobstore program like those of stemcells, which reads its configuration and copies files.
// It fails if others can read the configuration, or if its arguments contain a secret. It exits with 3 for a missing
// blob, and with 1 as often as the file "faults" has lines, quoting its secret.
func externalProgram(t *testing.T, provider string) (searchPath string) {
	t.Helper()
	dir := t.TempDir()
	script := `#!/bin/sh
set -e
echo "$@" >>"$(dirname "$0")/arguments"
case "$*" in *canary*) echo "a secret in the arguments" >&2; exit 2 ;; esac
test "$1" = -c
test "$(stat -c %a "$2")" = 600 || { echo "others can read $2" >&2; exit 2; }
store=$(sed 's/.*"store":"\([^"]*\)".*/\1/' "$2")
if [ -s "$store/faults" ]; then
	sed -i 1d "$store/faults"
	echo "request signed with canary-key was refused" >&2
	exit 1
fi
case $3 in
get) test -e "$store/$4" || { echo "no blob $4" >&2; exit 3; }; cp "$store/$4" "$5" ;;
put) test "$#" = 5; cp -L "$4" "$store/$5" ;;
*) exit 2 ;;
esac
`
	if err := os.WriteFile(filepath.Join(dir, "bosh-blobstore-"+provider), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

var uuid4 = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

// TestConformance runs the same cases against every store.
// Contract J.10.
func TestConformance(t *testing.T) {
	stores := map[string]func(*testing.T) Options{
		"local": func(t *testing.T) Options {
			return Options{Provider: "local", Options: options(t, map[string]string{"blobstore_path": t.TempDir()})}
		},
		"local of create-env": func(t *testing.T) Options {
			path := map[string]string{"blobstore_path": vcap.CreateEnvBlobs}
			return Options{Provider: "local", Options: options(t, path)}
		},
		"dav": func(t *testing.T) Options {
			_, web := dave(t)
			return Options{Provider: "dav", Options: options(t,
				map[string]string{"endpoint": web.URL + "/", "user": "u", "password": "canary-pw"})}
		},
	}
	for provider, secrets := range map[string]map[string]any{
		"s3": {"bucket_name": "b", "credentials_source": "static", "access_key_id": "canary-id",
			"secret_access_key": "canary-key"},
		"gcs":           {"bucket_name": "b", "json_key": "canary-key", "encryption_key": "canary-encryption"},
		"azure-storage": {"container_name": "c", "account_name": "a", "account_key": "canary-key"},
	} {
		stores[provider] = func(t *testing.T) Options {
			secrets["store"] = t.TempDir()
			return Options{Provider: provider, SearchPath: externalProgram(t, provider), Options: options(t, secrets)}
		}
	}
	for name, make := range stores {
		t.Run(name, func(t *testing.T) {
			o := make(t)
			o.Dirs, o.Log, o.Backoff = dirs(t), entry(t), quick
			store, err := New(o)
			if err != nil {
				t.Fatal(err)
			}
			for _, size := range []int{0, 1, 3 << 20} {
				content := noise(size)
				id, digest, err := store.Put(t.Context(), func(w io.Writer) error {
					_, err := w.Write(content)
					return err
				})
				if err != nil {
					t.Fatalf("put of %d bytes: %v", size, err)
				}
				if want := fmt.Sprintf("%x", sha1.Sum(content)); digest != want || !uuid4.MatchString(id) {
					t.Errorf("put: got id %q and digest %q, want a version 4 UUID and %q", id, digest, want)
				}
				got, err := read(t.Context(), store, blob.Ref{ID: id, Digest: digestOf(t, content)})
				if err != nil || !bytes.Equal(got, content) {
					t.Errorf("get of %d bytes: got %d bytes, %v", size, len(got), err)
				}
				_, err = read(t.Context(), store, blob.Ref{ID: id, Digest: digestOf(t, []byte("other"))})
				if !errors.As(err, new(*blob.Mismatch)) {
					t.Errorf("get with another digest: got %v, want a mismatch", err)
				}
			}
			if _, err := read(t.Context(), store, blob.Ref{ID: "missing", Digest: digestOf(t, nil)}); !errors.Is(err,
				ErrNotFound) {
				t.Errorf("get of a missing blob: got %v", err)
			}
			fault := errors.New("the producer failed")
			if _, _, err := store.Put(t.Context(), func(io.Writer) error { return fault }); !errors.Is(err, fault) {
				t.Errorf("put: got %v, want the producer's error", err)
			}
			if _, err := store.Open(t.Context(), blob.Ref{ID: "x"}); !errors.Is(err, blob.ErrNoDigest) {
				t.Errorf("get without a digest: got %v", err)
			}
			for _, dir := range []string{o.Dirs.Tmp(), o.Dirs.SensitiveBlobs()} {
				if left, _ := os.ReadDir(dir); len(left) > 0 {
					t.Errorf("left in %s: %v", dir, left)
				}
			}
			if temp, _ := filepath.Glob(filepath.Join(o.Dirs.Blobs(), ".*")); len(temp) > 0 {
				t.Errorf("left: %v", temp)
			}
		})
	}
}

func read(ctx context.Context, s *Store, ref blob.Ref) ([]byte, error) {
	r, err := s.Open(ctx, ref)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

func davStore(t *testing.T) (*server, *Store, vcap.Dirs, string) {
	t.Helper()
	s, web := dave(t)
	d := dirs(t)
	store, err := New(Options{Provider: "dav", Dirs: d, Log: entry(t), Backoff: quick,
		Options: options(t, map[string]string{"endpoint": web.URL, "user": "u", "password": "canary-pw"})})
	if err != nil {
		t.Fatal(err)
	}
	return s, store, d, web.URL
}

// davPath returns the path at which the Director stores a blob.
func davPath(id string) string { return fmt.Sprintf("/%02x/%s", sha1.Sum([]byte(id))[0], id) }

// Contract J.8.
func TestDownloadResumes(t *testing.T) {
	content := noise(1 << 20)
	for _, c := range []struct {
		name        string
		ignoreRange bool
		cut, busy   int
		fails       bool
	}{
		{name: "cut five times, with progress in between", cut: 5},
		{name: "cut by a server without ranges", cut: 2, ignoreRange: true},
		{name: "busy twice", busy: 2},
		{name: "busy for good", busy: 100, fails: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, store, _, _ := davStore(t)
			s.cut, s.busy, s.ignoreRange = c.cut, c.busy, c.ignoreRange
			s.blobs[davPath("b1")] = content
			got, err := read(t.Context(), store, blob.Ref{ID: "b1", Digest: digestOf(t, content)})
			if c.fails {
				if err == nil {
					t.Error("got no error")
				}
				return
			}
			if err != nil || !bytes.Equal(got, content) {
				t.Fatalf("got %d bytes, %v; requests %q", len(got), err, s.requests)
			}
			if c.cut > 0 && !c.ignoreRange && !strings.Contains(s.requests[1], "bytes=") {
				t.Errorf("the second request has no range: %q", s.requests)
			}
		})
	}
}

func TestRefusalsAreNotRepeated(t *testing.T) {
	s, store, _, url := davStore(t)
	_, err := read(t.Context(), store, blob.Ref{ID: "nope", Digest: digestOf(t, nil)})
	if !errors.Is(err, ErrNotFound) || len(s.requests) != 1 {
		t.Errorf("got %v after %d requests, want ErrNotFound after one", err, len(s.requests))
	}
	_, err = store.Open(t.Context(), blob.Ref{SignedURL: secret.NewURL(url + "/signed/aa/x?st=canary-wrong"),
		Digest: digestOf(t, nil)})
	if err == nil || strings.Contains(err.Error(), "canary") || !strings.Contains(err.Error(), "403") {
		t.Errorf("got %v, want an error with the status and without the signature", err)
	}
	_, err = store.Open(t.Context(), blob.Ref{SignedURL: secret.NewURL("http://127.0.0.1:1/x?st=canary-hmac"),
		Digest: digestOf(t, nil)})
	if err == nil || strings.Contains(err.Error(), "canary") {
		t.Errorf("got %v, want an error without the signature", err)
	}
}

func TestSignedURLs(t *testing.T) {
	s, store, _, url := davStore(t)
	address := secret.NewURL(url + "/signed/ab/blob?st=canary-hmac&ts=1")
	headers := map[string]secret.String{"x-goog-encryption-key": secret.New("canary-key"),
		"X-Ms-Blob-Type": secret.New("blockblob")}
	content := noise(100_000)
	s.busy = 1
	digest, err := store.PutSigned(t.Context(), address, headers, func(w io.Writer) error {
		_, err := w.Write(content)
		return err
	})
	if want := fmt.Sprintf("%x;sha512:%x", sha1.Sum(content), sha512.Sum512(content)); err != nil || digest != want {
		t.Fatalf("got %q, %v; want %q", digest, err, want)
	}
	put := s.headers[len(s.headers)-1]
	for name, want := range map[string]string{"Content-Length": "100000", "Expect": "100-continue", "Accept": "*/*",
		"X-Goog-Encryption-Key": "canary-key", "X-Ms-Blob-Type": "blockblob"} {
		if put.Get(name) != want {
			t.Errorf("%s: got %q, want %q", name, put.Get(name), want)
		}
	}
	// A signed URL wins over an id.
	got, err := read(t.Context(), store, blob.Ref{ID: "other", SignedURL: address, Headers: headers,
		Digest: digestOf(t, content)})
	if err != nil || !bytes.Equal(got, content) {
		t.Fatalf("got %d bytes, %v", len(got), err)
	}
	if _, err := store.Open(t.Context(), blob.Ref{Digest: digestOf(t, nil)}); err == nil {
		t.Error("neither URL nor id: got no error")
	}
}

// Contract J.9.
func TestCascade(t *testing.T) {
	s, store, d, _ := davStore(t)
	content := []byte("rendered templates")
	s.blobs[davPath("b")] = content
	ref := blob.Ref{ID: "b", Digest: digestOf(t, content)}
	if err := store.used.sensitive.WriteChecked("b", bytes.NewReader(content), ref.Digest); err != nil {
		t.Fatal(err)
	}
	if got, err := read(t.Context(), store, ref); err != nil || !bytes.Equal(got, content) || len(s.requests) != 0 {
		t.Errorf("got %q, %v after %d requests, want the local copy", got, err, len(s.requests))
	}
	other := strings.NewReader("x")
	if err := store.used.sensitive.WriteChecked("c", other, ref.Digest); !errors.As(err, new(*blob.Mismatch)) {
		t.Errorf("got %v, want a mismatch", err)
	}
	info, err := os.Stat(filepath.Join(d.SensitiveBlobs(), "b"))
	if err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("got %v, %v; want mode 0640", info, err)
	}
	// A damaged copy is passed over.
	if err := store.used.sensitive.Write("b", strings.NewReader("damaged")); err != nil {
		t.Fatal(err)
	}
	if got, err := read(t.Context(), store, ref); err != nil || !bytes.Equal(got, content) || len(s.requests) != 1 {
		t.Errorf("got %q, %v after %d requests, want the store's blob", got, err, len(s.requests))
	}
	if err := store.Remove("b"); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(d.SensitiveBlobs()); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	if _, ok := s.blobs[davPath("b")]; !ok {
		t.Error("the store's blob was removed as well")
	}
}

func TestHostileIDs(t *testing.T) {
	_, store, _, _ := davStore(t)
	for _, id := range []string{"", "..", "../x", "/etc/passwd", "a/b", ".hidden", "-c", "tmp", "a\x00b", "a\nb",
		strings.Repeat("x", 300)} {
		if err := store.used.blobs.Write(id, strings.NewReader("x")); !errors.Is(err, errBadID) {
			t.Errorf("write %q: got %v", id, err)
		}
		if _, err := store.used.blobs.Open(id); !errors.Is(err, errBadID) {
			t.Errorf("open %q: got %v", id, err)
		}
	}
}

func TestTLSAuthority(t *testing.T) {
	s := &server{blobs: map[string][]byte{"/ab/x": []byte("x")}}
	web := httptest.NewTLSServer(s)
	t.Cleanup(web.Close)
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: web.Certificate().Raw}))
	open := func(ca string) error {
		store, err := New(Options{Provider: "dav", Dirs: dirs(t), Log: entry(t), Backoff: quick,
			Options: options(t, map[string]any{"tls": map[string]any{"cert": map[string]any{"ca": ca}}})})
		if err != nil {
			return err
		}
		_, err = read(t.Context(), store, blob.Ref{SignedURL: secret.NewURL(web.URL + "/signed/ab/x?st=canary-hmac"),
			Digest: digestOf(t, []byte("x"))})
		return err
	}
	if err := open(ca); err != nil {
		t.Errorf("with its authority: %v", err)
	}
	if err := open(""); err == nil {
		t.Error("without its authority: got no error")
	}
	if err := open("nonsense"); err == nil {
		t.Error("with an invalid authority: got no error")
	}
}

func TestStalledDownloadIsTakenUpAgain(t *testing.T) {
	content := noise(300_000)
	release := make(chan struct{})
	first := true
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if first {
			first = false
			w.Header().Set("Content-Length", fmt.Sprint(len(content)))
			w.Write(content[:1000])
			w.(http.Flusher).Flush()
			<-release
			return
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	}))
	t.Cleanup(web.Close)
	t.Cleanup(func() { close(release) })
	store, err := New(Options{Provider: "dummy", Dirs: dirs(t), Log: entry(t), Backoff: quick})
	if err != nil {
		t.Fatal(err)
	}
	store.used.web.stall = 50 * time.Millisecond
	got, err := read(t.Context(), store, blob.Ref{SignedURL: secret.NewURL(web.URL), Digest: digestOf(t, content)})
	if err != nil || !bytes.Equal(got, content) {
		t.Errorf("got %d bytes, %v", len(got), err)
	}
}

func TestProvidersAndTheirFiles(t *testing.T) {
	d := dirs(t)
	path := externalProgram(t, "acme")
	if _, err := New(Options{Provider: "acme", SearchPath: path, Dirs: d, Log: entry(t),
		Options: secret.NewJSON([]byte(`{"store":"canary"}`))}); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(d.BoshEtc(), "blobstore-acme.json")
	info, err := os.Stat(config)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got %v, %v; want mode 0600", info, err)
	}
	if content, _ := os.ReadFile(config); string(content) != `{"store":"canary"}` {
		t.Errorf("got %q", content)
	}
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{Provider: "nope", SearchPath: path}, "bosh-blobstore-nope is not installed"},
		{Options{Provider: "../x"}, "invalid provider name"},
		{Options{Provider: "local"}, "blobstore_path is missing"},
		{Options{Provider: "dav", Options: secret.NewJSON([]byte(`["canary"]`))}, "cannot be decoded"},
	} {
		c.o.Dirs, c.o.Log = d, entry(t)
		if _, err := New(c.o); err == nil || !strings.Contains(err.Error(), c.want) ||
			strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: got %v, want %q", c.o.Provider, err, c.want)
		}
	}
}
