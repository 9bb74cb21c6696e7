package copytree

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLinksAreForgotten: a file is forgotten once all its names were met, since there may be millions.
func TestLinksAreForgotten(t *testing.T) {
	l := newLinks()
	for i := range 3 {
		if _, first := l.meet(&unix.Stat_t{Ino: 7, Nlink: 3}, &dir{}, "x"); first != (i == 0) {
			t.Errorf("time %d: first is %v", i, first)
		}
	}
	if len(l.known) != 0 {
		t.Errorf("%d files are remembered, want none", len(l.known))
	}
}

func TestPath(t *testing.T) {
	top := &dir{}
	inner := &dir{parent: &dir{parent: top, name: "a"}, name: "b"}
	for got, want := range map[string]string{top.ownPath(): ".", top.path("x"): "x", inner.ownPath(): "a/b",
		inner.path("c"): "a/b/c"} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestDigests: a digest depends on the state of the source, on all bytes and their offsets, and on the attributes.
// Holes equal zeros.
func TestDigests(t *testing.T) {
	d := newDigests()
	of := func(attributes map[string]string, blocks ...string) (digest uint64) {
		for i, b := range blocks {
			digest = d.add(digest, int64(i)*pageSize, []byte(b))
		}
		return d.addAttributes(digest, attributes)
	}
	a, b := map[string]string{"user.a": "1", "user.b": "2"}, map[string]string{"user.a": "2", "user.b": "1"}
	all := []uint64{of(nil), of(nil, "x"), of(nil, "x", "y"), of(nil, "y", "x"), of(nil, "x", "x"), of(a, "x"), of(b, "x")}
	slices.Sort(all)
	if len(slices.Compact(all)) != 7 {
		t.Error("two of seven contents have the same digest")
	}
	long := strings.Repeat("x", pageSize) + strings.Repeat("\x00", pageSize) + "y"
	if whole := of(nil, long); whole != of(nil, long[:pageSize], "", "y") || whole == of(nil, long[:pageSize], "y") {
		t.Error("a hole is not as zeros are")
	}
	for range 10 { // maps have no order
		if once := of(a, "x", "y"); once != of(a, "x", "y") {
			t.Error("one content has two digests")
		}
	}
	st := unix.Stat_t{Ino: 1, Size: 10, Ctim: unix.Timespec{Sec: 5}}
	d.put(&st, 42)
	if digest, known := d.get(&st); !known || digest != 42 {
		t.Errorf("got %d, %v", digest, known)
	}
	for _, changed := range []unix.Stat_t{{Ino: 2, Size: 10, Ctim: st.Ctim}, {Ino: 1, Size: 11, Ctim: st.Ctim},
		{Ino: 1, Size: 10, Ctim: unix.Timespec{Sec: 5, Nsec: 1}}} {
		if _, known := d.get(&changed); known {
			t.Errorf("a digest is known for %+v", changed)
		}
	}
}

// TestOpenBeneathFollowsNoLinks: a path is opened without following links, whatever replaces its components.
func TestOpenBeneathFollowsNoLinks(t *testing.T) {
	top := t.TempDir()
	if err := os.MkdirAll(filepath.Join(top, "a/b"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"out": "/", "in": "a", "a/up": ".."} {
		if err := os.Symlink(target, filepath.Join(top, name)); err != nil {
			t.Fatal(err)
		}
	}
	fd, err := unix.Open(top, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(fd)
	for path, want := range map[string]bool{".": true, "a": true, "a/b": true, "out": false, "out/etc": false,
		"in/b": false, "a/up": false, "a/up/a": false, "none": false} {
		found, err := openBeneath(fd, path)
		if (err == nil) != want {
			t.Errorf("%s: %v, want it found: %v", path, err, want)
		}
		if err == nil {
			closeAll(found)
		}
	}
}
