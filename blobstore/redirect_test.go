package blobstore

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"cambium/internal/blob"
	"cambium/internal/secret"
)

// TestRedirectsCarryNothingAway: the headers of a signed URL contain encryption keys, and the URL itself is a secret.
func TestRedirectsCarryNothingAway(t *testing.T) {
	var other http.Header
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		other = r.Header.Clone()
		_, _ = io.WriteString(w, "content")
	}))
	defer elsewhere.Close()
	var same http.Header
	mux := http.NewServeMux()
	mux.HandleFunc("/away", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, strings.Replace(elsewhere.URL, "127.0.0.1", "localhost", 1)+"/x", http.StatusTemporaryRedirect)
	})
	mux.HandleFunc("/near", func(w http.ResponseWriter,
		r *http.Request) {
		http.Redirect(w, r, "/here", http.StatusFound)
	})
	mux.HandleFunc("/here", func(w http.ResponseWriter, r *http.Request) {
		same = r.Header.Clone()
		_, _ = io.WriteString(w, "content")
	})
	mux.HandleFunc("/bad", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "http://[s3cret-in-location")
		w.WriteHeader(http.StatusFound)
	})
	first := httptest.NewServer(mux)
	defer first.Close()
	store, err := New(Options{Provider: "dummy", Dirs: dirs(t), Backoff: quick, Log: entry(t)})
	if err != nil {
		t.Fatal(err)
	}
	get := func(path string) error {
		content, err := store.Open(t.Context(), blob.Ref{SignedURL: secret.NewURL(first.URL + path + "?signature=s3cret"),
			Digest: digestOf(t, []byte("content")),
			Headers: map[string]secret.String{"X-Amz-Server-Side-Encryption-Customer-Key": secret.New("s3cret-key"),
				"Authorization": secret.New("s3cret-auth")}})
		if err != nil {
			return err
		}
		defer func() { _ = content.Close() }()
		_, err = io.ReadAll(content)
		return err
	}
	if err := get("/away"); err != nil {
		t.Fatal(err)
	}
	for name, values := range other {
		if strings.Contains(strings.Join(values, " "), "s3cret") || name == "Referer" {
			t.Errorf("another host got %s: %s", name, values)
		}
	}
	if err := get("/near"); err != nil {
		t.Fatal(err)
	}
	if same.Get("X-Amz-Server-Side-Encryption-Customer-Key") != "s3cret-key" {
		t.Error("the same host did not get the header")
	}
	if same.Get("Referer") != "" {
		t.Errorf("Referer: %s", same.Get("Referer"))
	}
	if err := get("/bad"); err == nil || strings.Contains(err.Error(), "s3cret") ||
		!strings.Contains(err.Error(), "cannot be parsed") {
		t.Errorf("got %v, want an error without the address", err)
	}
}
