//go:build root

package iaas

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"cambium/internal/looptest"
	"cambium/internal/skiptest"
	"cambium/lab/iaas/upload"
)

func TestMain(m *testing.M) { looptest.Main(m) }

// TestRootImportIsFlushed: an image whose import was answered is complete on the disk of the host, so that a power cut
// right after the answer loses nothing. The disk is read past the file system, as a cut would leave it.
func TestRootImportIsFlushed(t *testing.T) {
	looptest.Needs(t, "mkfs.ext4", "mount", "tar")
	host := looptest.New(t, 128<<20)
	mounted := mount(t, host, "mkfs.ext4", "-q", host.Path)
	i := opened(t, mounted)
	const files = 200
	content := func(n int) []byte { return bytes.Repeat([]byte(fmt.Sprintf("%04d", n)), 5000) }
	cid, err := i.CreateStemcell(t.Context(), Upload{Image: bytes.NewReader(rootFileSystem(t, files, content))})
	if err != nil {
		t.Fatal(err)
	}
	image := i.stemcells[cid].Image
	kept := filepath.Join(t.TempDir(), "kept.img")
	if out, err := exec.Command("cp", "--sparse=always", host.Image, kept).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	after := mount(t, looptest.Attach(t, kept))
	relative, err := filepath.Rel(mounted, i.imagePath(image, upload.Tree))
	if err != nil {
		t.Fatal(err)
	}
	for n := range files {
		data, err := os.ReadFile(filepath.Join(after, relative, "etc", fmt.Sprint(n)))
		if err != nil || !bytes.Equal(data, content(n)) {
			t.Fatalf("after a power cut file %d of the image has %d bytes (%v), want %d", n, len(data), err, len(content(n)))
		}
	}
	if records, _ := filepath.Glob(filepath.Join(after, "*", "stemcells", cid.String(), "*")); len(records) == 0 {
		t.Error("after a power cut there is no record of the stemcell")
	}
}

// TestRootClosedToOthers: users of the host get into nothing of an IaaS, however careless its operator's umask is.
func TestRootClosedToOthers(t *testing.T) {
	skiptest.WithoutRoot(t, "for network namespaces")
	defer unix.Umask(unix.Umask(0))
	i := opened(t, t.TempDir())
	content := func(int) []byte { return []byte("x") }
	cid, err := i.CreateStemcell(t.Context(), Upload{Image: bytes.NewReader(rootFileSystem(t, 1, content))})
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]fs.FileMode{
		i.store.dir: fs.ModeDir | 0o700, filepath.Join(i.store.dir, images): fs.ModeDir | 0o700,
		i.store.path(cid): fs.ModeDir | 0o700, i.store.path(cid, recordName): 0o600,
	} {
		info, err := os.Stat(path)
		if err != nil {
			t.Error(err)
		} else if info.Mode() != want {
			t.Errorf("%s: got %v, want %v", path, info.Mode(), want)
		}
	}
}

// opened is an IaaS until the end of the test.
func opened(t *testing.T, dir string) *IaaS {
	t.Helper()
	log := logrus.New()
	log.SetOutput(io.Discard)
	i, err := Open(dir, fmt.Sprintf("f%d", os.Getpid()), logrus.NewEntry(log))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := i.Close(); err != nil {
			t.Error(err)
		}
	})
	return i
}

// mount mounts a loop device of the test, after it has run a command that makes a file system.
func mount(t *testing.T, d *looptest.Device, make ...string) string {
	t.Helper()
	at := t.TempDir()
	commands := [][]string{make, {"mount", d.Path, at}}
	for _, argv := range commands {
		if len(argv) == 0 {
			continue
		}
		if err := looptest.Guard(d.Path); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", argv, err, out)
		}
	}
	return at
}

// rootFileSystem is a tarball with an init and numbered files.
func rootFileSystem(t *testing.T, files int, content func(int) []byte) []byte {
	t.Helper()
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	w := tar.NewWriter(zip)
	add := func(name string, data []byte) {
		err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(data))})
		if err == nil {
			_, err = w.Write(data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	add("sbin/init", nil)
	for n := range files {
		add(fmt.Sprintf("etc/%d", n), content(n))
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zip.Close(); err != nil {
		t.Fatal(err)
	}
	return packed.Bytes()
}
