//go:build machine

package machine

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/internal/status"
	"cambium/lab"
	"cambium/lab/execs"
	"cambium/lab/machine"
)

// TestMachineHost drives what the Director can change of a running machine's surroundings: whom
// it trusts, who may log in, and its vitals.
func TestMachineHost(t *testing.T) {
	l := newLab(t)
	watch, err := execs.Start("bosh-agent")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = watch.Close() })
	i := start(t, l, lab.VM{Source: lab.HTTP, PublicKey: "ssh-ed25519 IAAS", Ephemeral: lab.GiB, SSHD: true,
		Files: removable, Edit: func(d lab.Document) {
			d.Set("env.bosh.password", "$6$salt$hash").Set("env.bosh.authorized_keys",
				[]string{"ssh-ed25519 ENV1", "ssh-ed25519 ENV2"}).Set("env.bosh.ntp", []string{"10.99.0.123", "ntp.example"})
			d.Set("env.bosh.remove_dev_tools", true).Set("env.bosh.remove_static_libraries", true)
		}})
	ready(t, i)
	asSettingsSay(t, i)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()

	block := func(body string) string {
		return "-----BEGIN CERTIFICATE-----\n" + body + "\n-----END CERTIFICATE-----\n"
	}
	const one, two = "Zmlyc3QgYm9ndXMgY2VydGlmaWNhdGU=", "c2Vjb25kIGJvZ3VzIGNlcnRpZmljYXRl"
	// Two of one subject have links that differ in a number only.
	authority := func() string {
		return run(t, i, "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "/dev/null",
			"-subj", "/CN=same")
	}
	first := authority()
	certificates := map[string]any{
		"trusted_certs": "junk\n" + block(one) + "more junk\n" + block(two) + first + authority()}
	// sameStore compares the store that the agent made with that of the system's program.
	sameStore := func() {
		t.Helper()
		const list = "cd /etc/ssl/certs; find . ! -name . -printf '%p %y %m %l\\n' | sort; sha256sum *.crt"
		got := run(t, i, "sh", "-c", list)
		if want := run(t, i, "sh", "-c", "update-ca-certificates -f >/dev/null 2>&1; "+list); got != want {
			t.Errorf("the store is\n%s\nand made by update-ca-certificates\n%s", got, want)
		}
	}
	namespace := strings.TrimSpace(run(t, i, "readlink", "/proc/self/ns/pid"))
	for try := range 2 {
		before, err := counted(watch, namespace)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if _, err := i.Agent.Do(ctx, "update_settings", certificates); err != nil {
			t.Fatal(err)
		}
		t.Logf("time %d: trusted certificates took %v", try, time.Since(began))
		after, err := counted(watch, namespace)
		executed := after.Programs[len(before.Programs):]
		// By number: a program that has ended before it was looked at has no name. It is openssl's.
		if err != nil || len(executed) != 1-try {
			t.Errorf("time %d: %d programs executed are %v (%v)", try, len(executed), executed, err)
		}
	}
	if got := run(t, i, "sh", "-c", "cd /usr/local/share/ca-certificates; echo *"); got !=
		"bosh-trusted-cert-1.crt bosh-trusted-cert-2.crt bosh-trusted-cert-3.crt bosh-trusted-cert-4.crt\n" {
		t.Errorf("got %q, want four certificates", got)
	}
	sameStore()
	bundle := run(t, i, "cat", "/etc/ssl/certs/ca-certificates.crt")
	if !strings.Contains(bundle, one) || !strings.Contains(bundle, two) {
		t.Error("the store has not been rebuilt with both")
	}
	for _, certs := range []string{first, ""} {
		if _, err := i.Agent.Do(ctx, "update_settings", map[string]any{"trusted_certs": certs}); err != nil {
			t.Fatal(err)
		}
		sameStore()
	}
	if bundle := run(t, i, "cat", "/etc/ssl/certs/ca-certificates.crt"); strings.Contains(bundle, one) {
		t.Error("what was taken back is still trusted")
	}

	run(t, i, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "/root/key")
	setup, err := i.Agent.Do(ctx, "ssh", "setup",
		map[string]any{"user": "bosh_5f2a", "public_key": run(t, i, "cat", "/root/key.pub")})
	var answer map[string]string
	if err == nil {
		err = json.Unmarshal(setup, &answer)
	}
	if err != nil || answer["status"] != "success" || answer["command"] != "setup" || answer["ip"] != i.IP ||
		!strings.HasPrefix(answer["host_public_key"], "ssh-rsa ") {
		t.Errorf("got %s, %v", setup, err)
	}
	for path, want := range map[string]string{"/var/vcap/bosh_ssh": "755 root",
		"/var/vcap/bosh_ssh/bosh_5f2a": "700 bosh_5f2a"} {
		if got := strings.TrimSpace(run(t, i, "stat", "-c", "%a %U", path)); got != want {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
	}
	// As `bosh ssh` does it: the host key in the answer is the only one that is accepted.
	run(t, i, "sh", "-c", fmt.Sprintf("echo %s %s >/root/known", i.IP, answer["host_public_key"]))
	if got, err := i.Output(ctx, "ssh", "-i", "/root/key", "-o", "StrictHostKeyChecking=yes", "-o",
		"UserKnownHostsFile=/root/known", "-o", "BatchMode=yes", "bosh_5f2a@"+i.IP, "sudo", "-n", "id", "-u"); err != nil ||
		got != "0\n" {
		t.Errorf("sudo over ssh: got %q, %v, want 0", got, err)
	}
	sshdOfItsOwn(t, l, i, answer["host_public_key"])
	if _, err := i.Agent.Do(ctx, "ssh", "cleanup", map[string]any{"user_regex": "^bosh_5f2a"}); err != nil {
		t.Error(err)
	}
	if _, err := i.Output(ctx, "id", "bosh_5f2a"); err == nil {
		t.Error("the user is still there")
	}

	full, err := i.Agent.Do(ctx, "get_state", "full")
	var state struct {
		Vitals struct {
			CPU  map[string]string            `json:"cpu"`
			Disk map[string]map[string]string `json:"disk"`
			Load []string                     `json:"load"`
			Mem  map[string]string            `json:"mem"`
		} `json:"vitals"`
	}
	if err == nil {
		err = json.Unmarshal(full, &state)
	}
	v := state.Vitals
	if err != nil || len(v.CPU) != 3 || len(v.Load) != 3 || v.Mem["kb"] == "" || v.Disk["ephemeral"]["percent"] == "" ||
		v.Disk["system"]["percent"] == "" || v.Disk["persistent"] != nil {
		t.Errorf("got vitals %+v, %v", v, err)
	}
	namedDisks(t, i)
}

// sshdOfItsOwn checks that the lab's network reaches sshd, and that another machine has another host key.
func sshdOfItsOwn(t *testing.T, l *lab.Lab, i *lab.Instance, key string) {
	t.Helper()
	conn, err := l.Net.Dial("tcp", i.IP+":22")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	greeting := make([]byte, len("SSH-2.0"))
	if _, err := io.ReadFull(conn, greeting); err != nil || string(greeting) != "SSH-2.0" {
		t.Errorf("sshd from the lab's network: got %q, %v", greeting, err)
	}
	other, err := create(t, l, lab.VM{SSHD: true}).ReadFile("/etc/ssh/ssh_host_rsa_key.pub")
	if err != nil || len(other) == 0 || strings.TrimSpace(string(other)) == strings.TrimSpace(key) {
		t.Errorf("host key of another machine: got %q, %v, want another than %q", other, err, key)
	}
}

// removable are lists of a stemcell, and what they name.
var removable = []machine.File{
	{Path: "/var/vcap/bosh/etc/dev_tools_file_list", Data: []byte("/usr/local/compiler\n/usr/local/not-there\n"), Mode: 0o644},
	{Path: "/usr/local/compiler/bin/cc", Data: []byte("cc"), Mode: 0o755},
	{Path: "/var/vcap/bosh/etc/static_libraries_list", Data: []byte("/usr/local/lib/libx.a\n"), Mode: 0o644},
	{Path: "/usr/local/lib/libx.a", Data: []byte("x"), Mode: 0o644},
	{Path: "/usr/local/lib/libx.so", Data: []byte("x"), Mode: 0o644},
}

const vcapKeys = "/home/vcap/.ssh/authorized_keys"

// asSettingsSay looks at what a boot made of the settings.
func asSettingsSay(t *testing.T, i *lab.Instance) {
	t.Helper()
	if d := ended(t, i); d.State != status.Ready {
		t.Errorf("the machine is %s: %q", d.State, d.Warnings)
	}
	for _, name := range []string{"root", "vcap"} {
		if got := run(t, i, "getent", "shadow", name); !strings.HasPrefix(got, name+":$6$salt$hash:") {
			t.Errorf("the password of %s is not the settings'", name)
		}
	}
	for path, want := range map[string]string{
		vcapKeys:                       "ssh-ed25519 ENV1\nssh-ed25519 ENV2\nssh-ed25519 IAAS",
		"/var/vcap/bosh/etc/ntpserver": "10.99.0.123 ntp.example",
		"/etc/systemd/timesyncd.conf.d/60-bosh.conf": "[Time]\nNTP=10.99.0.123 ntp.example\n",
	} {
		if got := run(t, i, "cat", path); got != want {
			t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
	if got := strings.TrimSpace(run(t, i, "stat", "-c", "%a %U", vcapKeys)); got != "600 vcap" {
		t.Errorf("the keys are %s, want 600 vcap", got)
	}
	if got := strings.Fields(run(t, i, "sh", "-c",
		"ls -d /usr/local/compiler /usr/local/lib/libx.* 2>/dev/null || true")); len(got) != 1 ||
		got[0] != "/usr/local/lib/libx.so" {
		t.Errorf("left of the lists is %q, want what they do not name", got)
	}
}

// namedDisks lets the names of disks return at a boot, and then a boot fail because a disk that has a
// name is not known any more: with the keys of the settings in place, so that an operator can log in.
func namedDisks(t *testing.T, i *lab.Instance) {
	t.Helper()
	disk, err := i.AttachNew(t.Context(), "named", lab.GiB)
	if err != nil {
		t.Fatal(err)
	}
	call := func(method string, arguments ...any) {
		t.Helper()
		if _, err := i.Agent.Do(t.Context(), method, arguments...); err != nil {
			t.Fatal(err)
		}
	}
	call("add_persistent_disk", "named", disk.Path)
	call("update_settings", map[string]any{"trusted_certs": "",
		"disk_associations": []any{map[string]any{"name": "db", "cid": "named"}}})
	const link = "/var/vcap/instance/disks/db"
	run(t, i, "rm", link, vcapKeys)
	run(t, i, "systemctl", "restart", "bosh-agent")
	ready(t, i)
	if got := strings.TrimSpace(run(t, i, "readlink", link)); got != disk.Path {
		t.Errorf("after a boot the disk's name leads to %q, want %q", got, disk.Path)
	}
	if d := ended(t, i); d.Unchanged {
		t.Error("a name that returned counts as nothing")
	}
	asSettingsSay(t, i)

	call("remove_persistent_disk", "named")
	run(t, i, "rm", vcapKeys)
	run(t, i, "systemctl", "restart", "--no-block", "bosh-agent")
	eventually.True(t, "the verdict", func() bool {
		return strings.HasPrefix(agentStatus(t, i).Verdict, "persistent-disk: ")
	})
	if got := agentStatus(t, i).Verdict; !strings.Contains(got, `"named"`) {
		t.Errorf("the verdict is %q, want the disk in it", got)
	}
	eventually.True(t, "the keys", func() bool {
		keys, err := i.Output(t.Context(), "cat", vcapKeys)
		return err == nil && keys == "ssh-ed25519 ENV1\nssh-ed25519 ENV2\nssh-ed25519 IAAS"
	})
}
