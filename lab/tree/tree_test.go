package tree

import (
	"os"
	"path/filepath"
	"testing"
)

func TestPathFollowsTheRecipe(t *testing.T) {
	c := Cache{Dir: t.TempDir()}
	before := c.Path()
	if second := c.Path(); second != before {
		t.Errorf("the same recipe gives %s and %s", before, second)
	}
	defer func(saved []string) { Packages = saved }(Packages)
	Packages = append(append([]string(nil), Packages...), "vim")
	if after := c.Path(); after == before {
		t.Errorf("another recipe gives the same path %s", after)
	}
}

func TestEnsureTakesWhatIsThere(t *testing.T) {
	c := Cache{Dir: t.TempDir()}
	if c.Built() {
		t.Error("an empty cache has a tree")
	}
	if err := os.Mkdir(c.Path(), 0o755); err != nil {
		t.Fatal(err)
	}
	if path, err := c.Ensure(t.Context()); err != nil || path != c.Path() {
		t.Errorf("Ensure = %s, %v, want the tree that is there", path, err)
	}
}

func TestPut(t *testing.T) {
	dir := t.TempDir()
	unit := filepath.Join(dir, "etc/systemd/system/x.service")
	for _, content := range []string{"one", "two", ""} {
		if err := put(unit, content); err != nil {
			t.Fatal(err)
		}
	}
	if target, err := os.Readlink(unit); err != nil || target != "/dev/null" {
		t.Errorf("a masked unit links to %q (%v), want /dev/null", target, err)
	}
}
