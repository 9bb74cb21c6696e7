//go:build root

package iaas

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"cambium/internal/skiptest"
	"cambium/lab/room"

	"golang.org/x/sys/unix"
)

// noise is an upload without an end that cannot be compressed.
type noise struct {
	random *rand.ChaCha8
	n      int64
}

func (n *noise) Read(p []byte) (int, error) {
	n.n += int64(len(p))
	return n.random.Read(p)
}

// TestRootUploadsLeaveRoom: neither an upload without an end nor what an upload unpacks to fills the host's file system,
// and nothing of it stays.
func TestRootUploadsLeaveRoom(t *testing.T) {
	skiptest.WithoutRoot(t, "to mount a small file system")
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=32m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	i := opened(t, dir)
	random := &noise{random: rand.NewChaCha8([32]byte{})}
	for name, image := range map[string]io.Reader{
		"without an end": random,
		"a tree":         bytes.NewReader(rootFileSystem(t, 1, func(int) []byte { return make([]byte, 40<<20) })),
		"a disk":         bytes.NewReader(diskOf(t, 40<<20)),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := i.CreateStemcell(t.Context(), Upload{Image: image})
			if !errors.Is(err, room.ErrFull) {
				t.Errorf("got %v, want %v", err, room.ErrFull)
			}
			if left, err := os.ReadDir(filepath.Join(i.store.dir, images)); err != nil || len(left) > 0 {
				t.Errorf("%v is left (%v)", left, err)
			}
		})
	}
	if random.n > 31<<20 {
		t.Errorf("%d MiB were received on a file system of 32", random.n>>20)
	}
}

// diskOf is an upload of a few bytes with a disk of this many in it, which has no holes.
func diskOf(t *testing.T, size int) []byte {
	t.Helper()
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	w := tar.NewWriter(zip)
	err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "root.img", Mode: 0o644, Size: int64(size)})
	if err == nil {
		_, err = w.Write(bytes.Repeat([]byte{0x55, 0xaa}, size/2))
	}
	if err := errors.Join(err, w.Close(), zip.Close()); err != nil {
		t.Fatal(err)
	}
	return packed.Bytes()
}
