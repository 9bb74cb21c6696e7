package initrd

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"cambium/internal/looptest"
)

// TestArchive has cpio itself read what is written.
func TestArchive(t *testing.T) {
	looptest.Needs(t, "cpio")
	cpio, err := exec.LookPath("cpio")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "virtio.ko"), []byte("module"), 0o644); err != nil {
		t.Fatal(err)
	}
	var a Archive
	a.Dir("proc", "a/b/c")
	a.Console()
	a.File("/etc/x/file", []byte("content"), 0o640)
	a.Modules(ModuleDir, dir, "other", "virtio")
	data, err := a.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	list := exec.Command(cpio, "-tv", "--quiet", "--numeric-uid-gid")
	list.Stdin = strings.NewReader(string(data))
	out, err := list.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var got []string
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		got = append(got, fields[0]+" "+fields[len(fields)-1])
	}
	want := []string{"drwxr-xr-x proc", "drwxr-xr-x a", "drwxr-xr-x a/b", "drwxr-xr-x a/b/c", "drwxr-xr-x dev",
		"crw------- dev/console",
		"drwxr-xr-x etc", "drwxr-xr-x etc/x", "-rw-r----- etc/x/file", "drwxr-xr-x modules",
		"-rwxr-xr-x modules/01-virtio.ko"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("cpio lists\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestArchiveKeepsTheFirstError(t *testing.T) {
	var a Archive
	a.Copy("x", "/nowhere/x")
	if _, err := a.Bytes(); !os.IsNotExist(err) {
		t.Errorf("error %v, want that a file is not there", err)
	}
}
