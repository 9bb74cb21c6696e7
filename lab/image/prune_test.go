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

	"cambium/lab/tree"
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
	for name, want := range map[string]bool{"": true, "-agent-new0": true, "-agent-new2": true, "-agent-today": true,
		"-agent-morning": false, "-agent-old": false, "4567": false,
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
	entries := map[string]time.Duration{current: 48 * time.Hour,
		filepath.Base(c.stemcellTreePath(filepath.Join(c.Dir, current))): 48 * time.Hour, kernelDir: 48 * time.Hour,
		"tree-bookworm-old": 25 * time.Hour, "stemcell-tree-old": 25 * time.Hour, "vm-used": 48 * time.Hour,
		"vm-new": time.Hour, "vm-old": 25 * time.Hour, "vm-killed.new": time.Hour, made + ".new": 48 * time.Hour,
		"other": 48 * time.Hour}
	for name, ago := range entries {
		then := time.Now().Add(-ago)
		if err := errors.Join(os.Mkdir(filepath.Join(c.Dir, name), 0o755),
			os.Chtimes(filepath.Join(c.Dir, name), then, then)); err != nil {
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
	old, used := filepath.Join(c.Dir, "vm-old"), filepath.Join(c.Dir, "vm-used")
	long := time.Now().Add(-48 * time.Hour)
	if err := errors.Join(tree.Hold(used), os.WriteFile(filepath.Join(old, "disk"), make([]byte, 1<<20), 0o600),
		os.Chtimes(used, long, long), os.Chtimes(old, long, long)); err != nil {
		t.Fatal(err)
	}
	day := PruneOptions{Older: DefaultOlder}
	for _, dry := range []bool{true, false} { // what is told is what is done
		p, err := c.Prune(PruneOptions{Older: DefaultOlder, DryRun: dry})
		if want, inUse := []string{"stemcell-tree-old", "tree-bookworm-old", "vm-killed.new", "vm-old"},
			[]string{made + ".new", "vm-used"}; err != nil || !slices.Equal(names(p.Removed), want) ||
			!slices.Equal(names(p.InUse), inUse) {
			t.Errorf("removed %v, in use %v, %v; want %v and %v", names(p.Removed), names(p.InUse), err, want, inUse)
		}
		if last := p.Removed[len(p.Removed)-1]; last.Bytes < 1<<20 {
			t.Errorf("%s has %d bytes, want those of its disk", last.Name, last.Bytes)
		}
	}
	if p, err := c.Prune(day); err != nil || len(p.Removed) > 0 {
		t.Errorf("once more removed %v, %v; want nothing", p.Removed, err)
	}
	if p, err := c.Prune(PruneOptions{Older: 30 * time.Minute, DryRun: true}); err != nil ||
		!slices.Equal(names(p.Removed), []string{"vm-new"}) {
		t.Errorf("of what is older than half an hour %v would be removed, %v; want vm-new", p.Removed, err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Prune(PruneOptions{All: true}); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(c.Dir, "*[^k]"))
	for n := range left {
		left[n] = filepath.Base(left[n])
	}
	if err != nil || !slices.Equal(left, []string{"other", "vm-used"}) {
		t.Errorf("left are %v, %v; want what is not of the cache, and what is in use", left, err)
	}
	if p, err := (Cache{Dir: filepath.Join(c.Dir, "missing")}).Prune(PruneOptions{All: true}); err != nil ||
		len(p.Removed) > 0 {
		t.Errorf("of no cache: %v, %v", p.Removed, err)
	}
}

func names(entries []Entry) (all []string) {
	for _, e := range entries {
		all = append(all, e.Name)
	}
	return all
}
