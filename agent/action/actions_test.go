package action

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"cambium/settings"
)

// Every action is documented, with how it is served, and nothing else is.
func TestActionsAreDocumented(t *testing.T) {
	data, err := os.ReadFile("../../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(data), "\n## Actions\n")
	section, _, _ = strings.Cut(section, "\n## ")
	documented := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| ([^|]*) \\|").FindAllStringSubmatch(section, -1) {
		documented[row[1]] = row[2]
	}
	for name, row := range Actions(Deps{}) {
		want := []string{"sync", "task", "task (sync for callers before protocol 3)"}[row.Mode] + ", " +
			row.Lane.String()
		if row.Cancelable {
			want += ", cancelable"
		}
		if row.Sensitive {
			want += ", never logged"
		}
		if got := documented[name]; got != want {
			t.Errorf("docs/protocol.md says of %s %q, want %q", name, got, want)
		}
		delete(documented, name)
	}
	for name := range documented {
		t.Errorf("docs/protocol.md documents %s, which is not an action", name)
	}
}

func TestAsyncSinceProtocol3(t *testing.T) {
	for protocol, async := range map[int]bool{0: false, 2: false, 3: true, 4: true} {
		if AsyncSince3.Async(protocol) != async {
			t.Errorf("protocol %d: got %v", protocol, !async)
		}
	}
}

// FuzzArguments feeds every action's decoder: it may refuse, never panic, and nothing runs.
func FuzzArguments(f *testing.F) {
	for _, seed := range []string{
		`[]`, `["setup",{"user":"bosh_a","public_key":"k"}]`, `["disk-1",{"path":"/dev/sdc","lun":1}]`,
		`["disk-1","/dev/sdc"]`,
		`[{"trusted_certs":"","disk_associations":[{"name":"n","cid":"c"}],"mbus":{"cert":{"ca":"x"},"urls":["nats://a:b@c:1"]},"blobstores":[{"provider":"dav","options":{}}]}]`,
		`[{"blob_id":"a","checksum":"b","payload":"c"}]`, `["a","b",18446744073709551615]`,
		`[{"signed_url":"u","multi_digest":"d","version":1,"blobstore_headers":{"k":"v"}}]`,
		`[{"ips":["10.0.0.4"]}]`, `[null,null,null]`, `[1e999,-1,{"a":{"a":{}}}]`,
	} {
		f.Add([]byte(seed))
	}
	// And what callers really send, of every action.
	var cases []struct{ Arguments json.RawMessage }
	data, err := os.ReadFile("../testdata/conformance.json")
	if err == nil {
		err = json.Unmarshal(data, &cases)
	}
	if err != nil {
		f.Fatal(err)
	}
	for _, c := range cases {
		f.Add([]byte(c.Arguments))
	}
	table := Actions(Deps{})
	f.Fuzz(func(t *testing.T, data []byte) {
		var arguments []json.RawMessage
		if json.Unmarshal(data, &arguments) != nil {
			return
		}
		for name, row := range table {
			run, err := row.Bind(arguments)
			if (run == nil) == (err == nil) {
				t.Errorf("%s: a call and an error, or neither: %v", name, err)
			}
		}
	})
}

func TestSSHWithoutKeyOrAddressCreatesNobody(t *testing.T) {
	root := t.TempDir()
	s := &SSH{Users: noUsers{t}, HostKey: func(ctx context.Context) (string, error) { return AwaitHostKey(ctx, root) },
		Networks: func() map[string]settings.Network { return nil }}
	params := sshParams{User: "bosh_a", PublicKey: "ssh-rsa K"}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.run(ended, "setup", params); err == nil || !strings.Contains(err.Error(), "no ssh host key") {
		t.Errorf("got %v", err)
	}
	writeHostKey(t, root, "ed25519")
	if _, err := s.run(t.Context(), "setup", params); err == nil || !strings.Contains(err.Error(), "no address") {
		t.Errorf("got %v", err)
	}
	if _, err := s.run(t.Context(), "cleanup", sshParams{}); err == nil {
		t.Error("a cleanup without a pattern was accepted")
	}
}

// writeHostKey makes a host key as ssh-keygen -A does, under another name first.
func writeHostKey(t *testing.T, root, kind string) {
	t.Helper()
	path := filepath.Join(root, "etc/ssh/ssh_host_"+kind+"_key.pub")
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
		os.WriteFile(path+".new", []byte("ssh-"+kind+" A\n"), 0o644),
		os.Rename(path+".new", path)); err != nil {
		t.Fatal(err)
	}
}

// TestSSHWaitsForTheFirstHostKey: the machine makes its keys while it boots, first one that takes no time.
func TestSSHWaitsForTheFirstHostKey(t *testing.T) {
	root := t.TempDir()
	type answer struct {
		key string
		err error
	}
	asked, answers := make(chan struct{}), make(chan answer, 1)
	go func() {
		close(asked)
		key, err := AwaitHostKey(t.Context(), root)
		answers <- answer{key, err}
	}()
	<-asked
	writeHostKey(t, root, "ed25519")
	if got := <-answers; got.key != "ssh-ed25519 A" || got.err != nil {
		t.Errorf("got %q, %v", got.key, got.err)
	}
	writeHostKey(t, root, "rsa")
	if key, err := AwaitHostKey(t.Context(), root); key != "ssh-rsa A" || err != nil {
		t.Errorf("with an RSA key: got %q, %v", key, err)
	}
}

type noUsers struct{ t *testing.T }

func (n noUsers) Create(context.Context, string, string) error {
	n.t.Error("a user was created")
	return nil
}
func (n noUsers) Remove(context.Context, func(string) bool) error {
	n.t.Error("users were removed")
	return nil
}

func TestSSHAddress(t *testing.T) {
	n := func(ip, kind string, defaults ...string) settings.Network {
		return settings.Network{IP: ip, Type: kind, Default: defaults}
	}
	for _, c := range []struct {
		networks map[string]settings.Network
		want     string
	}{
		{map[string]settings.Network{"a": n("1", ""), "b": n("2", "", "dns")}, "2"},
		{map[string]settings.Network{"a": n("1", "vip"), "b": n("2", "")}, "2"},
		{map[string]settings.Network{"a": n("1", "vip")}, "1"},
		{map[string]settings.Network{"a": n("", "", "gateway"), "b": n("2", "")}, "2"},
	} {
		s := &SSH{Networks: func() map[string]settings.Network { return c.networks }}
		if got, err := s.address(); got != c.want || err != nil {
			t.Errorf("%v: got %q, %v; want %q", c.networks, got, err, c.want)
		}
	}
}

// A link below a directory that may be cleaned up does not lead out of it.
func TestRemoveFileFollowsNoLinks(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	victim := filepath.Join(outside, "victim")
	if err := os.WriteFile(victim, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	remove := removeFile([]string{dir})
	if _, err := remove(t.Context(), filepath.Join(dir, "link", "victim")); err == nil {
		t.Error("a path through a link was accepted")
	}
	if _, err := remove(t.Context(), filepath.Join(dir, "link")); err != nil {
		t.Errorf("removing the link itself: %v", err)
	}
	if _, err := os.Stat(victim); err != nil {
		t.Errorf("the file behind the link: %v", err)
	}
}

// TestRemoveFileWithDots: the kernel resolves ".." after links, and not at all below what is missing. Neither is what
// the text says, so that success would mean that another file is gone, or none.
func TestRemoveFileWithDots(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	kept := filepath.Join(dir, "kept")
	if err := errors.Join(os.WriteFile(kept, nil, 0o600), os.Symlink(outside, filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	remove := removeFile([]string{dir})
	for _, path := range []string{
		dir + "/missing/../../etc/hostname", dir + "/missing/../kept", dir + "/link/../kept", "/etc/../missing",
	} {
		if _, err := remove(t.Context(), path); err == nil || !strings.Contains(err.Error(), `".."`) {
			t.Errorf("%s: got %v", path, err)
		}
	}
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}
	if _, err := remove(t.Context(), dir+"//missing..log"); err != nil {
		t.Error(err)
	}
}
