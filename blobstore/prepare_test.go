package blobstore

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cambium/internal/secret"
)

// TestPrepare: a store is replaced only by a valid one, and only on request. Without a store, each call returns the
// reason.
func TestPrepare(t *testing.T) {
	d := dirs(t)
	local := func(path string) Options {
		return Options{Provider: "local", Options: secret.NewJSON([]byte(fmt.Sprintf(`{"blobstore_path":%q}`, path))),
			Dirs: d, Log: entry(t), Backoff: quick}
	}
	put := func(s *Store) (id string, err error) {
		id, _, err = s.Put(t.Context(), func(w io.Writer) error { _, err := io.WriteString(w, "content"); return err })
		return id, err
	}
	var s Store
	if _, err := put(&s); err == nil || err.Error() != "there is no blobstore" {
		t.Errorf("before the first store: %v", err)
	}
	if _, err := s.Prepare(Options{Provider: "local", Dirs: d, Log: entry(t)}); err == nil {
		t.Fatal("a store without a path is accepted")
	}
	if _, err := put(&s); err == nil || !strings.Contains(err.Error(), "blobstore_path is missing") {
		t.Errorf("without a store: %v, want why", err)
	}
	if err := s.Sweep(); err != nil {
		t.Errorf("sweeping without a store: %v", err)
	}

	first, second := t.TempDir(), t.TempDir()
	use, err := s.Prepare(local(first))
	if err != nil {
		t.Fatal(err)
	}
	use()
	id, err := put(&s)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Prepare(Options{Provider: "local", Dirs: d, Log: entry(t)}); err == nil {
		t.Fatal("a store without a path is accepted")
	}
	use, err = s.Prepare(local(second))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{first: true, second: false} {
		if got := exists(t, path, id); got != want {
			t.Errorf("%s is in %s: %v, want %v", id, path, got, want)
		}
	}
	use()
	if id, err = put(&s); err != nil || !exists(t, second, id) {
		t.Errorf("after the replacement: %v", err)
	}
}

func exists(t *testing.T, dir, id string) bool {
	t.Helper()
	f, err := (&Dir{Path: dir}).Open(id)
	if err != nil {
		return false
	}
	_ = f.Close()
	return true
}

// TestSweep: what a crash left of unfinished blobs and downloads is removed, and complete blobs stay.
func TestSweep(t *testing.T) {
	d := dirs(t)
	options := secret.NewJSON(fmt.Appendf(nil, `{"blobstore_path":%q}`, t.TempDir()))
	s, err := New(Options{Provider: "local", Options: options, Dirs: d, Log: entry(t), Backoff: quick})
	if err != nil {
		t.Fatal(err)
	}
	left := map[string]bool{}
	for _, dir := range []string{d.Tmp(), s.used.sensitive.Path, s.used.blobs.Path} {
		left[filepath.Join(dir, ".blob.cambium-tmp-ABC")] = false
		left[filepath.Join(dir, "complete")] = true
	}
	left[filepath.Join(s.used.tmp, "blob-1")] = false
	for path := range left {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := s.Sweep(); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range left {
		if _, err := os.Lstat(path); (err == nil) != want {
			t.Errorf("%s is there: %v, want %v", path, err == nil, want)
		}
	}
}
