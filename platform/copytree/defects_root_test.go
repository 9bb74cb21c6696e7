//go:build root

package copytree

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cambium/internal/looptest"
	"cambium/internal/treetest"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
	return string(out)
}

// TestRootSecondNameKeepsADirectory: the second name of a file does not replace a directory on the target.
func TestRootSecondNameKeepsADirectory(t *testing.T) {
	from, to := disks(t)
	must(t, os.WriteFile(filepath.Join(from, "first"), []byte("x"), 0o600))
	must(t, os.MkdirAll(filepath.Join(from, "sub"), 0o755))
	must(t, os.Link(filepath.Join(from, "first"), filepath.Join(from, "sub", "second")))
	for _, place := range []string{"first", "sub/second"} { // whichever is met first
		mine := filepath.Join(to, place, "mine")
		must(t, os.MkdirAll(filepath.Dir(mine), 0o755))
		must(t, os.WriteFile(mine, []byte("kept"), 0o600))
		if err := complete(t, from, to, false); err == nil || !strings.Contains(err.Error(), "a directory of that name") ||
			!strings.Contains(err.Error(), place) {
			t.Errorf("a directory at %s: %v, want that it is in the way", place, err)
		}
		if data, err := os.ReadFile(mine); err != nil || string(data) != "kept" {
			t.Errorf("%s is %q, %v", mine, data, err)
		}
		must(t, os.RemoveAll(filepath.Join(to, place)))
	}
	must(t, complete(t, from, to, false))
}

// deep creates nested directories below dir, with a file in the last one.
func deep(t *testing.T, dir, name string, levels int) {
	t.Helper()
	at, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	for range levels {
		must(t, unix.Mkdirat(at, name, 0o755))
		next, err := openDir(at, name)
		must(t, err)
		closeAll(at)
		at = next
	}
	fd, err := unix.Openat(at, "first", unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC, 0o640)
	must(t, err)
	must(t, writeAt(fd, []byte("found"), 0))
	must(t, unix.Linkat(at, "first", at, "second", 0))
	closeAll(fd, at)
}

func TestRootPathsBeyondTheLimit(t *testing.T) {
	for name, c := range map[string]struct {
		name   string
		levels int
	}{"long names": {strings.Repeat("n", 200), 60}, "many levels": {"d", 3000}} {
		t.Run(name, func(t *testing.T) {
			from, to := disks(t)
			deep(t, from, c.name, c.levels)
			must(t, complete(t, from, to, true))
			must(t, complete(t, from, to, true)) // resumed
			last, err := unix.Open(to, unix.O_PATH|unix.O_CLOEXEC, 0)
			must(t, err)
			for range c.levels {
				next, err := openDir(last, c.name)
				must(t, err)
				closeAll(last)
				last = next
			}
			var first, second unix.Stat_t
			must(t, errors.Join(unix.Fstatat(last, "first", &first, 0), unix.Fstatat(last, "second", &second, 0)))
			if first.Size != 5 || first.Ino != second.Ino {
				t.Errorf("the last file has %d bytes, inodes %d and %d", first.Size, first.Ino, second.Ino)
			}
			closeAll(last)
			// As a leftover it is removed, too.
			must(t, os.Rename(filepath.Join(to, c.name), filepath.Join(to, "leftover")))
			must(t, complete(t, from, to, true))
			if _, err := os.Stat(filepath.Join(to, "leftover")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the leftover is still there: %v", err)
			}
		})
	}
}

// TestRootFlagsAreKept: flags of chattr are copied, and an interrupted copy that has already set them can be repeated.
func TestRootFlagsAreKept(t *testing.T) {
	looptest.Needs(t, "chattr", "lsattr", "mkfs.xfs")
	for _, kind := range []string{"ext4", "xfs"} {
		t.Run("ext4 to "+kind, func(t *testing.T) {
			from, to := disks(t)
			if kind == "xfs" {
				to = xfs(t)
			}
			flags := map[string]string{"file": "+i", "log": "+a", "sub": "+i", "sub/inner": "+a", "scratch": "+dA",
				"linked": "+i", ".": "+A"}
			for name := range flags {
				if path := filepath.Join(from, name); strings.HasPrefix(name, "sub") {
					must(t, os.MkdirAll(path, 0o755))
				} else if name != "." {
					must(t, os.WriteFile(path, []byte(name), 0o644))
				}
			}
			must(t, os.Link(filepath.Join(from, "linked"), filepath.Join(from, "sub", "linked")))
			for name, flag := range flags {
				run(t, "chattr", flag, filepath.Join(from, name))
			}
			listed := func(dir, name string) string {
				// Letters of other flags show how a file system stores the file.
				out, _, _ := strings.Cut(run(t, "lsattr", "-d", filepath.Join(dir, name)), " ")
				return strings.Map(func(r rune) rune {
					if strings.ContainsRune("SiadA", r) {
						return r
					}
					return -1
				}, out)
			}
			same := func() {
				t.Helper()
				for name := range flags {
					if got, want := listed(to, name), listed(from, name); got != want || want == "" {
						t.Errorf("%s has flags %q, want %q", name, got, want)
					}
				}
				if diff := treetest.Diff(t, from, to); diff != "" {
					t.Errorf("rsync sees differences:\n%s", diff)
				}
			}
			must(t, complete(t, from, to, true))
			same()
			// The source has changed since: files are replaced, removed and linked below flags.
			for name := range flags {
				run(t, "chattr", "-ia", filepath.Join(from, name))
			}
			must(t, os.WriteFile(filepath.Join(from, "file"), []byte("another"), 0o644))
			must(t, os.WriteFile(filepath.Join(from, "sub", "new"), []byte("new"), 0o644))
			must(t, os.Remove(filepath.Join(from, "log")))
			must(t, os.Remove(filepath.Join(from, "sub", "inner")))
			must(t, os.Link(filepath.Join(from, "linked"), filepath.Join(from, "again")))
			delete(flags, "log")
			delete(flags, "sub/inner")
			for name, flag := range flags {
				run(t, "chattr", flag, filepath.Join(from, name))
			}
			must(t, complete(t, from, to, true))
			same()
		})
	}
}

func xfs(t *testing.T) string {
	t.Helper()
	d := looptest.New(t, 400<<20)
	run(t, "mkfs.xfs", "-q", d.Path)
	dir := filepath.Join(t.TempDir(), "m")
	must(t, os.Mkdir(dir, 0o755))
	must(t, unix.Mount(d.Path, dir, "xfs", 0, ""))
	return dir
}

// TestRootTargetIsClosedUntilTheEnd: until the copy is verified, only root has access to the target, even if others had
// before.
func TestRootTargetIsClosedUntilTheEnd(t *testing.T) {
	from, to := disks(t)
	treetest.Fill(t, from)
	must(t, errors.Join(os.Chown(from, 1234, 4321), os.Chmod(from, 0o755),
		unix.Setxattr(from, "user.top", []byte("kept"), 0), os.Chmod(to, 0o777)))
	trees := open(t, from, to, true)
	state := func() string {
		var st unix.Stat_t
		must(t, unix.Stat(to, &st))
		return fmt.Sprintf("%d:%d %o", st.Uid, st.Gid, st.Mode&0o7777)
	}
	must(t, trees.copy(ctx))
	must(t, trees.verify())
	if got := state(); got != "0:0 700" {
		t.Errorf("before the end it is %s", got)
	}
	must(t, trees.complete())
	if got := state(); got != "1234:4321 755" {
		t.Errorf("in the end it is %s", got)
	}
	if _, err := os.Lstat(filepath.Join(to, testMark)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the mark is still there: %v", err)
	}
	if diff := treetest.Diff(t, from, to); diff != "" {
		t.Errorf("rsync sees differences:\n%s", diff)
	}
	must(t, complete(t, from, to, true))
}

// TestRootTimesThatTheTargetCannotHold: a time that the target cannot store becomes the nearest one that it can, and
// only that is accepted.
func TestRootTimesThatTheTargetCannotHold(t *testing.T) {
	from, _ := disks(t)
	d := looptest.New(t, 64<<20)
	run(t, "mkfs.ext4", "-qF", "-I", "128", d.Path)
	to := filepath.Join(t.TempDir(), "m")
	must(t, errors.Join(os.Mkdir(to, 0o755), unix.Mount(d.Path, to, "ext4", 0, "")))
	whole, late := time.Unix(1e9, 0), time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC)
	must(t, os.Mkdir(filepath.Join(from, "dir"), 0o755))
	for name, when := range map[string]time.Time{"whole": whole, "fine": time.Unix(1e9, 1), "late": late, "dir": late} {
		path := filepath.Join(from, name)
		if name != "dir" {
			must(t, os.WriteFile(path, []byte(name), 0o644))
		}
		must(t, os.Chtimes(path, when, when))
	}
	trees := open(t, from, to, true)
	must(t, trees.copy(ctx))
	must(t, trees.verify())
	// lost+found has a time that is not a whole second.
	if got := trees.clamped; got.Files < 3 || got.Files > 4 || got.First == "" || got.First == "whole" {
		t.Errorf("clamped are %+v, want three and one of their names", got)
	}
	must(t, os.Chtimes(filepath.Join(to, "late"), late, time.Unix(1e9, 0)))
	var differs *DifferenceError
	if err := trees.verify(); !errors.As(err, &differs) || differs.What != "modification time" {
		t.Errorf("Verify = %v, want a difference in the time", err)
	}
}

// TestRootReservedName: a job's file with the name of the mark is an error, since the copy would lose it.
func TestRootReservedName(t *testing.T) {
	from, to := disks(t)
	must(t, os.WriteFile(filepath.Join(from, testMark), nil, 0o666))
	if err := complete(t, from, to, true); err == nil || !strings.Contains(err.Error(), "rename that file") {
		t.Errorf("Copy = %v, want that the name is reserved", err)
	}
	must(t, os.Rename(filepath.Join(from, testMark), filepath.Join(from, "other")))
	must(t, complete(t, from, to, true))
}
