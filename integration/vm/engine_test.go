//go:build vm

package vm

import (
	"path/filepath"
	"testing"

	"cambium/lab/disk"
)

func blank(t testing.TB, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk.img")
	if err := disk.Create(path, size); err != nil {
		t.Fatal(err)
	}
	return path
}
