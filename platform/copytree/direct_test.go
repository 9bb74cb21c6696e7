package copytree

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestReadAt reads at offsets and lengths that O_DIRECT allows and that it does not, and past the end.
func TestReadAt(t *testing.T) {
	dir := t.TempDir()
	content := make([]byte, 3*directAlign+5)
	for i := range content {
		content[i] = byte(i % 251)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(fd)
	size := int64(len(content))
	for _, r := range []struct{ offset, length int64 }{
		{0, size}, {0, 1}, {0, directAlign}, {directAlign, directAlign + 1}, {3 * directAlign, 5}, // as a file without holes is read
		{1, 10}, {1024, size - 1024}, // data of a sparse file with small blocks
	} {
		file, err := openDirect(fd, "file")
		if err != nil {
			t.Fatal(err)
		}
		b := alignedBlock()[:r.length]
		if err := readAt(file, b, r.offset); err != nil || !bytes.Equal(b, content[r.offset:][:r.length]) {
			t.Errorf("%d bytes at %d: %v, or not what the file holds", r.length, r.offset, err)
		}
		var differs *DifferenceError
		if err := readAt(file, b, size-r.length+1); !errors.As(err, &differs) {
			t.Errorf("%d bytes up to behind the end: %v, want a difference", r.length, err)
		}
		closeAll(file)
	}
}
