package device

import (
	"os"
	"path/filepath"
	"testing"
)

func TestThere(t *testing.T) {
	root := t.TempDir()
	if got, want := DescribeDisks(root), "the machine's disks cannot be listed: open "+root+"/sys/block: no such file or directory"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for name, size := range map[string]string{"loop0": "2048", "sr0": "0"} {
		put(t, root, name, size)
	}
	if got, want := DescribeDisks(root), "the machine has no disks"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	put(t, root, "sda", "6291456")
	put(t, root, "cciss!c0d0", "2097152")
	if got, want := DescribeDisks(root), "the machine has /dev/cciss/c0d0 (1.0 GiB), /dev/sda (3.0 GiB)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func put(t *testing.T, root, name, size string) {
	t.Helper()
	dir := filepath.Join(root, "sys/block", name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "size"), []byte(size+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}
