package bundle

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func collection(t *testing.T) Collection {
	t.Helper()
	base := t.TempDir()
	return Collection{Store: filepath.Join(base, "data", "packages"), Links: filepath.Join(base, "packages"), Mode: 0o755,
		Owner: Owner{os.Geteuid(), os.Getegid()}}
}

func install(t *testing.T, c Collection, b Bundle, content string) {
	t.Helper()
	s, err := c.Stage(b)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Unpack(t.Context(), bytes.NewReader(pack(t, file("f", content))), rules(s.Root)); err != nil {
		t.Fatal(err)
	}
	if c.Installed(b) && content != "again" {
		t.Fatal("installed before it was committed")
	}
	if err := Commit([]*Staged{s}); err != nil {
		t.Fatal(err)
	}
}

func TestInstallIsAllOrNothing(t *testing.T) {
	c := collection(t)
	b := Bundle{"p", "h1"}
	s, err := c.Stage(b)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Root.WriteFile("half", []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	// The agent is killed here: another one sweeps and installs.
	if c.Installed(b) {
		t.Error("half a bundle counts as installed")
	}
	if err := c.Sweep(); err != nil {
		t.Fatal(err)
	}
	if got := tree(t, filepath.Join(c.Store, "p")); len(got) != 0 {
		t.Errorf("left after the sweep: %v", got)
	}
	install(t, c, b, "one")
	if !c.Installed(b) {
		t.Error("not installed")
	}
	install(t, c, b, "again")
	if got, _ := os.ReadFile(filepath.Join(c.Dir(b), "f")); string(got) != "one" {
		t.Errorf("got %q: an installed bundle was replaced", got)
	}
}

func TestPrune(t *testing.T) {
	c := collection(t)
	for _, b := range []Bundle{{"p", "h1"}, {"p", "h2"}, {"q", "h1"}} {
		install(t, c, b, b.Hash)
	}
	for range 2 {
		if err := c.Prune(t.Context(), []Bundle{{"p", "h2"}}); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(tree(t, c.Store), " "); got != "p drwxr-xr-x p/h2 drwxr-xr-x p/h2/f -rw-r--r-- h2" {
			t.Errorf("got %s", got)
		}
	}
}

func TestSwitchRollsBack(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, target := range map[string]string{"changed": "old", "dropped": "old", "kept": "same"} {
		if err := os.Symlink(target, at(name)); err != nil {
			t.Fatal(err)
		}
	}
	before := strings.Join(tree(t, dir), "\n")
	var s Switch
	for _, err := range []error{s.Set(at("changed"), "new"), s.Set(at("added"), "new"), s.Set(at("kept"), "same"),
		s.Drop(at("dropped")), s.Drop(at("missing")), s.Sync()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	want := "added Lrwxrwxrwx -> new\nchanged Lrwxrwxrwx -> new\nkept Lrwxrwxrwx -> same"
	if got := strings.Join(tree(t, dir), "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if err := s.Rollback(); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(tree(t, dir), "\n"); got != before {
		t.Errorf("after the rollback: got\n%s\nwant\n%s", got, before)
	}
	if err := os.WriteFile(at("file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Set(at("file"), "x"); err == nil {
		t.Error("a file was replaced by a link")
	}
}
