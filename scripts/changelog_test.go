package scripts

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestChangelog: a version has its own section, and one without a section has the newest.
func TestChangelog(t *testing.T) {
	dir := t.TempDir()
	script, err := os.ReadFile("changelog")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"scripts/changelog": string(script),
		"CHANGELOG.md": "# Changelog\n\n## Unreleased\n\n- new\n\n## 1.0.0\n\n- first\n\n### Disks\n\n- second\n"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for version, want := range map[string]string{
		"1.0.0": "## 1.0.0\n\n- first\n\n### Disks\n\n- second\n",
		"1.1.0": "## 1.1.0\n\n- new\n\n",
	} {
		if got, err := exec.Command(filepath.Join(dir, "scripts/changelog"),
			version).Output(); string(got) != want || err != nil {
			t.Errorf("%s: got\n%s\n%v, want\n%s", version, got, err, want)
		}
	}
}
