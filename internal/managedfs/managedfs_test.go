package managedfs

import (
	"os"
	"regexp"
	"testing"
)

// A file system is complete in the table, in what is installed for it, and in the page about disks.
func TestFileSystemsAreComplete(t *testing.T) {
	for _, f := range All {
		if f.Name == "" || len(f.Make) == 0 || len(f.Check) == 0 || len(f.Look) == 0 {
			t.Errorf("%+v is not complete", f)
		}
		for file, text := range map[string]string{"packaging/deb/control": f.Package, "scripts/setup": f.Package,
			"docs/disks.md": f.Make[0]} {
			data, err := os.ReadFile("../../" + file)
			if err != nil {
				t.Fatal(err)
			}
			if !regexp.MustCompile(`\b` + regexp.QuoteMeta(text) + `\b`).Match(data) {
				t.Errorf("%s does not have %s", file, text)
			}
		}
	}
}
