//go:build nightly

package release

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"cambium/internal/skiptest"
)

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

// build builds a release from a clone in which the commit has the release's tag.
func build(t *testing.T, source, out string) {
	t.Helper()
	signingKey, err := key()
	if err != nil {
		t.Fatal(err)
	}
	run(t, "../..", nil, "git", "clone", "--quiet", "--no-tags", ".", source)
	run(t, source, nil, "git", "tag", version)
	run(t, source, []string{"SIGNING_KEY=" + signingKey}, "scripts/release", version, out)
}

// TestNightlyTwoBuilds follows docs/stemcells.md in a clone of its own: the same commit gives the same bytes as in
// another place.
func TestNightlyTwoBuilds(t *testing.T) {
	one, clone := dist(t), filepath.Join(t.TempDir(), "another/and/deeper")
	run(t, "../..", nil, "git", "clone", "--quiet", "--no-tags", ".", clone)
	run(t, clone, nil, "git", "tag", version)
	again := commands(t, "Building it again", "checkout V", "checkout "+version, "=V", "="+version, "URL_IN_THE_METALINK",
		"https://localhost", "THE_DOWNLOAD", one)
	run(t, clone, nil, "sh", "-ec", again)
}

// TestNightlyVerify follows docs/stemcells.md with a whole release.
func TestNightlyVerify(t *testing.T) {
	dir := dist(t)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	wanted := []string{"SHA256SUMS", "SHA256SUMS.sig", "cambium-stemcell-assets-1.2.3.tar.gz",
		"cambium-1.2.3-licenses.txt", "cambium-1.2.3-provenance.json", "CHANGELOG-1.2.3.md",
		"metalink.meta4", "cambium-agent-release-1.2.3.tgz"}
	for _, arch := range []string{"amd64", "arm64"} {
		for _, program := range []string{"agent", "agent-fips", "lab", "cpi"} {
			binary := "cambium-" + program + "-1.2.3-linux-" + arch
			wanted = append(wanted, binary, binary+".spdx.json", binary+".cdx.json")
		}
		wanted = append(wanted, "bosh-agent-1.2.3-linux-"+arch, "cambium-lab-guest-1.2.3-linux-"+arch+".tar.gz",
			"cambium-agent_1.2.3_"+arch+".deb")
	}
	slices.Sort(wanted)
	if !slices.Equal(names, wanted) {
		t.Errorf("the release has %q, want %q", names, wanted)
	}
	if os.Getenv("CAMBIUM_RELEASE") != "" {
		skiptest.Skip(t, "a release from elsewhere has another key")
	}
	signingKey, err := key()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := verify(t, dir, signingKey, "", commands(t, "A whole release")); err != nil {
		t.Errorf("docs/stemcells.md refuses the release: %v: %s", err, out)
	}
}

// bill is the content of a bill of materials: the digest of its program, and "name version digest" of each part.
type bill struct {
	program string
	parts   []string
}

// read reads a bill in either format.
func read(t *testing.T, path string) bill {
	t.Helper()
	type part struct {
		Name, Version, VersionInfo string
		Hashes                     []struct{ Alg, Content string }
		Checksums                  []struct{ Algorithm, ChecksumValue string }
	}
	var decoded struct {
		Metadata             struct{ Component part }
		Components, Packages []part
	}
	data, err := os.ReadFile(path)
	if err := errors.Join(err, json.Unmarshal(data, &decoded)); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	all := decoded.Packages // SPDX's first is the product
	if len(all) == 0 {
		all = append([]part{decoded.Metadata.Component}, decoded.Components...)
	}
	var b bill
	for i, p := range all {
		digest := ""
		for _, h := range p.Hashes {
			digest += h.Alg + ":" + h.Content
		}
		for _, c := range p.Checksums {
			digest += strings.Replace(c.Algorithm, "SHA", "SHA-", 1) + ":" + c.ChecksumValue
		}
		if i == 0 {
			b.program = digest
		} else {
			b.parts = append(b.parts, p.Name+" "+p.Version+p.VersionInfo+" "+digest)
		}
	}
	slices.Sort(b.parts)
	return b
}

// TestNightlyBills: every program of the release, also of its archives and packages, has a bill in each format, which
// has the program's digest and every module of it.
func TestNightlyBills(t *testing.T) {
	dir, unpacked := dist(t), t.TempDir()
	run(t, dir, nil, "bash", "-ec", `for f in *.tar.gz; do mkdir "$0/$f"; tar -xzf "$f" -C "$0/$f"; done
		for f in *.deb; do dpkg-deb --extract "$f" "$0/$f"; done`, unpacked)
	programs, bills := map[string]string{}, map[string]map[string]bill{".spdx.json": {}, ".cdx.json": {}}
	for _, root := range []string{dir, unpacked} {
		err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			for format, all := range bills {
				if strings.HasSuffix(path, format) {
					b := read(t, path)
					all[b.program] = b
				}
			}
			data, err := os.ReadFile(path)
			if bytes.HasPrefix(data, []byte("\x7fELF")) {
				programs[path] = fmt.Sprintf("SHA-256:%x", sha256.Sum256(data))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(programs) < 14 { // agent, lab, CPI, FIPS agent, packaged agent, two helpers, for two architectures
		t.Errorf("the release has only the programs %q", programs)
	}
	for program, digest := range programs {
		// `go version -m`, which docs/stemcells.md names, is another reader of the list in the binary.
		var want []string
		for line := range strings.Lines(run(t, "/", nil, "go", "version", "-m", program)) {
			if f := strings.Fields(line); len(f) == 4 && f[0] == "dep" {
				sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(f[3], "h1:"))
				if err != nil {
					t.Fatal(err)
				}
				want = append(want, fmt.Sprintf("%s %s SHA-256:%x", f[1], f[2], sum))
			}
		}
		slices.Sort(want)
		for format, all := range bills {
			b, found := all[digest]
			stdlib := func(part string) bool { return strings.HasPrefix(part, "stdlib ") }
			got := slices.DeleteFunc(slices.Clone(b.parts), stdlib)
			if !found || len(b.parts) != len(got)+1 || !slices.Equal(got, want) {
				t.Errorf("%s %s (found: %v) has %q, go version -m %q", program, format, found, b.parts, want)
			}
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
