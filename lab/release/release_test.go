package release

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func list(t *testing.T, data []byte) map[string]int64 {
	t.Helper()
	zip, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int64{}
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		found[h.Name] = h.Mode
	}
}

func TestArchives(t *testing.T) {
	jobs, packages := web()
	templates, err := Templates("", jobs)
	if err != nil {
		t.Fatal(err)
	}
	got := list(t, templates)
	for path, mode := range map[string]int64{"./web/monit": 0o644, "./web/bin/ctl": 0o755, "./web/": 0o755,
		"./web/bin/": 0o755} {
		if got[path] != mode {
			t.Errorf("templates have %s with mode %o, want %o (all: %v)", path, got[path], mode, got)
		}
	}
	second, err := Templates("", jobs)
	if err != nil || !bytes.Equal(templates, second) {
		t.Errorf("equal templates made different archives (%v)", err)
	}
	data, err := packages[0].Pack("")
	if err != nil {
		t.Fatal(err)
	}
	if got := list(t, data); got["./bin/web"] != 0o755 {
		t.Errorf("package has %v, want ./bin/web with mode 755", got)
	}
	if _, err := (Package{Name: "x", Files: Files{"../y": ""}}).Pack(""); err == nil {
		t.Error("a path that leaves the archive was packed")
	}
}

func TestPackageFromDirectory(t *testing.T) {
	base := t.TempDir()
	if err := os.MkdirAll(filepath.Join(base, "p/bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(base, "p/bin/tool"), []byte("\x7fELF"), 0o755); err != nil {
		t.Fatal(err)
	}
	data, err := Package{Name: "p", Dir: "p"}.Pack(base)
	if err != nil {
		t.Fatal(err)
	}
	if got := list(t, data); got["./bin/tool"] != 0o755 {
		t.Errorf("package has %v, want ./bin/tool with mode 755", got)
	}
	if _, err := (Package{Name: "p", Dir: "missing"}).Pack(base); err == nil {
		t.Error("a missing directory was packed")
	}
}

func TestManifest(t *testing.T) {
	m, err := parseManifest([]byte("name: d\ninstance_groups:\n- name: a\n  jobs: [{name: j, files: {monit: \"\"}}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	if g := m.Groups[0]; g.Instances != 1 || g.EphemeralDisk != 4096 || g.Jobs[0].Name != "j" {
		t.Errorf("got %+v, want defaults filled in", g)
	}
	for text, want := range map[string]string{
		"{}":      "name is missing",
		"name: d": "instance_groups is empty",
		"name: d\ninstance_groups: [{name: a}, {name: a}]":             "used twice",
		"name: d\ninstance_groups: [{name: a, instances: -1}]":         "positive",
		"name: d\ninstance_groups: [{name: a, color: red}]":            "color",
		"name: d\ninstance_groups: [{name: a, jobs: [{files: {}}]}]":   "no name",
		"{\"name\": \"d\", \"instance_groups\": [{\"instances\": 1}]}": "name is missing",
	} {
		if _, err := parseManifest([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseManifest(%q) = %v, want an error with %q", text, err, want)
		}
	}
}
