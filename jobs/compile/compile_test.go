package compile

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha1"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cambium/internal/blob"
	"cambium/internal/vcap"
	"cambium/jobs"
	"cambium/jobs/bundle"

	"github.com/sirupsen/logrus"
)

type memory map[string][]byte

func (m memory) Open(_ context.Context, ref blob.Ref) (io.ReadCloser, error) {
	content, ok := m[ref.ID]
	if !ok {
		return nil, errors.New("no such blob")
	}
	return ref.Digest.Verify(io.NopCloser(bytes.NewReader(content)))
}

func (m memory) add(t *testing.T, compressed bool, files map[string]string) (id string, ref blob.Ref) {
	t.Helper()
	var b bytes.Buffer
	var out io.WriteCloser = nopCloser{&b}
	if compressed {
		out = gzip.NewWriter(&b)
	}
	w := tar.NewWriter(out)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(files[name])),
			Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		io.WriteString(w, files[name])
	}
	if err := errors.Join(w.Close(), out.Close()); err != nil {
		t.Fatal(err)
	}
	id = fmt.Sprintf("%x", sha1.Sum(b.Bytes()))
	m[id] = b.Bytes()
	digest, err := blob.ParseDigest(id)
	if err != nil {
		t.Fatal(err)
	}
	return id, blob.Ref{ID: id, Digest: digest}
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

func compiler(t *testing.T) (Compiler, memory) {
	t.Helper()
	log := logrus.New()
	log.SetOutput(t.Output())
	c := Compiler{Dirs: vcap.New(t.TempDir()), Owner: bundle.Owner{UID: os.Geteuid(), GID: os.Getegid()}, Parallel: 2,
		Log: logrus.NewEntry(log)}
	for _, dir := range []string{c.Dirs.SysLog(), c.Dirs.Data()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(c.Dirs.DataSys(), c.Dirs.Sys()); err != nil {
		t.Fatal(err)
	}
	blobs := memory{}
	c.Blobs = blobs
	return c, blobs
}

func unpacked(t *testing.T, data []byte) (map[string]string, bundle.Compression) {
	t.Helper()
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	compression, err := bundle.Unpack(t.Context(), bytes.NewReader(data),
		bundle.Rules{Target: bundle.Into(root), UID: os.Geteuid(), GID: os.Getegid()})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, path := range []string{"bin/tool", "link", "hard"} {
		if content, err := os.ReadFile(filepath.Join(dir, path)); err == nil {
			got[path] = string(content)
		}
	}
	return got, compression
}

func into(b *bytes.Buffer) Upload {
	return func(produce func(io.Writer) error) error { return produce(b) }
}

func (c Compiler) clean(t *testing.T) {
	t.Helper()
	for _, dir := range []string{c.Dirs.Packages(), c.Dirs.DataPackages(), c.Dirs.Compile()} {
		entries, err := os.ReadDir(dir)
		if err == nil && len(entries) > 0 {
			t.Errorf("left in %s: %v", dir, entries)
		}
	}
}

// Contract J.7.
func TestCompileWithDependencies(t *testing.T) {
	for _, compressed := range []bool{true, false} {
		c, blobs := compiler(t)
		dep, _ := blobs.add(t, true, map[string]string{"./lib/words": "from the dependency"})
		_, source := blobs.add(t, compressed, map[string]string{"packaging": `set -e
echo "$BOSH_PACKAGE_NAME $BOSH_PACKAGE_VERSION $TMPDIR"
test "$PWD" = "$BOSH_COMPILE_TARGET"
mkdir $BOSH_INSTALL_TARGET/bin
cat src/prefix $(dirname $BOSH_INSTALL_TARGET)/dep/lib/words > $BOSH_INSTALL_TARGET/bin/tool
ln $BOSH_INSTALL_TARGET/bin/tool $BOSH_INSTALL_TARGET/hard
ln -s bin/tool $BOSH_INSTALL_TARGET/link
`, "src/prefix": "words: "})
		// What was installed before must not be seen by packaging.
		stale := filepath.Join(c.Dirs.DataPackages(), "stale", "h")
		if err := os.MkdirAll(stale, 0o755); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		err := c.Compile(t.Context(), Request{Name: "tool", Version: "1.2", Source: source,
			Dependencies: []jobs.Package{{Name: "dep", Version: "1", Digest: dep, BlobstoreID: dep}}}, into(&out))
		if err != nil {
			t.Fatal(err)
		}
		got, compression := unpacked(t, out.Bytes())
		if want := "words: from the dependency"; got["bin/tool"] != want || got["link"] != want || got["hard"] != want {
			t.Errorf("got %v", got)
		}
		if want := map[bool]bundle.Compression{true: bundle.Gzip, false: bundle.Plain}[compressed]; compression != want {
			t.Errorf("got %s, want %s as the source", compression, want)
		}
		log, err := os.ReadFile(filepath.Join(c.Dirs.SysLog(), "compilation/packaging.stdout.log"))
		if err != nil || string(log) != "tool 1.2 "+c.Dirs.Tmp()+"\n" {
			t.Errorf("log: got %q, %v", log, err)
		}
		trace, err := os.ReadFile(filepath.Join(c.Dirs.SysLog(), "compilation/packaging.stderr.log"))
		if err != nil || !strings.Contains(string(trace), "+ mkdir") {
			t.Errorf("trace: got %q, %v", trace, err)
		}
		c.clean(t)
	}
}

// Contract J.7.
func TestCompileFailures(t *testing.T) {
	c, blobs := compiler(t)
	_, good := blobs.add(t, true, map[string]string{"packaging": "true"})
	_, bad := blobs.add(t, true, map[string]string{"packaging": "for i in $(seq 5000); do echo line $i; done; echo reason >&2; exit 42"})
	_, hostile := blobs.add(t, true, map[string]string{"../evil": "x"})
	_, without := blobs.add(t, true, map[string]string{"file": "x"})
	refused := errors.New("the store is full")
	for _, c2 := range []struct {
		name   string
		r      Request
		upload error
		want   string
	}{
		{"packaging fails", Request{Name: "p", Version: "1", Source: bad}, nil, "exit code 42"},
		{"source is missing", Request{Name: "p", Version: "1", Source: blob.Ref{ID: "no", Digest: good.Digest}}, nil, "no such blob"},
		{"digest is missing", Request{Name: "p", Version: "1", Source: blob.Ref{ID: good.ID}}, nil, "no digest algorithm found"},
		{"digest differs", Request{Name: "p", Version: "1", Source: blob.Ref{ID: good.ID, Digest: bad.Digest}}, nil, "Checksum mismatch"},
		{"hostile source", Request{Name: "p", Version: "1", Source: hostile}, nil, "leaves the archive"},
		{"dependency is missing", Request{Name: "p", Version: "1", Source: good, Dependencies: []jobs.Package{{Name: "d", Version: "1", Digest: "ab", BlobstoreID: "no"}}}, nil, `package "d"`},
		{"dependency with a path", Request{Name: "p", Version: "1", Source: good, Dependencies: []jobs.Package{{Name: "../d", Version: "1", Digest: "ab", BlobstoreID: "no"}}}, nil, "not a valid name"},
		{"name with a path", Request{Name: "../p", Version: "1", Source: good}, nil, "not a valid name"},
		{"no version", Request{Name: "p", Source: good}, nil, "no version"},
		{"upload fails", Request{Name: "p", Version: "1", Source: good}, refused, "the store is full"},
	} {
		err := c.Compile(t.Context(), c2.r, func(produce func(io.Writer) error) error { return errors.Join(produce(io.Discard), c2.upload) })
		if err == nil || !strings.Contains(err.Error(), c2.want) {
			t.Errorf("%s: got %v, want %q", c2.name, err, c2.want)
		}
		if c2.name == "packaging fails" && (!strings.Contains(err.Error(), "line 5000") ||
			!strings.Contains(err.Error(), "reason") || strings.Contains(err.Error(), "line 1\n") ||
			len(err.Error()) > 2*quoted+500) {
			t.Errorf("%s: got %d bytes that do not end the streams", c2.name, len(err.Error()))
		}
		c.clean(t)
	}
	var out bytes.Buffer
	if err := c.Compile(t.Context(), Request{Name: "p", Version: "1", Source: without}, into(&out)); err != nil ||
		out.Len() == 0 {
		t.Errorf("without a script: %v, %d bytes", err, out.Len())
	}
	if evil, _ := filepath.Glob(filepath.Join(c.Dirs.Data(), "evil")); evil != nil {
		t.Errorf("unpacked outside: %v", evil)
	}
}
