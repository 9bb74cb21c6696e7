package blobstore

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"cambium/internal/blob"
	"cambium/internal/secret"
)

// TestExternalPrograms: failed calls are retried up to three times, a missing blob is not, and no secret reaches
// arguments or errors, even if the program prints it.
func TestExternalPrograms(t *testing.T) {
	path, backing, d := externalProgram(t, "s3"), t.TempDir(), dirs(t)
	store, err := New(Options{Provider: "s3", SearchPath: path, Dirs: d, Log: entry(t), Backoff: quick,
		Options: options(t, map[string]any{"store": backing, "nested": map[string]any{"secret_access_key": "canary-key"}})})
	if err != nil {
		t.Fatal(err)
	}
	faults := func(n int) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(backing, "faults"), []byte(strings.Repeat("x\n", n)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	calls := func() int {
		text, _ := os.ReadFile(filepath.Join(path, "arguments"))
		return bytes.Count(text, []byte("\n"))
	}
	content := noise(100_000)
	produce := func(w io.Writer) error {
		_, err := w.Write(content)
		return err
	}
	faults(2)
	id, _, err := store.Put(t.Context(), produce)
	if err != nil || calls() != 3 {
		t.Fatalf("put: got %v after %d calls, want success with the third", err, calls())
	}
	faults(2)
	got, err := read(t.Context(), store, blob.Ref{ID: id, Digest: digestOf(t, content)})
	if err != nil || !bytes.Equal(got, content) || calls() != 6 {
		t.Errorf("get: got %d bytes, %v after %d calls", len(got), err, calls()-3)
	}
	faults(3)
	_, err = store.Open(t.Context(), blob.Ref{ID: id, Digest: digestOf(t, content)})
	if err == nil || strings.Contains(err.Error(), "canary") ||
		!strings.Contains(err.Error(), "request signed with <redacted> was refused") {
		t.Errorf("got %v, want the program's output without the secret", err)
	}
	faults(0)
	before := calls()
	if _, err := store.Open(t.Context(), blob.Ref{ID: "missing", Digest: digestOf(t, nil)}); err == nil ||
		calls() != before+1 {
		t.Errorf("missing: got %v after %d calls, want one", err, calls()-before)
	}
	if left, _ := os.ReadDir(d.Tmp()); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	if _, err := store.Open(t.Context(), blob.Ref{ID: "-c", Digest: digestOf(t, nil)}); err == nil {
		t.Error("an id that is an option: got no error")
	}
}

// TestProxyOfTheEnvironment runs in a separate process, since net/http reads the variables once.
func TestProxyOfTheEnvironment(t *testing.T) {
	if address := os.Getenv("BLOB_URL"); address != "" {
		store, err := New(Options{Provider: "dummy", Dirs: dirs(t), Log: entry(t), Backoff: quick})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := read(t.Context(), store, blob.Ref{SignedURL: secret.NewURL(address),
			Digest: digestOf(t, []byte("blob"))}); err != nil {
			t.Fatal(err)
		}
		return
	}
	asked := make(chan string, 10)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.RequestURI
		io.WriteString(w, "blob")
	}))
	t.Cleanup(proxy.Close)
	for _, c := range []struct {
		direct string
		works  bool
	}{{"", true}, {"blobs.invalid", false}} {
		child := exec.Command(os.Args[0], "-test.run=^TestProxyOfTheEnvironment$")
		child.Env = append(os.Environ(), "BLOB_URL=http://blobs.invalid/x", "HTTP_PROXY="+proxy.URL, "NO_PROXY="+c.direct)
		out, err := child.CombinedOutput()
		proxied := len(asked) == 1 && <-asked == "http://blobs.invalid/x"
		if (err == nil) != c.works || proxied != c.works {
			t.Errorf("NO_PROXY=%q: proxied %v, %v: %s", c.direct, proxied, err, out)
		}
	}
}
