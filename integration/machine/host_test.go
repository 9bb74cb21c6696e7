//go:build machine

package machine

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"cambium/integration/lab"
	"cambium/integration/lab/execs"
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
	i := start(t, l, lab.VM{Ephemeral: lab.GiB})
	ready(t, i)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()

	block := func(body string) string {
		return "-----BEGIN CERTIFICATE-----\n" + body + "\n-----END CERTIFICATE-----\n"
	}
	const one, two = "Zmlyc3QgYm9ndXMgY2VydGlmaWNhdGU=", "c2Vjb25kIGJvZ3VzIGNlcnRpZmljYXRl"
	certificates := map[string]any{"trusted_certs": "junk\n" + block(one) + "more junk\n" + block(two)}
	namespace := strings.TrimSpace(run(t, i, "readlink", "/proc/self/ns/pid"))
	for try := range 2 {
		before, err := counted(watch, namespace)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := i.Agent.Do(ctx, "update_settings", certificates); err != nil {
			t.Fatal(err)
		}
		after, err := counted(watch, namespace)
		executed := after.Programs[len(before.Programs):]
		if ran := strings.Contains(fmt.Sprint(executed), "update-ca-cert"); err != nil || ran != (try == 0) {
			t.Errorf("time %d: programs executed are %v (%v)", try, executed, err)
		}
	}
	if got := run(t, i, "sh", "-c", "ls /usr/local/share/ca-certificates"); got != "bosh-trusted-cert-1.crt\nbosh-trusted-cert-2.crt\n" {
		t.Errorf("got %q, want two certificates", got)
	}
	bundle := run(t, i, "cat", "/etc/ssl/certs/ca-certificates.crt")
	if !strings.Contains(bundle, one) || !strings.Contains(bundle, two) {
		t.Error("the store has not been rebuilt with both")
	}
	if _, err := i.Agent.Do(ctx, "update_settings", map[string]any{"trusted_certs": ""}); err != nil {
		t.Fatal(err)
	}
	if bundle := run(t, i, "cat", "/etc/ssl/certs/ca-certificates.crt"); strings.Contains(bundle, one) {
		t.Error("what was taken back is still trusted")
	}

	run(t, i, "ssh-keygen", "-A")
	run(t, i, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "/root/key")
	setup, err := i.Agent.Do(ctx, "ssh", "setup", map[string]any{"user": "bosh_5f2a", "public_key": run(t, i, "cat", "/root/key.pub")})
	var answer map[string]string
	if err == nil {
		err = json.Unmarshal(setup, &answer)
	}
	if err != nil || answer["status"] != "success" || answer["command"] != "setup" || answer["ip"] != i.IP || !strings.HasPrefix(answer["host_public_key"], "ssh-rsa ") {
		t.Errorf("got %s, %v", setup, err)
	}
	for path, want := range map[string]string{"/var/vcap/bosh_ssh": "755 root", "/var/vcap/bosh_ssh/bosh_5f2a": "700 bosh_5f2a"} {
		if got := strings.TrimSpace(run(t, i, "stat", "-c", "%a %U", path)); got != want {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
	}
	run(t, i, "systemctl", "start", "ssh")
	if got, err := i.Output(ctx, "ssh", "-i", "/root/key", "-o", "StrictHostKeyChecking=no", "-o", "BatchMode=yes", "bosh_5f2a@127.0.0.1", "sudo", "-n", "id", "-u"); err != nil || got != "0\n" {
		t.Errorf("sudo over ssh: got %q, %v, want 0", got, err)
	}
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
	if err != nil || len(v.CPU) != 3 || len(v.Load) != 3 || v.Mem["kb"] == "" || v.Disk["ephemeral"]["percent"] == "" || v.Disk["system"]["percent"] == "" || v.Disk["persistent"] != nil {
		t.Errorf("got vitals %+v, %v", v, err)
	}
}
