//go:build root

package copytree

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cambium/internal/looptest"
	"cambium/internal/skiptest"
	"cambium/internal/treetest"
)

func TestMain(m *testing.M) { looptest.Main(m) }

var ctx = context.Background()

// disks returns two mounted file systems, so that the trees cannot share anything.
func disks(t testing.TB) (from, to string) {
	t.Helper()
	var dirs []string
	for range 2 {
		d := looptest.New(t, 256<<20)
		if out, err := exec.Command("mkfs.ext4", "-qF", d.Path).CombinedOutput(); err != nil {
			t.Fatalf("mkfs: %v: %s", err, out)
		}
		dir := filepath.Join(t.TempDir(), "m")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount(d.Path, dir, "ext4", 0, ""); err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, dir)
	}
	return dirs[0], dirs[1]
}

// testMark is the name of the mark.
const testMark = ".mark"

// testOwn is the attribute that is not copied.
const testOwn = "trusted.own"

// pair holds two directories and the state of a copy between them.
type pair struct {
	*Trees
	t        testing.TB
	from, to string
}

// open returns a new copy between two directories. The target has a mark.
func open(t testing.TB, from, to string, exact bool) pair {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(to, testMark), nil, 0o600))
	return pair{New(testMark, testOwn, exact), t, from, to}
}

// each opens the directories for one step.
func (p pair) each(step func(from, to *os.File) error) error {
	p.t.Helper()
	from, err := os.Open(p.from)
	must(p.t, err)
	defer from.Close()
	to, err := os.Open(p.to)
	must(p.t, err)
	defer to.Close()
	return step(from, to)
}

func (p pair) copy(ctx context.Context) error {
	p.t.Helper()
	return p.each(func(from, to *os.File) error { return p.Copy(ctx, from, to, &Counter{}) })
}

func (p pair) verify() error {
	p.t.Helper()
	return p.each(func(from, to *os.File) error {
		_, err := p.Verify(ctx, from, to, &Counter{})
		return err
	})
}

func (p pair) complete() error {
	p.t.Helper()
	return p.each(func(_, to *os.File) error { return p.Complete(to) })
}

// complete makes a complete copy, as package worker does in a process.
func complete(t testing.TB, from, to string, exact bool) error {
	t.Helper()
	p := open(t, from, to, exact)
	for _, step := range []func() error{func() error { return p.copy(ctx) }, p.verify, p.complete} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// verify compares the trees without the digests of Copy.
func verify(t testing.TB, from, to string, exact bool) error {
	t.Helper()
	p := open(t, from, to, exact)
	defer os.Remove(filepath.Join(to, testMark))
	return p.verify()
}

func used(t testing.TB, path string) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

func TestRootCopyIsTheSame(t *testing.T) {
	from, to := disks(t)
	treetest.Fill(t, from)
	for i := range 2 {
		if err := complete(t, from, to, true); err != nil {
			t.Fatal(err)
		}
		if diff := treetest.Diff(t, from, to); diff != "" {
			t.Errorf("time %d: rsync sees differences:\n%s", i, diff)
		}
		if err := verify(t, from, to, true); err != nil {
			t.Errorf("time %d: %v", i, err)
		}
	}
	for _, name := range []string{"sparse", "only a hole", "far out", "hole at the end", "hole at the start"} {
		if got, want := used(t, filepath.Join(to, name)), used(t, filepath.Join(from, name)); got > want+65536 {
			t.Errorf("%s uses %d bytes, the original %d", name, got, want)
		}
		if info, err := os.Stat(filepath.Join(to, name)); err != nil || name == "only a hole" && info.Size() != 5<<30 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	var a, b unix.Stat_t
	for _, name := range []string{"a/small", "dangling", "a/b", "fifo", "a", "null"} {
		if err := errors.Join(unix.Lstat(filepath.Join(from, name), &a),
			unix.Lstat(filepath.Join(to, name), &b)); err != nil {
			t.Fatal(err)
		}
		if a.Mtim != b.Mtim || a.Rdev != b.Rdev {
			t.Errorf("%s: time %v, device %d; want %v, %d", name, b.Mtim, b.Rdev, a.Mtim, a.Rdev)
		}
	}
}

// TestRootLostAndFound: what fsck has found is content, but the empty lost+found of a new file system is not.
func TestRootLostAndFound(t *testing.T) {
	from, to := disks(t)
	lost := func(dir string) string { return filepath.Join(dir, lostFound) }
	if err := os.WriteFile(filepath.Join(lost(from), "#1"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := complete(t, from, to, true); err != nil {
		t.Fatal(err)
	}
	if diff := treetest.Diff(t, from, to); diff != "" {
		t.Errorf("rsync sees differences:\n%s", diff)
	}
	if err := os.Remove(filepath.Join(lost(to), "#1")); err != nil {
		t.Fatal(err)
	}
	var differs *DifferenceError
	if err := verify(t, from, to, true); !errors.As(err, &differs) {
		t.Errorf("Verify = %v, want a difference", err)
	}
	if err := os.RemoveAll(lost(from)); err != nil {
		t.Fatal(err)
	}
	if err := complete(t, from, to, true); err != nil {
		t.Errorf("the target's own directory is in the way: %v", err)
	}
	if err := os.WriteFile(filepath.Join(lost(to), "#2"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := verify(t, from, to, true); !errors.As(err, &differs) {
		t.Errorf("Verify = %v, want a difference", err)
	}
	if err := complete(t, from, to, true); err != nil {
		t.Error(err)
	}
}

// TestRootVerifyFindsEverything: Verify detects each mistake that a copy could have.
func TestRootVerifyFindsEverything(t *testing.T) {
	from, to := disks(t)
	treetest.Fill(t, from)
	change := map[string]struct {
		what string
		do   func(p func(string) string) error
	}{
		"content": {"content", func(p func(string) string) error { return keepTime(p("a/large"), 0, "9") }},
		"content of a large file": {"content", func(p func(string) string) error {
			return keepTime(p("a/larger"), 11_000_032,
				"x")
		}},
		"content far out": {"content", func(p func(string) string) error {
			return keepTime(p("only a hole"), 3<<30,
				"x")
		}},
		"content at start": {"content", func(p func(string) string) error {
			return keepTime(p("hole at the start"),
				8<<20-1, "x")
		}},
		"missing file": {"", func(p func(string) string) error { return os.Remove(p("owned")) }},
		"missing node": {"", func(p func(string) string) error { return os.Remove(p("socket")) }},
		"surplus": {"", func(p func(string) string) error {
			return os.WriteFile(p("empty/new"), nil,
				0o600)
		}},
		"mode":  {"mode", func(p func(string) string) error { return os.Chmod(p("owned"), 0o644) }},
		"owner": {"owner", func(p func(string) string) error { return os.Lchown(p("dangling"), 7, 9) }},
		"time": {"modification time", func(p func(string) string) error {
			return unix.UtimesNanoAt(unix.AT_FDCWD, p("fifo"), []unix.Timespec{{}, {Sec: 1_234_567_894, Nsec: 123_456_788}}, 0)
		}},
		"attribute": {"extended attributes",
			func(p func(string) string) error { return unix.Removexattr(p("a/zero"), "security.custom") }},
		"link attribute": {"extended attributes",
			func(p func(string) string) error { return unix.Lremovexattr(p("dangling"), "trusted.onlink") }},
		"capability": {"extended attributes",
			func(p func(string) string) error { return unix.Removexattr(p("capable"), "security.capability") }},
		"acl": {"extended attributes",
			func(p func(string) string) error { return unix.Removexattr(p("a"), "system.posix_acl_default") }},
	}
	for name, c := range change {
		t.Run(name, func(t *testing.T) {
			trees := open(t, from, to, true)
			must(t, trees.copy(ctx))
			must(t, trees.verify())
			if err := c.do(func(n string) string { return filepath.Join(to, n) }); err != nil {
				t.Fatal(err)
			}
			err := trees.verify()
			var differs *DifferenceError
			if !errors.As(err, &differs) || !strings.Contains(differs.What, c.what) {
				t.Errorf("Verify = %v, want a difference in %s", err, c.what)
			}
		})
	}
}

// TestRootVerifyNoticesAChangedSource: a digest is valid only for the source as it was read. Later changes are
// detected, even if the times are restored.
func TestRootVerifyNoticesAChangedSource(t *testing.T) {
	for _, name := range []string{"a/small", "a/large", "a/larger", "hole at the start"} {
		t.Run(name, func(t *testing.T) {
			from, to := disks(t)
			treetest.Fill(t, from)
			trees := open(t, from, to, true)
			must(t, trees.copy(ctx))
			if err := keepTime(filepath.Join(from, name), 0, "9"); err != nil {
				t.Fatal(err)
			}
			var differs *DifferenceError
			if err := trees.verify(); !errors.As(err, &differs) || differs.What != "content" {
				t.Errorf("Verify = %v, want a difference in content", err)
			}
		})
	}
}

// keepTime changes bytes of a file without changing its size and time.
func keepTime(path string, at int64, text string) error {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if _, err := f.WriteAt([]byte(text), at); err != nil {
		return err
	}
	return errors.Join(f.Close(), unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{st.Atim, st.Mtim}, 0))
}

// TestRootCopyIntoAUsedTarget: files on the target are replaced if the source has that name, even if they look
// complete, and kept otherwise. New files in an existing directory inherit neither its group nor its ACL.
func TestRootCopyIntoAUsedTarget(t *testing.T) {
	from, to := disks(t)
	treetest.Fill(t, from)
	in := func(name string) string { return filepath.Join(to, name) }
	must(t, errors.Join(os.Mkdir(in("a"), 0o755), os.WriteFile(in("a/mine"), []byte("kept"), 0o600)))
	must(t, complete(t, from, to, false))
	if data, err := os.ReadFile(in("a/mine")); err != nil || string(data) != "kept" {
		t.Errorf("a file of the target is %q, %v", data, err)
	}
	for _, name := range []string{"a/large", "a/small", "lost+found/#12345"} {
		must(t, keepTime(in(name), 1, "?"))
	}
	must(t, errors.Join(unix.Removexattr(in("capable"), "security.capability"), os.RemoveAll(in("a/b")),
		os.Remove(in("a/zero")), os.Remove(in("a/mine")), os.Chown(in("a"), 1234, 4321), unix.Chmod(in("a"), 0o2775)))
	must(t, complete(t, from, to, false))
	if diff := treetest.Diff(t, from, to); diff != "" {
		t.Errorf("rsync sees differences:\n%s", diff)
	}
	must(t, os.WriteFile(in("a/mine"), nil, 0o600))
	must(t, complete(t, from, to, true))
	if _, err := os.Stat(in("a/mine")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("with Exact, the file is still there (%v)", err)
	}
}

func TestRootCopyIsCanceled(t *testing.T) {
	from, to := disks(t)
	treetest.Fill(t, from)
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if err := open(t, from, to, false).copy(gone); !errors.Is(err, context.Canceled) {
		t.Errorf("Copy = %v, want it canceled", err)
	}
}

// TestRootVerifyReadsTheDisk: Verify detects corruption below the page cache, in small and large files, after the
// target was mounted again. Nothing is open there between two steps.
func TestRootVerifyReadsTheDisk(t *testing.T) {
	for name, size := range map[string]int{"small": 9000, "large": 6 << 20} {
		t.Run(name, func(t *testing.T) {
			from, to := disks(t)
			pattern := []byte("the one place where " + name + " is written")
			content := make([]byte, size)
			copy(content[size-size/4:], pattern)
			if err := os.WriteFile(filepath.Join(from, "file"), content, 0o600); err != nil {
				t.Fatal(err)
			}
			trees := open(t, from, to, true)
			must(t, trees.copy(ctx))
			image := imageOf(t, to)
			out, err := exec.Command("grep", "-obUaF", string(pattern), image).Output()
			if err != nil {
				t.Fatalf("the copy is not in the image, so it was not flushed: %v", err)
			}
			place, _, _ := strings.Cut(string(out), ":")
			at, err := strconv.ParseInt(place, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			f, err := os.OpenFile(image, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt([]byte{pattern[0] ^ 1}, at); err != nil {
				t.Fatal(err)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			source := mountedFrom(t, to)
			must(t, errors.Join(unix.Unmount(to, 0), unix.Mount(source, to, "ext4", 0, "")))
			var differs *DifferenceError
			if err := trees.verify(); !errors.As(err, &differs) || differs.What != "content" {
				t.Errorf("Verify = %v, want a difference in content", err)
			}
		})
	}
}

// TestRootHolesAreNotRead: the holes of a sparse file are not read, neither in the source nor when the copy is
// verified.
func TestRootHolesAreNotRead(t *testing.T) {
	const pieces, every, most = 32, 4 << 20, 40 << 20 // of 1 MiB each
	from, to := disks(t)
	f, err := os.Create(filepath.Join(from, "file"))
	must(t, err)
	for i := range int64(pieces) {
		_, err := f.WriteAt(bytes.Repeat([]byte{'x'}, 1<<20), i*every)
		must(t, err)
	}
	must(t, errors.Join(f.Truncate(pieces*every), f.Close()))
	remount := func(dir string) {
		device := mountedFrom(t, dir)
		must(t, errors.Join(unix.Unmount(dir, 0), unix.Mount(device, dir, "ext4", 0, "")))
	}
	check := func(dir string) {
		f, err := os.Open(filepath.Join(dir, "file"))
		must(t, err)
		defer f.Close()
		var cached unix.Cachestat_t
		if err := unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{Len: pieces * every}, &cached, 0); err != nil {
			skiptest.Skip(t, err) // before Linux 6.5
		}
		// A few pages may have left the cache; without most of the data, the figure would say nothing.
		if got := cached.Cache * uint64(os.Getpagesize()); got < pieces<<20/2 || got > most {
			t.Errorf("%s: %d MiB were read, want the %d of data, at most %d", dir, got>>20, pieces, most>>20)
		}
	}
	remount(from)
	trees := open(t, from, to, true)
	must(t, trees.copy(ctx))
	check(from)
	remount(to)
	must(t, trees.verify())
	check(to)
}

// mountedFrom returns the device that is mounted on dir.
func mountedFrom(t testing.TB, dir string) string {
	t.Helper()
	return strings.TrimSpace(run(t, "findmnt", "-n", "-o", "SOURCE", dir))
}

// imageOf returns the image of the loop device that is mounted on dir.
func imageOf(t testing.TB, dir string) string {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/loop/backing_file", unix.Major(st.Dev), unix.Minor(st.Dev)))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

// TestRootCopyMemoryIsFlat: a copy needs only its buffers, however large the files are.
func TestRootCopyMemoryIsFlat(t *testing.T) {
	from, to := disks(t)
	for i := range 3 {
		if err := os.WriteFile(filepath.Join(from, fmt.Sprint(i)), make([]byte, 60<<20), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	trees := open(t, from, to, true)
	must(t, trees.copy(ctx))
	must(t, trees.verify())
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > uint64(2*Workers()*2*blockSize+8<<20) {
		t.Errorf("allocated %d MiB for 180 MiB of files, want the buffers of two passes", got>>20)
	}
}
