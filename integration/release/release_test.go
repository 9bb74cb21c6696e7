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

	"cambium/internal/skiptest"
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

// commands are those of a section of docs/stemcells.md, with the words of words replaced.
func commands(t *testing.T, section string, words ...string) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/stemcells.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(page), "\n### "+section+"\n")
	_, text, block := strings.Cut(text, "\n```sh example\n")
	text, _, end := strings.Cut(text, "\n```\n")
	if !found || !block || !end {
		t.Fatalf("docs/stemcells.md has no commands for %q", section)
	}
	return strings.NewReplacer(words...).Replace(text)
}

// TestNightlyTwoBuilds follows docs/stemcells.md in a clone of its own: the same commit gives the same bytes as in another place.
func TestNightlyTwoBuilds(t *testing.T) {
	one, clone := dist(t), filepath.Join(t.TempDir(), "another/and/deeper")
	commit := strings.TrimSpace(run(t, "../..", nil, "git", "rev-parse", "HEAD"))
	run(t, "../..", nil, "git", "clone", "--quiet", "--no-checkout", ".", clone)
	run(t, clone, nil, "sh", "-ec", commands(t, "Building it again", "COMMIT", commit, "=V", "="+version, "THE_DOWNLOAD", one))
}

// TestNightlyVerify follows docs/stemcells.md.
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
	wanted := []string{"cambium-stemcell-assets-1.2.3.tar.gz", "cambium-1.2.3-licenses.txt", "cambium-1.2.3-provenance.json", "CHANGELOG-1.2.3.md"}
	for _, arch := range []string{"amd64", "arm64"} {
		for _, program := range []string{"agent", "agent-fips", "lab", "cpi"} {
			binary := "cambium-" + program + "-1.2.3-linux-" + arch
			wanted = append(wanted, binary, binary+".spdx.json", binary+".cdx.json")
		}
		wanted = append(wanted, "cambium-lab-guest-1.2.3-linux-"+arch+".tar.gz", "cambium-agent_1.2.3_"+arch+".deb")
	}
	for _, want := range wanted {
		if !slices.Contains(names, want) {
			t.Errorf("the release has no %s, only %q", want, names)
		}
	}
	if os.Getenv("CAMBIUM_RELEASE") != "" {
		skiptest.Skip(t, "a release from elsewhere has another key")
	}
	signingKey, err := key()
	if err != nil {
		t.Fatal(err)
	}
	public, err := os.ReadFile(signingKey + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	download := t.TempDir()
	run(t, "/", nil, "cp", "--recursive", dir+"/.", download)
	if err := os.WriteFile(filepath.Join(download, "release.pub"), public, 0o600); err != nil {
		t.Fatal(err)
	}
	check := commands(t, "Signature and digests")
	if out := run(t, download, nil, "sh", "-ec", check); !strings.Contains(out, `Good "cambium-release" signature`) || !strings.Contains(out, "CHANGELOG-1.2.3.md: OK") {
		t.Errorf("docs/stemcells.md promises other words: %s", out)
	}
	provenance := strings.ReplaceAll(check, "SHA256SUMS.sig <SHA256SUMS", "cambium-1.2.3-provenance.json.sig <cambium-1.2.3-provenance.json")
	run(t, download, nil, "sh", "-ec", provenance)
	for name, change := range map[string]string{"a changed digest": "SHA256SUMS", "a changed file": "CHANGELOG-1.2.3.md"} {
		cmd := exec.Command("sh", "-ec", `echo x >>"$0"; `+check, change)
		cmd.Dir = t.TempDir()
		run(t, "/", nil, "cp", "--recursive", download+"/.", cmd.Dir)
		if out, err := cmd.CombinedOutput(); err == nil {
			t.Errorf("%s is accepted: %s", name, out)
		}
	}
}

// components are the names and versions of a bill in CycloneDX.
func components(t *testing.T, bill []byte) []string {
	t.Helper()
	var decoded struct {
		Components []struct{ Name, Version string }
	}
	if err := json.Unmarshal(bill, &decoded); err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, c := range decoded.Components {
		all = append(all, c.Name+" "+c.Version)
	}
	slices.Sort(all)
	return all
}

// TestNightlyBills: the bills have every module of a binary, and the provenance names every file and the commit.
func TestNightlyBills(t *testing.T) {
	dir := dist(t)
	for _, name := range []string{"cambium-agent-1.2.3-linux-arm64.spdx.json", "cambium-agent-1.2.3-linux-arm64.cdx.json"} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !json.Valid(data) || !bytes.Contains(data, []byte("pkg:golang/github.com/nats-io/nats.go@")) {
			t.Errorf("%s: %v: %.200s", name, err, data)
		}
	}
	// `go version -m`, which docs/stemcells.md names, is another reader of the list in the binary.
	for _, program := range []string{"agent", "agent-fips", "lab", "cpi"} {
		binary := filepath.Join(dir, "cambium-"+program+"-1.2.3-linux-amd64")
		bill, err := os.ReadFile(binary + ".cdx.json")
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for line := range strings.Lines(run(t, "/", nil, "go", "version", "-m", binary)) {
			if f := strings.Fields(line); len(f) >= 3 && f[0] == "dep" {
				want = append(want, f[1]+" "+f[2])
			}
		}
		slices.Sort(want)
		got := slices.DeleteFunc(components(t, bill), func(c string) bool { return strings.HasPrefix(c, "stdlib ") })
		if len(want) == 0 || !slices.Equal(got, want) {
			t.Errorf("the bill of %s has %q, go version -m %q", program, got, want)
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
