package release

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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

// verify runs commands of docs/stemcells.md on a copy of a release that someone changed.
func verify(t *testing.T, release, signingKey, change, check string) (string, error) {
	t.Helper()
	download := filepath.Join(t.TempDir(), "download")
	run(t, "/", nil, "cp", "--recursive", release, download)
	run(t, download, nil, "cp", signingKey+".pub", "../release.pub")
	run(t, download, nil, "bash", "-ec", change)
	cmd := exec.CommandContext(t.Context(), "bash", "-c", check)
	cmd.Dir = download
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestVerify follows docs/stemcells.md with a small release: what someone changed in it is noticed.
func TestVerify(t *testing.T) {
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		skiptest.Skip(t, err)
	}
	release, signingKey := t.TempDir(), filepath.Join(t.TempDir(), "key")
	const agent = "cambium-agent-" + version + "-linux-amd64"
	for _, name := range []string{agent, "cambium-agent-fips-1.2.3-linux-amd64", "CHANGELOG-1.2.3.md"} {
		if err := os.WriteFile(filepath.Join(release, name), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	run(t, "/", nil, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", signingKey)
	run(t, release, nil, "bash", "-ec", `export LC_ALL=C; sums=$(sha256sum -- * | sort -k 2); echo "$sums" >SHA256SUMS
		ssh-keygen -q -Y sign -f "$0" -n cambium-release SHA256SUMS`, signingKey)
	whole, one := commands(t, "A whole release"), commands(t, "One file of it", "FILE", agent)
	const sums, last = "; sha256sum -- cambium* C* >SHA256SUMS", "\nthese are the files of the release\n"
	for _, c := range []struct {
		name, change string
		ofOne        bool // whether those who take the agent alone notice it
	}{
		{"appended bytes", "echo >>" + agent, true},
		{"a missing file", "rm CHANGELOG*", false},
		{"an added file", "cp " + agent + " cambium-agent", false},
		{"a hidden file", "touch .profile", false},
		{"an added directory", "mkdir more", false},
		{"a file beside the digests", "touch SHA256SUMS.more", false},
		{"a renamed agent", "mv " + agent + " cambium-agent-1.2.4-linux-amd64", true},
		{"an agent under the name of another", "mv cambium-agent-fips* " + agent, true},
		{"digests of changed bytes", "echo >>" + agent + sums, true},
		{"digests with a name more", "cp " + agent + " cambium-agent" + sums, true},
		{"digests without a signature", "rm SHA256SUMS.sig", true},
		{"digests that another key signed", "rm *.sig; ssh-keygen -q -t ed25519 -N '' -f ../key; " +
			"ssh-keygen -q -Y sign -f ../key -n cambium-release SHA256SUMS", true},
	} {
		if out, err := verify(t, release, signingKey, c.change, whole); err == nil || strings.Contains(out, last) {
			t.Errorf("%s is not noticed: %s", c.name, out)
		}
		if out, err := verify(t, release, signingKey, c.change, one); (err != nil) != c.ofOne {
			t.Errorf("%s: who takes the agent alone gets %v: %s", c.name, err, out)
		}
	}
	out, err := verify(t, release, signingKey, "", whole)
	if err != nil || !strings.HasPrefix(out, `Good "cambium-release" signature`) || !strings.HasSuffix(out, last) {
		t.Errorf("docs/stemcells.md promises other words than %v: %s", err, out)
	}
	out, err = verify(t, release, signingKey, "rm cambium-agent-fips* C*", one)
	if err != nil || !strings.HasSuffix(out, "  "+agent+"\n") {
		t.Errorf("an agent alone: %v: %s", err, out)
	}
}
