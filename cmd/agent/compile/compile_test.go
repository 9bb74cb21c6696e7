package compile

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha1"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func tgz(t *testing.T, files map[string]string) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(files[name]))}); err != nil {
			t.Fatal(err)
		}
		io.WriteString(w, files[name])
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func untgz(t *testing.T, data []byte) (files map[string]string, order []string) {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	files = map[string]string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			return files, order
		}
		if err != nil {
			t.Fatal(err)
		}
		content, _ := io.ReadAll(r)
		files[h.Name] = string(content)
		order = append(order, h.Name)
	}
}

func TestCompileReleases(t *testing.T) {
	base := t.TempDir()
	osRelease := filepath.Join(base, "bosh/etc/os-release")
	for name, content := range map[string]string{"operating_system": "ubuntu", "stemcell_version": "1.10",
		"os-release": "NAME=\"Ubuntu\"\nID=ubuntu\nVERSION_CODENAME=\"noble\"\n"} {
		if err := os.MkdirAll(filepath.Join(base, "bosh/etc"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(base, "bosh/etc", name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	packaging := func(script string) string { return tgz(t, map[string]string{"packaging": script}) }
	app := packaging("cat $(dirname $BOSH_INSTALL_TARGET)/{lib,base}/word > $BOSH_INSTALL_TARGET/words")
	lib := packaging("cat $(dirname $BOSH_INSTALL_TARGET)/base/word > /dev/null; echo lib > $BOSH_INSTALL_TARGET/word")
	word := packaging("echo base > $BOSH_INSTALL_TARGET/word")
	mf := func(dep string) string {
		return fmt.Sprintf(`---
name: rel
version: 1.10
commit_hash: 0012345
uncommitted_changes: true
jobs:
- {name: j, version: "1", fingerprint: f, sha1: x}
packages:
- name: app
  version: va
  fingerprint: fa
  sha1: %x
  dependencies: [%s]
- name: lib
  version: vl
  fingerprint: fl
  sha1: %x
  dependencies:
  - base
- name: base
  version: vb
  fingerprint: fb
  sha1: %x
  dependencies: []
`, sha1.Sum([]byte(app)), dep, sha1.Sum([]byte(lib)), sha1.Sum([]byte(word)))
	}
	release := filepath.Join(t.TempDir(), "rel.tgz")
	write := func(files map[string]string) {
		t.Helper()
		if err := os.WriteFile(release, []byte(tgz(t, files)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	good := map[string]string{"./release.MF": mf("lib"), "packages/app.tgz": app, "packages/lib.tgz": lib,
		"packages/base.tgz": word, "jobs/j.tgz": "a job"}
	write(good)
	out := t.TempDir()
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), osRelease, []string{"-b", base, "-output-directory", out, release}, &stdout,
		&stderr); code != 0 {
		t.Fatalf("got %d: %s", code, stderr.String())
	}
	path := filepath.Join(out, "rel-1.10-ubuntu-noble-1.10.tgz")
	if stdout.String() != path+"\n" {
		t.Errorf("got %q, want %q", stdout.String(), path)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	files, order := untgz(t, data)
	if got := strings.Join(order, " "); got != "./release.MF ./ ./compiled_packages/ ./compiled_packages/app.tgz "+
		"./compiled_packages/base.tgz ./compiled_packages/lib.tgz ./jobs/ ./jobs/j.tgz" {
		t.Errorf("got %s", got)
	}
	compiled, _ := untgz(t, []byte(files["./compiled_packages/app.tgz"]))
	if compiled["./words"] != "lib\nbase\n" {
		t.Errorf("got %v", compiled)
	}
	text := files["./release.MF"]
	for _, want := range []string{"version: 1.10\n", "commit_hash: 0012345\n", "compiled_packages:\n",
		`stemcell: "ubuntu-noble/1.10"`, fmt.Sprintf(`sha1: "%x"`, sha1.Sum([]byte(files["./compiled_packages/app.tgz"])))} {
		if !strings.Contains(text, want) {
			t.Errorf("the manifest lacks %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "\npackages:") {
		t.Errorf("the manifest still lists sources:\n%s", text)
	}

	for name, change := range map[string]map[string]string{
		"depends on itself":  {"./release.MF": strings.Replace(mf("lib"), "[]", "[app]", 1)},
		"does not have":      {"./release.MF": mf("nope")},
		"Checksum mismatch":  {"packages/base.tgz": app},
		"not a release":      {"./release.MF": "", "x": ""},
		"exit code 9":        {"packages/base.tgz": tgz(t, map[string]string{"packaging": "exit 9"})},
		"already compiled":   {"./release.MF": mf("lib") + "compiled_packages:\n- name: x\n"},
		"leaves the archive": {"../evil": "x"},
		"missing or invalid": {"./release.MF": strings.Replace(mf("lib"), "name: lib", "name: ../lib", 1)},
		"manifest: line 2":   {"./release.MF": "name: [\n[\n"},
	} {
		files := maps.Clone(good)
		maps.Copy(files, change)
		if name == "not a release" {
			files = map[string]string{"x": ""}
		}
		if name == "exit code 9" {
			files["./release.MF"] = strings.Replace(files["./release.MF"], fmt.Sprintf("%x", sha1.Sum([]byte(word))),
				fmt.Sprintf("%x", sha1.Sum([]byte(files["packages/base.tgz"]))), 1)
		}
		write(files)
		stderr.Reset()
		empty := t.TempDir()
		if code := run(t.Context(), osRelease, []string{"-b", base, "-output-directory", empty, release}, io.Discard,
			&stderr); code != 1 || !strings.Contains(stderr.String(), name) {
			t.Errorf("%s: got %d: %s", name, code, stderr.String())
		}
		if left, _ := os.ReadDir(empty); len(left) != 0 {
			t.Errorf("%s: left %v", name, left)
		}
	}
	if left, _ := os.ReadDir(filepath.Join(base, "data/tmp")); len(left) != 0 {
		t.Errorf("left %v", left)
	}
	write(good)
	stderr.Reset()
	if code := run(t.Context(), osRelease, []string{"-b", base, "-output-directory", filepath.Join(out, "missing"),
		release}, io.Discard, &stderr); code != 1 ||
		!strings.Contains(stderr.String(), "is not a directory") || strings.Contains(stderr.String(), "compiling") {
		t.Errorf("without the output directory: got %d: %s", code, stderr.String())
	}
	if code := Run(t.Context(), nil, io.Discard, io.Discard); code != 2 {
		t.Errorf("without arguments: got %d", code)
	}
}
