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
	defer func(saved []string) { packages = saved }(packages)
	packages = append(append([]string(nil), packages...), "vim")
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
	outside := t.TempDir()
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	const unit = "etc/systemd/system/x.service"
	for _, content := range []string{"one", "two", ""} {
		if err := put(root, unit, content); err != nil {
			t.Fatal(err)
		}
	}
	if target, err := root.Readlink(unit); err != nil || target != "/dev/null" {
		t.Errorf("a masked unit links to %q (%v), want /dev/null", target, err)
	}
	if err := root.Symlink(outside, "opt"); err != nil {
		t.Fatal(err)
	}
	for _, content := range []string{"one", ""} {
		if err := put(root, "opt/x/y", content); err == nil {
			t.Error("a file is written through a link that leads out of the tree")
		}
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("outside of the tree are %v, %v", left, err)
	}
}

// Trees hold set-user-ID programs, which are not for other users of the host.
func TestTreesAreClosedToOthers(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	c := Cache{Dir: dir}
	mode := func(path string) os.FileMode {
		t.Helper()
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Mode().Perm()
	}
	// What a former version has left, and what is the operator's.
	old := []string{c.Path(), dir + "/tree-buster-1", dir + "/stemcell-tree-1", dir + "/tree-bookworm-2.new"}
	other := filepath.Join(dir, "photos")
	for _, path := range append([]string{dir, other}, old...) {
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, path := range old {
		if got := mode(path); got != 0o700 {
			t.Errorf("%s has mode %o, want 700", path, got)
		}
	}
	if got := mode(other); got != 0o755 {
		t.Errorf("%s, which is not ours, has mode %o now", other, got)
	}
	fresh := filepath.Join(t.TempDir(), "new")
	if err := Private(fresh); err != nil || mode(fresh) != 0o700 {
		t.Errorf("a new cache has mode %o, %v; want 700", mode(fresh), err)
	}
}

// The tree is built where no other user gets in, and is closed when it is there.
func TestTreeIsClosedWhileItIsBuilt(t *testing.T) {
	bin := t.TempDir()
	seen := filepath.Join(t.TempDir(), "seen")
	for name, script := range map[string]string{
		"mmdebstrap": "for dir; do :; done\nstat -c %a \"${dir%/*}\" >" + seen + "\nmkdir -m 755 -p \"$dir/etc\"\n",
		"systemctl":  "",
	} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	c := Cache{Dir: t.TempDir()}
	path, err := c.Ensure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	during, err := os.ReadFile(seen)
	if err != nil || string(during) != "700\n" {
		t.Errorf("the directory around the tree has mode %q, %v; want 700", during, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the tree has mode %v, %v; want 700", info.Mode(), err)
	}
	if left, err := filepath.Glob(path + ".new"); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}
