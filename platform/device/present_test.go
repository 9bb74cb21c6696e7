package device

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestPresentListsLinksToDisks(t *testing.T) {
	root := t.TempDir()
	if got := Present(root); len(got) != 0 {
		t.Errorf("nothing: got %q", got)
	}
	dir := filepath.Join(root, "dev/disk/by-id")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"disk/by-id/late": "../../sdz", "disk/by-id/late-part1": "../../sdz1",
		"cdrom": "sr0"} {
		if err := os.Symlink(target, filepath.Join(root, "dev", name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "dev/file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	want := []string{filepath.Join(root, "dev/cdrom"), filepath.Join(dir, "late")}
	if got := Present(root); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
