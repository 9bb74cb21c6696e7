package blobstore

import (
	"fmt"
	"io"
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
