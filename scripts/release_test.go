package scripts

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestReleaseNeedsItsTag: what is built under a version is the commit that has its tag, and nothing that is not in it.
// Anything else can be built, and says that it is a development build.
func TestReleaseNeedsItsTag(t *testing.T) {
	dir, out := t.TempDir(), filepath.Join(t.TempDir(), "dist")
	script, err1 := os.ReadFile("release")
	makefile, err2 := os.ReadFile("../Makefile")
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	write := func(name string, data []byte) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	git := func(args ...string) {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-c", "user.name=test", "-c", "user.email=test@localhost"},
			args...)...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v: %s", args, err, out)
		}
	}
	commit := func() { git("commit", "--quiet", "--allow-empty", "--message", "a change") }
	build := func() string {
		cmd := exec.Command("env", "-u", "VERSION", "-u", "MAKEFLAGS", "make", "--dry-run", "-C", dir, "build")
		said, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("make: %v: %s", err, said)
		}
		return string(said)
	}
	// The first thing that is built stops it.
	release := func() string {
		cmd := exec.Command(filepath.Join(dir, "scripts/release"), "1.2.3", out)
		cmd.Env = append(os.Environ(), "GO="+filepath.Join(t.TempDir(), "building"), "COMMIT=1234567", "COMMIT_TIME=1")
		said, err := cmd.CombinedOutput()
		if err == nil {
			t.Fatalf("a release without Go: %s", said)
		}
		return string(said)
	}
	refused := func(what, want string) {
		t.Helper()
		if said := build(); !strings.Contains(said, `"main.version=[DEV BUILD] `) {
			t.Errorf("a build %s does not say that it is a development build: %s", what, said)
		}
		if said := release(); !strings.Contains(said, want) || strings.Count(said, "\n") != 1 {
			t.Errorf("a release %s: %q, want one line with %q", what, said, want)
		}
	}
	write("scripts/release", script)
	write("Makefile", makefile)
	git("init", "--quiet")
	git("add", ".")
	commit()
	refused("without a tag", "has no tag 1.2.3")
	git("tag", "--annotate", "--message", "1.2.3", "1.2.3")
	said := release() + build()
	if !strings.Contains(said, "No such file") || !strings.Contains(said, `"main.version=1.2.3"`) {
		t.Errorf("a release with its tag is not built: %s", said)
	}
	write("cmd/agent/more.go", []byte("package main\n"))
	refused("with a file that is in no commit", "not committed")
	git("add", ".")
	refused("with a file that is in no commit", "not committed")
	commit()
	refused("of the commit after the tag", "has no tag 1.2.3")
	git("tag", "1.2.4")
	if said := release(); !strings.Contains(said, "has no tag 1.2.3") {
		t.Errorf("a release with the tag of another version: %s", said)
	}
}
