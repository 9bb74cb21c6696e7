package bundle

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"cambium/internal/blob"
)

type item struct {
	tar.Header
	content string
}

func file(name, content string) item {
	return item{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content)),
		ModTime: time.Unix(1_500_000_000, 0)}, content}
}

func dir(name string, mode int64) item {
	return item{Header: tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: mode, ModTime: time.Unix(1_400_000_000, 0)}}
}

func link(kind byte, name, target string) item {
	return item{Header: tar.Header{Name: name, Linkname: target, Typeflag: kind, Mode: 0o777}}
}

func pack(t testing.TB, items ...item) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, i := range items {
		if err := w.WriteHeader(&i.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, i.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func gzipped(t testing.TB, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func zstded(t testing.TB, data []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(data, nil)
}

func openRoot(t testing.TB) (*os.Root, string) {
	t.Helper()
	outer := t.TempDir()
	path := filepath.Join(outer, "root")
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root, path
}

func rules(root *os.Root) Rules {
	return Rules{Target: Into(root), UID: os.Geteuid(), GID: os.Getegid()}
}

// tree describes what is below a directory, one line each.
func tree(t testing.TB, top string) (lines []string) {
	t.Helper()
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == top {
			return err
		}
		rel, _ := filepath.Rel(top, path)
		info, err := d.Info()
		if err != nil {
			return err
		}
		line := fmt.Sprintf("%s %v", rel, info.Mode())
		if info.Mode()&fs.ModeSymlink != 0 {
			target, _ := os.Readlink(path)
			line += " -> " + target
		} else if info.Mode().IsRegular() {
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += " " + string(content)
		}
		lines = append(lines, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

func TestUnpack(t *testing.T) {
	setuid := file("bin/su", "s")
	setuid.Mode = 0o4755
	archive := pack(t,
		dir("./", 0o700), dir("./bin/", 0o550), file("./bin/a", "A"), setuid,
		file("implied/b", "B"), link(tar.TypeSymlink, "c", "/var/vcap/packages/x"), link(tar.TypeLink, "d", "./bin/a"),
		file("twice", "1"), file("twice", "2"), link(tar.TypeSymlink, "was-link", "bin/a"), file("was-link", "file"),
	)
	want := []string{
		"bin dr-xr-x---", "bin/a -rw-r--r-- A", "bin/su urwxr-xr-x s", "c Lrwxrwxrwx -> /var/vcap/packages/x",
		"d -rw-r--r-- A",
		"implied drwxr-xr-x", "implied/b -rw-r--r-- B", "twice -rw-r--r-- 2", "was-link -rw-r--r-- file",
	}
	for compression, data := range map[Compression][]byte{Plain: archive, Gzip: gzipped(t, archive),
		Zstd: zstded(t, archive)} {
		t.Run(string(compression), func(t *testing.T) {
			root, path := openRoot(t)
			got, err := Unpack(t.Context(), bytes.NewReader(data), rules(root))
			if err != nil || got != compression {
				t.Fatalf("got %s, %v", got, err)
			}
			if got := tree(t, path); strings.Join(got, "\n") != strings.Join(want, "\n") {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			for name, want := range map[string]int64{"bin/a": 1_500_000_000, "bin": 1_400_000_000} {
				if info, err := os.Stat(filepath.Join(path, name)); err != nil || info.ModTime().Unix() != want {
					t.Errorf("%s: got %v, %v; want the archive's time", name, info, err)
				}
			}
			a, _ := os.Stat(filepath.Join(path, "bin/a"))
			d, _ := os.Stat(filepath.Join(path, "d"))
			if !os.SameFile(a, d) {
				t.Error("the hard link is a file of its own")
			}
		})
	}
}

// TestHostileArchives shows that nothing outside of the root changes, whatever is in the archive.
func TestHostileArchives(t *testing.T) {
	device := item{Header: tar.Header{Name: "dev", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3, Mode: 0o666}}
	block := item{Header: tar.Header{Name: "disk", Typeflag: tar.TypeBlock, Devmajor: 7, Devminor: 0, Mode: 0o666}}
	fifo := item{Header: tar.Header{Name: "pipe", Typeflag: tar.TypeFifo, Mode: 0o666}}
	other := item{Header: tar.Header{Name: "other", Typeflag: tar.TypeCont, Mode: 0o666}}
	large := strings.Repeat("x", 1<<16)
	cases := []struct {
		name  string
		items []item
		raw   []byte
		rules func(*Rules)
	}{
		{name: "parent", items: []item{file("../evil", "x")}},
		{name: "parent in the middle", items: []item{file("a/../../evil", "x")}},
		{name: "parent that stays inside", items: []item{file("a/../evil", "x")}},
		{name: "absolute", items: []item{file("/tmp/evil", "x")}},
		{name: "absolute directory", items: []item{dir("/evil/", 0o755)}},
		{name: "through a symlink out", items: []item{link(tar.TypeSymlink, "out", ".."), file("out/evil", "x")}},
		{name: "through an absolute symlink", items: []item{link(tar.TypeSymlink, "out", "OUTER"), file("out/evil", "x")}},
		{name: "through a chain of symlinks", items: []item{link(tar.TypeSymlink, "a", "b"), link(tar.TypeSymlink, "b", ".."), file("a/evil", "x")}},
		{name: "directory over a symlink", items: []item{link(tar.TypeSymlink, "out", ".."), dir("out", 0o777), file("out/evil", "x")}},
		{name: "hard link out", items: []item{link(tar.TypeLink, "h", "../victim")}},
		{name: "absolute hard link", items: []item{link(tar.TypeLink, "h", "/etc/passwd")}},
		{name: "hard link through a symlink", items: []item{link(tar.TypeSymlink, "out", ".."), link(tar.TypeLink, "h", "out/victim")}},
		{name: "hard link to a symlink", items: []item{link(tar.TypeSymlink, "s", "../victim"), link(tar.TypeLink, "h", "s")}},
		{name: "hard link to nothing", items: []item{link(tar.TypeLink, "h", "later")}},
		{name: "character device", items: []item{device}},
		{name: "block device", items: []item{block}},
		{name: "something else", items: []item{other}},
		{name: "large file through a symlink out", items: []item{link(tar.TypeSymlink, "out", ".."), file("out/evil", large)}},
		{name: "file in place of a directory", items: []item{dir("a/", 0o755), file("a", "x")}},
		{name: "large file in place of a directory", items: []item{dir("a/", 0o755), file("a", large)}},
		{name: "directory in place of a file", items: []item{file("a", "x"), dir("a/", 0o755)}},
		{name: "file below a file", items: []item{file("a", "x"), file("a/evil", "x")}},
		{name: "name that no file system takes", items: []item{file(strings.Repeat("n", 300), "x")}},
		{name: "bomb", raw: gzipped(t, pack(t, file("zeros", strings.Repeat("\x00", 8<<20)))), rules: func(r *Rules) { r.MaxBytes = 1 << 20 }},
		{name: "bomb of zstd", raw: zstded(t, pack(t, file("zeros", strings.Repeat("\x00", 8<<20)))), rules: func(r *Rules) { r.MaxBytes = 1 << 20 }},
		{name: "fifo", items: []item{fifo}},
		{name: "too many bytes", items: []item{file("a", strings.Repeat("x", 600)), file("b", strings.Repeat("x", 600))}, rules: func(r *Rules) { r.MaxBytes = 1000 }},
		{name: "too many entries", items: []item{file("a", ""), file("b", ""), file("c", "")}, rules: func(r *Rules) { r.MaxEntries = 2 }},
		{name: "links where none are allowed", items: []item{link(tar.TypeSymlink, "s", "x")}, rules: func(r *Rules) { r.NoLinks = true }},
		{name: "file as the root", items: []item{file("./.", "x")}},
		{name: "long name", items: []item{file(strings.Repeat("n/", 3000)+"n", "x")}},
		{name: "cut", raw: gzipped(t, pack(t, file("a", strings.Repeat("abc", 10000))))[:60]},
		{name: "cut tar", raw: pack(t, file("a", strings.Repeat("x", 5000)))[:3000]},
		{name: "no archive", raw: []byte(strings.Repeat("this is not an archive ", 100))},
		{name: "xz", raw: []byte("\xfd7zXZ\x00\x00")},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			root, path := openRoot(t)
			outer := filepath.Dir(path)
			victim := filepath.Join(outer, "victim")
			if err := os.WriteFile(victim, []byte("untouched"), 0o600); err != nil {
				t.Fatal(err)
			}
			for i := range c.items {
				if c.items[i].Linkname == "OUTER" {
					c.items[i].Linkname = outer
				}
			}
			data := c.raw
			if data == nil {
				data = pack(t, c.items...)
			}
			r := rules(root)
			if c.rules != nil {
				c.rules(&r)
			}
			_, err := Unpack(t.Context(), bytes.NewReader(data), r)
			if err == nil {
				t.Error("got no error")
			}
			entries, readErr := os.ReadDir(outer)
			if readErr != nil || len(entries) != 2 {
				t.Errorf("outside of the root: got %v, want root and victim only", entries)
			}
			info, statErr := os.Stat(victim)
			content, _ := os.ReadFile(victim)
			if statErr != nil || string(content) != "untouched" || info.Mode().Perm() != 0o600 ||
				info.Sys().(*syscall.Stat_t).Nlink != 1 {
				t.Errorf("the victim changed: %v %q", info, content)
			}
		})
	}
}

// TestManySmallFiles: the last entry of a name wins, whichever of large and small files, links and directories came
// between.
func TestManySmallFiles(t *testing.T) {
	var items []item
	want := map[string]string{}
	add := func(name, content string) {
		items = append(items, file(name, content))
		want[name] = content
	}
	for n := range 1000 {
		name := fmt.Sprintf("d%d/e%d/f%d", n%7, n%40, n%900)
		add(name, fmt.Sprint("content ", n))
		add(name, fmt.Sprint("other content ", n))
		if n%100 == 0 {
			add(name, strings.Repeat(fmt.Sprint(n), 1<<15))
		}
		if n%150 == 0 {
			add("twice", fmt.Sprint(n))
			items = append(items, link(tar.TypeSymlink, "twice", "/etc/passwd"))
			add("twice", fmt.Sprint(n, " again"))
		}
	}
	root, path := openRoot(t)
	if _, err := Unpack(t.Context(), bytes.NewReader(gzipped(t, pack(t, items...))), rules(root)); err != nil {
		t.Fatal(err)
	}
	found := 0
	for name, content := range want {
		got, err := os.ReadFile(filepath.Join(path, name))
		if err != nil || string(got) != content {
			t.Errorf("%s: got %.40q, %v; want %.40q", name, got, err, content)
		}
		found++
	}
	if lines := tree(t, path); found < 900 || len(lines) < found {
		t.Errorf("got %d files and %d entries", found, len(lines))
	}
}

func TestBombIsStoppedByItsHeader(t *testing.T) {
	root, path := openRoot(t)
	big := item{Header: tar.Header{Name: "zeros", Typeflag: tar.TypeReg, Mode: 0o644, Size: 1 << 50}}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&big.Header); err != nil {
		t.Fatal(err)
	}
	_, err := Unpack(t.Context(), &b, rules(root))
	if !errors.Is(err, errHostile) {
		t.Errorf("got %v, want a refusal", err)
	}
	if got := tree(t, path); len(got) != 0 {
		t.Errorf("got %v, want nothing", got)
	}
}

func TestUnpackEndsWithItsContext(t *testing.T) {
	root, _ := openRoot(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	r, w := io.Pipe()
	go func() {
		w.Write(pack(t, file("a", strings.Repeat("x", 4096)))[:2048])
		cancel(why)
		w.Write(make([]byte, 8192))
		w.Close()
	}()
	if _, err := Unpack(ctx, r, rules(root)); !errors.Is(err, why) {
		t.Errorf("got %v, want the cause", err)
	}
	r.Close()
}

// TestDigestCoversTheWholeStream: the unpacker must read after the end of the tar.
func TestDigestCoversTheWholeStream(t *testing.T) {
	for name, data := range map[string][]byte{
		"plain": append(pack(t, file("a", "A")), []byte(strings.Repeat("tail", 100))...),
		"zero":  append(pack(t, file("a", "A")), make([]byte, 10240)...),
		"gzip":  gzipped(t, append(pack(t, file("a", "A")), make([]byte, 100_000)...)),
	} {
		root, _ := openRoot(t)
		r := bytes.NewReader(data)
		if _, err := Unpack(t.Context(), r, rules(root)); err != nil || r.Len() != 0 {
			t.Errorf("%s: %d bytes left, %v", name, r.Len(), err)
		}
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add(pack(f, dir("./", 0o755), file("./a/b", "x"), link(tar.TypeSymlink, "s", ".."), link(tar.TypeLink, "h", "a/b")))
	f.Add(gzipped(f, pack(f, file("a", "x"))))
	f.Add(zstded(f, pack(f, file("a", "x"))))
	f.Add(pack(f, file("../a", "x")))
	f.Fuzz(func(t *testing.T, data []byte) {
		root, path := openRoot(t)
		r := rules(root)
		r.MaxBytes, r.MaxEntries = 1<<20, 100
		_, _ = Unpack(t.Context(), bytes.NewReader(data), r)
		entries, err := os.ReadDir(filepath.Dir(path))
		if err != nil || len(entries) != 1 {
			t.Errorf("outside of the root: %v, %v", entries, err)
		}
	})
}

// FuzzEntries packs three entries, so that no try is lost to the checksum of a header: an escape is made of
// names, link targets and types.
func FuzzEntries(f *testing.F) {
	f.Add("d", byte(tar.TypeSymlink), "..", "d/x", byte(tar.TypeReg), "", "d/x", byte(tar.TypeLink), "d/../../outside")
	f.Add("a/b/", byte(tar.TypeDir), "", "a/b", byte(tar.TypeSymlink), "/etc", "a/b/c", byte(tar.TypeReg), "")
	f.Add("./x", byte(tar.TypeReg), "", "y", byte(tar.TypeLink), "x", "x", byte(tar.TypeFifo), "")
	f.Fuzz(func(t *testing.T, name1 string, type1 byte, link1, name2 string, type2 byte, link2, name3 string, type3 byte,
		link3 string) {
		var archive bytes.Buffer
		w := tar.NewWriter(&archive)
		for _, h := range []tar.Header{{Name: name1, Typeflag: type1, Linkname: link1},
			{Name: name2, Typeflag: type2, Linkname: link2}, {Name: name3, Typeflag: type3, Linkname: link3}} {
			h.Mode = 0o755
			if h.Typeflag == tar.TypeReg {
				h.Size = 5
			}
			if w.WriteHeader(&h) != nil {
				return // not an archive that exists
			}
			if _, err := w.Write([]byte("wrote")[:h.Size]); err != nil {
				t.Fatal(err)
			}
		}
		if w.Close() != nil {
			return
		}
		root, path := openRoot(t)
		outside := filepath.Join(filepath.Dir(path), "outside")
		if err := os.WriteFile(outside, []byte("untouched"), 0o640); err != nil {
			t.Fatal(err)
		}
		_, _ = Unpack(t.Context(), &archive, rules(root))
		entries, err := os.ReadDir(filepath.Dir(path))
		if err != nil || len(entries) != 2 {
			t.Errorf("outside of the root: %v, %v", entries, err)
		}
		info, err := os.Stat(outside)
		if err != nil || info.Mode().Perm() != 0o640 || info.Sys().(*syscall.Stat_t).Nlink != 1 {
			t.Errorf("a file outside has become %v, %v", info, err)
		}
		if text, err := os.ReadFile(outside); err != nil || string(text) != "untouched" {
			t.Errorf("a file outside has become %q, %v", text, err)
		}
	})
}

// TestAWrongArchiveIsAMismatch: an error page in place of an archive is not a valid tar, but the error is
// only the digest mismatch.
func TestAWrongArchiveIsAMismatch(t *testing.T) {
	digest, err := blob.ParseDigest("0000000000000000000000000000000000000000")
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"no archive": strings.Repeat("<html>no such blob</html>", 100),
		"cut gzip": "\x1f\x8b\x08\x00\x00", "empty": ""} {
		t.Run(name, func(t *testing.T) {
			root, err := os.OpenRoot(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = root.Close() }()
			r, err := digest.Verify(io.NopCloser(strings.NewReader(content)))
			if err != nil {
				t.Fatal(err)
			}
			_, err = Unpack(t.Context(), r, Rules{Target: Into(root), UID: os.Getuid(), GID: os.Getgid()})
			if err == nil || !strings.HasPrefix(err.Error(), "read archive: Checksum mismatch: expected sha1 0000") ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want nothing but the mismatch", err)
			}
		})
	}
}

// TestManyAndDeepDirectories: 2.4 MB of archive once cost 425 MB of memory.
func TestManyAndDeepDirectories(t *testing.T) {
	pack := func(names func(yield func(string) bool)) io.Reader {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		w := tar.NewWriter(z)
		for name := range names {
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755,
				Format: tar.FormatPAX}); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(w.Close(), z.Close()); err != nil {
			t.Fatal(err)
		}
		return &b
	}
	long := strings.Repeat("directory/", 200) // of one long path, so that few directories are really made
	for _, c := range []struct {
		name  string
		names func(yield func(string) bool)
		fault string
	}{
		{"long names", func(yield func(string) bool) {
			for i := range 2000 {
				if !yield(fmt.Sprintf("%s%d/", long, i)) {
					return
				}
			}
		}, "the names of its directories take more than"},
		{"too deep", func(yield func(string) bool) { yield(strings.Repeat("d/", maxDepth+1)) }, "directories deep"},
		{"deep", func(yield func(string) bool) { yield(strings.Repeat("d/", maxDepth-1)) }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			root, err := os.OpenRoot(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = root.Close() }()
			_, err = Unpack(t.Context(), pack(c.names),
				Rules{Target: Into(root), UID: os.Getuid(), GID: os.Getgid(), MaxDirBytes: 2 << 20})
			if c.fault == "" && err != nil || c.fault != "" && (err == nil || !strings.Contains(err.Error(), c.fault)) {
				t.Errorf("got %v, want %q", err, c.fault)
			}
		})
	}
}

// TestMemoryOfDirectoryNames: what is remembered of directories takes about as much memory as the bound says, however
// well the names compress.
func TestMemoryOfDirectoryNames(t *testing.T) {
	var archive bytes.Buffer
	z := gzip.NewWriter(&archive)
	w := tar.NewWriter(z)
	long := strings.Repeat(strings.Repeat("d", 200)+"/", 9)
	const bound = 1 << 20
	for i := range 2 * bound / len(long) {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: fmt.Sprintf("%s%d/", long, i), Mode: 0o755,
			Format: tar.FormatPAX}); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	size := archive.Len()
	root, _ := openRoot(t)
	var before runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	most := uint64(0)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
				var now runtime.MemStats
				runtime.ReadMemStats(&now)
				most = max(most, now.HeapAlloc-min(before.HeapAlloc, now.HeapAlloc))
			}
		}
	}()
	_, err := Unpack(t.Context(), &archive, Rules{Target: Into(root), UID: os.Getuid(), GID: os.Getgid(),
		MaxDirBytes: bound})
	close(stop)
	<-stopped
	if !errors.Is(err, errHostile) {
		t.Errorf("got %v, want the archive to be refused", err)
	}
	t.Logf("an archive of %d KiB, names of up to %d MiB: %d MiB in use at most", size>>10, bound>>20, most>>20)
	// Names, the buffers of gzip and files, and what the collector has not found yet.
	if most > bound+(12<<20) {
		t.Errorf("%d MiB in use, want at most %d", most>>20, (bound+(12<<20))>>20)
	}
}
