package image

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"cambium/integration/lab/tree"
)

func TestPruneKeepsWhatIsUsed(t *testing.T) {
	cache := t.TempDir()
	base := filepath.Join(cache, "vm-0123")
	make := func(name string, ago time.Duration) {
		dir := base + name
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		then := time.Now().Add(-ago)
		if err := os.Chtimes(dir, then, then); err != nil {
			t.Fatal(err)
		}
	}
	make("", 48*time.Hour)
	for n := range 3 {
		make(fmt.Sprintf("-agent-new%d", n), time.Minute)
	}
	make("-agent-today", 7*time.Hour)
	make("-agent-morning", 8*time.Hour)
	make("-agent-old", 25*time.Hour)
	make("4567", 8*24*time.Hour)
	make("89ab-agent-x.new", 8*24*time.Hour)
	Cache{Dir: cache}.prune()
	for name, want := range map[string]bool{"": true, "-agent-new0": true, "-agent-new2": true, "-agent-today": true, "-agent-morning": false, "-agent-old": false, "4567": false,
		"89ab-agent-x.new": true} {
		if _, err := os.Stat(base + name); (err == nil) != want {
			t.Errorf("%q is kept: %v, want %v", name, err == nil, want)
		}
	}
}

func TestPruneOnRequest(t *testing.T) {
	c := Cache{Dir: t.TempDir()}
	current := filepath.Base(tree.Cache{Dir: c.Dir}.Path())
	made := "vm-made-agent-1"
	entries := map[string]time.Duration{current: 48 * time.Hour, filepath.Base(c.stemcellTreePath(filepath.Join(c.Dir, current))): 48 * time.Hour, kernelDir: 48 * time.Hour,
		"tree-bookworm-old": time.Hour, "stemcell-tree-old": time.Hour, "vm-new": time.Hour, "vm-old": 25 * time.Hour, "vm-killed.new": time.Hour, made + ".new": 48 * time.Hour, "other": 48 * time.Hour}
	for name, ago := range entries {
		then := time.Now().Add(-ago)
		if err := errors.Join(os.Mkdir(filepath.Join(c.Dir, name), 0o755), os.Chtimes(filepath.Join(c.Dir, name), then, then)); err != nil {
			t.Fatal(err)
		}
	}
	// One that another process is making.
	lock, err := os.Create(filepath.Join(c.Dir, made+lockSuffix))
	if err == nil {
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	removed, err := c.Prune(false)
	if want := []string{"stemcell-tree-old", "tree-bookworm-old", "vm-killed.new", "vm-old"}; err != nil || !slices.Equal(removed, want) {
		t.Errorf("removed %v, %v; want %v", removed, err, want)
	}
	if removed, err := c.Prune(false); err != nil || len(removed) > 0 {
		t.Errorf("once more removed %v, %v; want nothing", removed, err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Prune(true); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(c.Dir); err != nil || len(left) != 1 || left[0].Name() != "other" {
		t.Errorf("left are %v, %v; want what is not of the cache", left, err)
	}
	if removed, err := (Cache{Dir: filepath.Join(c.Dir, "missing")}).Prune(true); err != nil || len(removed) > 0 {
		t.Errorf("of no cache: %v, %v", removed, err)
	}
}
