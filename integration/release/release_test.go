//go:build nightly

package release

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const version = "1.2.3"

// run runs a program in a directory.
func run(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %q: %v: %s%s", name, args, err, out, stderr.Bytes())
	}
	return string(out)
}

// key is a signing key for all tests.
var key = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "cambium-release-*")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "key")
	return path, exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", path).Run()
})

// built is a release that was built once for all tests. CAMBIUM_RELEASE names one that is there.
var built struct {
	once sync.Once
	dir  string
}

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := key(); err == nil {
		_ = os.RemoveAll(filepath.Dir(path))
	}
	if built.dir != "" && os.Getenv("CAMBIUM_RELEASE") == "" {
		_ = os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// dist returns the directory of a release.
func dist(t *testing.T) string {
	t.Helper()
	built.once.Do(func() {
		if built.dir = os.Getenv("CAMBIUM_RELEASE"); built.dir != "" {
			return
		}
		dir, err := os.MkdirTemp("", "cambium-release-*")
		if err != nil {
			t.Fatal(err)
		}
		build(t, filepath.Join(t.TempDir(), "source"), dir)
		built.dir = dir
	})
	if built.dir == "" {
		t.Fatal("the release was not built")
	}
	return built.dir
}

// build builds a release from an export of the commit, in a directory of its own.
func build(t *testing.T, source, out string) {
	t.Helper()
	signingKey, err := key()
	if err != nil {
		t.Fatal(err)
	}
	commit := strings.TrimSpace(run(t, "../..", nil, "git", "rev-parse", "HEAD"))
	when := strings.TrimSpace(run(t, "../..", nil, "git", "log", "-1", "--format=%ct"))
	if err := os.MkdirAll(source, 0o755); err != nil {
		t.Fatal(err)
	}
	run(t, "../..", nil, "sh", "-c", `git archive HEAD | tar -x -C "$1"`, "sh", source)
	run(t, source, []string{"COMMIT=" + commit, "COMMIT_TIME=" + when, "SIGNING_KEY=" + signingKey}, "scripts/release", version, out)
}

// TestNightlyTwoBuilds: two builds in two places are the same bytes, signatures included.
func TestNightlyTwoBuilds(t *testing.T) {
	one, two := dist(t), t.TempDir()
	build(t, filepath.Join(t.TempDir(), "another/and/deeper"), two)
	if out, err := exec.Command("diff", "-r", one, two).CombinedOutput(); err != nil {
		t.Errorf("two builds differ: %s", out)
	}
}

// TestNightlyVerify follows docs/verify.md.
func TestNightlyVerify(t *testing.T) {
	dir := dist(t)
	run(t, dir, nil, "sha256sum", "--check", "--quiet", "SHA256SUMS")
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
		if name := e.Name(); name != "SHA256SUMS" && !strings.HasSuffix(name, ".sig") && !strings.Contains(string(sums), "  "+name+"\n") {
			t.Errorf("SHA256SUMS has no %s", name)
		}
	}
	for _, want := range []string{"cambium-agent-1.2.3-linux-amd64", "cambium-agent-1.2.3-linux-arm64", "cambium-agent-fips-1.2.3-linux-amd64", "cambium-lab-1.2.3-linux-amd64",
		"cambium-agent_1.2.3_amd64.deb", "cambium-agent_1.2.3_arm64.deb", "cambium-stemcell-assets-1.2.3.tar.gz", "cambium-1.2.3-licenses.txt", "CHANGELOG-1.2.3.md"} {
		if !slices.Contains(names, want) {
			t.Errorf("the release has no %s, only %q", want, names)
		}
	}
	signingKey, err := key()
	if err != nil || os.Getenv("CAMBIUM_RELEASE") != "" {
		t.Skip("a release from elsewhere has another key")
	}
	public, err := os.ReadFile(signingKey + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	signers := filepath.Join(t.TempDir(), "signers")
	if err := os.WriteFile(signers, append([]byte("release@cambium namespaces=\"cambium-release\" "), public...), 0o600); err != nil {
		t.Fatal(err)
	}
	verify := `ssh-keygen -Y verify -f "$1" -I release@cambium -n cambium-release -s SHA256SUMS.sig <"$2"`
	run(t, dir, nil, "sh", "-c", verify, "sh", signers, "SHA256SUMS")
	changed := filepath.Join(t.TempDir(), "SHA256SUMS")
	if err := os.WriteFile(changed, append(sums, ' '), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", verify, "sh", signers, changed)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err == nil {
		t.Errorf("changed checksums are accepted: %s", out)
	}
}

// TestNightlyBills: every binary has its modules in both bills, and the provenance names every file and the commit.
func TestNightlyBills(t *testing.T) {
	dir := dist(t)
	for _, name := range []string{"cambium-agent-1.2.3-linux-arm64.spdx.json", "cambium-agent-1.2.3-linux-arm64.cdx.json"} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !json.Valid(data) || !bytes.Contains(data, []byte("pkg:golang/github.com/nats-io/nats.go@")) {
			t.Errorf("%s: %v: %.200s", name, err, data)
		}
	}
	data, err := os.ReadFile(filepath.Join(dir, "cambium-1.2.3-provenance.json"))
	var statement struct {
		Subject   []struct{ Name string }
		Predicate struct {
			BuildDefinition struct {
				ResolvedDependencies []struct{ Digest map[string]string }
			}
		}
	}
	if err := errors.Join(err, json.Unmarshal(data, &statement)); err != nil {
		t.Fatal(err)
	}
	if len(statement.Subject) < 10 || len(statement.Predicate.BuildDefinition.ResolvedDependencies[0].Digest["gitCommit"]) != 40 {
		t.Errorf("provenance: %s", data)
	}
	licenses, err := os.ReadFile(filepath.Join(dir, "cambium-1.2.3-licenses.txt"))
	if err != nil || !bytes.Contains(licenses, []byte("github.com/vishvananda/netlink v")) {
		t.Errorf("licenses of %d bytes (%v) without netlink", len(licenses), err)
	}
}
