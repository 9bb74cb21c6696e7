// Package treetest creates trees with every kind of file, and compares trees with an independent tool.
package treetest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cambium/internal/command"
)

// largest lists sparse files that rsync would read as gigabytes of zeros.
var largest = []string{"only a hole", "far out"}

// Fill creates every kind of file that a file system supports in dir.
func Fill(t testing.TB, dir string) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	p := func(name string) string { return filepath.Join(dir, name) }
	must(os.MkdirAll(p("a/b/c"), 0o755))
	must(os.MkdirAll(p("empty"), 0o711))
	must(os.WriteFile(p("a/zero"), nil, 0o640))
	must(os.WriteFile(p("a/small"), []byte("small"), 0o600))
	must(os.WriteFile(p("a/large"), []byte(strings.Repeat("0123456789", 300_000)), 0o644))
	must(os.WriteFile(p("a/larger"), []byte(strings.Repeat("0123456789a", 1_000_003)), 0o644))
	must(os.WriteFile(p("owned"), []byte("x"), 0o600))
	must(os.Chown(p("owned"), 1234, 4321))
	must(os.WriteFile(p("setuid"), []byte("#!/bin/sh\n"), 0o755))
	must(os.Chown(p("setuid"), 1, 1))
	must(unix.Chmod(p("setuid"), 0o6755))
	must(unix.Chmod(p("empty"), 0o1777))
	must(os.Link(p("a/small"), p("a/b/hard")))
	must(os.Link(p("a/small"), p("harder")))
	must(os.Symlink("a/small", p("link")))
	must(os.Symlink("/nowhere/at all", p("dangling")))
	must(os.Lchown(p("dangling"), 7, 8))
	must(unix.Mkfifo(p("fifo"), 0o620))
	must(unix.Mknod(p("socket"), unix.S_IFSOCK|0o660, 0))
	must(unix.Mknod(p("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	must(unix.Mknod(p("block"), unix.S_IFBLK|0o600, int(unix.Mkdev(7, 99))))
	must(os.WriteFile(p("not \xff\xfe utf8\n"), []byte("name"), 0o600))
	long := p(strings.Repeat("x", 150) + "/" + strings.Repeat("y", 150))
	must(os.MkdirAll(filepath.Dir(long), 0o755))
	must(os.WriteFile(long, []byte("long"), 0o600))

	sparse := func(name string, size int64, at ...int64) {
		f, err := os.Create(p(name))
		must(err)
		must(f.Truncate(size))
		for _, o := range at {
			_, err := f.WriteAt([]byte("data"), o)
			must(err)
		}
		must(f.Close())
	}
	sparse("sparse", 64<<20, 0, 10<<20)
	sparse("hole at the end", 8<<20, 0)
	sparse("only a hole", 5<<30)
	sparse("far out", 5<<30, 4<<30+12345)
	sparse("hole at the start", 8<<20, 8<<20-4)

	must(unix.Setxattr(p("a/small"), "user.note", []byte("value"), 0))
	must(unix.Setxattr(p("a/b"), "user.dir", []byte(strings.Repeat("v", 500)), 0))
	must(unix.Setxattr(p("a/zero"), "security.custom", []byte{0, 1, 2, 255}, 0))
	must(unix.Lsetxattr(p("dangling"), "trusted.onlink", []byte("t"), 0))
	must(os.MkdirAll(p("lost+found"), 0o700))
	must(os.WriteFile(p("lost+found/#12345"), []byte("found by fsck"), 0o600))
	must(os.WriteFile(p("capable"), []byte("x"), 0o755))
	for _, c := range [][]string{{"setcap", "cap_net_bind_service=+ep", p("capable")},
		{"setfacl", "-m", "u:1234:rw,g:4321:r", p("a/large")}, {"setfacl", "-d", "-m", "u:1234:rwx", p("a")}} {
		if _, err := command.Run(context.Background(), command.Cmd{Name: c[0], Args: c[1:]}); err != nil {
			t.Fatal(err)
		}
	}
	for i, name := range []string{"a/small", "owned", "dangling", "a/b", "fifo", "a", "lost+found"} {
		times := []unix.Timespec{{Sec: 1e9, Nsec: 1}, {Sec: 1_234_567_890 + int64(i), Nsec: 123_456_789}}
		must(unix.UtimesNanoAt(unix.AT_FDCWD, p(name), times, unix.AT_SYMLINK_NOFOLLOW))
	}
}

// Diff compares two trees with rsync, and lists the differences. It compares the largest files itself, by attributes
// and data.
func Diff(t testing.TB, from, to string) string {
	t.Helper()
	// With a filter its own rule is gone, by which ACLs are not attributes; xfs lists them as other attributes, too.
	args := []string{"-aHAXn", "--checksum", "--numeric-ids", "--delete", "--itemize-changes",
		"--filter=-x system.*", "--filter=-x trusted.SGI_ACL_*", "--filter=-x trusted.cambium.*"}
	for _, name := range largest {
		args = append(args, "--exclude=/"+name)
	}
	result, err := command.Run(context.Background(), command.Cmd{Name: "rsync", Args: append(args, from+"/", to+"/")})
	if err != nil {
		t.Fatal(err)
	}
	differences := string(result.Stdout)
	for _, name := range largest {
		if a, b := summary(t, filepath.Join(from, name)), summary(t, filepath.Join(to, name)); a != b {
			differences += fmt.Sprintf("%s is %s, want %s\n", name, b, a)
		}
	}
	return differences
}

// summary describes a sparse file; "" if it does not exist.
func summary(t testing.TB, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	sum := sha256.New()
	for at := int64(0); ; {
		from, err := f.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return fmt.Sprintf("mode %o, owner %d:%d, size %d, time %v, data %x", st.Mode, st.Uid, st.Gid, st.Size,
				st.Mtim, sum.Sum(nil))
		}
		if err != nil {
			t.Fatal(err)
		}
		if at, err = f.Seek(from, unix.SEEK_HOLE); err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(io.NewSectionReader(f, from, at-from))
		if err != nil {
			t.Fatal(err)
		}
		// The exact offsets of data depend on the file system.
		for i, b := range data {
			if b != 0 {
				fmt.Fprintf(sum, "%d:%d ", from+int64(i), b)
			}
		}
	}
}
