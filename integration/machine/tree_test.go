//go:build machine

package machine

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"cambium/internal/eventually"
	"cambium/lab"
	"cambium/lab/machine"
)

// TestMachineTree looks at the directories, mounts, name and rules of a machine that keeps
// everything it can in memory, with the eyes of the programs that people use.
func TestMachineTree(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	i := start(t, l, lab.VM{Ephemeral: lab.GiB, Edit: func(d lab.Document) {
		d.Set("env.bosh.job_dir", map[string]any{"tmpfs": true, "tmpfs_size": "32m"})
		d.Set("env.bosh.run_dir", map[string]any{"tmpfs_size": "8m"})
		d.Set("env.bosh.agent", map[string]any{"settings": map[string]any{"tmpfs": true}})
	}})
	ready(t, i)
	data := strings.TrimSpace(run(t, i, "findmnt", "-n", "-o", "SOURCE", "/var/vcap/data"))
	const strict = "nosuid,nodev,noexec"
	look := func() {
		t.Helper()
		for _, tc := range []struct{ path, mode, source, flags string }{
			{"/var/vcap/data/sys", "750 root vcap", "", ""},
			{"/var/vcap/data/sys/log", "750 root vcap", "", ""},
			{"/var/vcap/data/sys/run", "1770 root vcap", "tmpfs", "size=8192k"},
			{"/var/vcap/data/jobs", "750 root vcap", "tmpfs", "size=32768k"},
			{"/var/vcap/data/sensitive_blobs", "700 root vcap", "tmpfs", "size=32768k"},
			{"/var/vcap/data/packages", "755 root vcap", "", ""},
			{"/var/vcap/data/dynamic_disks", "700 root vcap", "", ""},
			{"/var/vcap/data/blobs", "700 root vcap", "", ""},
			{"/var/vcap/data/tmp", "755 root root", "", ""},
			{"/tmp", "1777 root vcap", data + "[/root_tmp]", strict},
			{"/var/tmp", "1777 root vcap", data + "[/root_tmp]", strict},
			{"/var/log/audit", "750 root root", "", ""},
			{"/var/log/btmp", "600 root utmp", "", ""},
			{"/var/log/wtmp", "664 root utmp", "", ""},
			{"/var/log", "", data + "[/root_log]", strict},
			{"/opt", "755 root root", data + "[/root_opt]", "nodev"},
			{"/var/opt", "755 root root", data + "[/root_var_opt]", "nodev"},
			{"/home", "", "", "nosuid,nodev"},
			{"/dev/shm", "", "tmpfs", strict},
			{"/var/vcap/bosh/settings", "700 root root", "tmpfs", strict},
			{"/var/vcap/bosh/canrestart", "740 root vcap", "tmpfs", strict},
		} {
			if got := strings.TrimSpace(run(t, i, "stat", "-c", "%a %U %G", tc.path)); tc.mode != "" && got != tc.mode {
				t.Errorf("%s: got %s, want %s", tc.path, got, tc.mode)
			}
			if tc.source == "" && tc.flags == "" {
				continue
			}
			mount := strings.Fields(run(t, i, "findmnt", "-n", "-o", "SOURCE,OPTIONS", tc.path))
			mount = mount[max(0, len(mount)-2):] // nspawn has mounted a /tmp of its own below
			if len(mount) != 2 || tc.source != "" && mount[0] != tc.source || !strings.Contains(mount[1], tc.flags) {
				t.Errorf("%s: got mount %v, want %s with %s", tc.path, mount, tc.source, tc.flags)
			}
		}
	}
	look()
	if got := strings.TrimSpace(run(t, i, "readlink", "/var/vcap/sys")); got != "/var/vcap/data/sys" {
		t.Errorf("/var/vcap/sys leads to %q", got)
	}
	if _, err := i.Output(t.Context(), "sh", "-c", "cp /bin/true /tmp/true && /tmp/true"); err == nil {
		t.Error("a program in /tmp ran")
	}
	if got := strings.TrimSpace(run(t, i, "hostname")); got != i.AgentID {
		t.Errorf("got host name %q, want %q", got, i.AgentID)
	}
	if got := run(t, i, "cat", "/etc/hosts"); !strings.HasPrefix(got, "127.0.0.1 "+i.AgentID+" localhost\n\n#") {
		t.Errorf("got hosts file %q", got)
	}
	run(t, i, "systemctl", "restart", "bosh-agent")
	ready(t, i)
	look()
	for _, path := range []string{"/tmp", "/var/tmp"} {
		if got := strings.TrimSpace(run(t, i, "sh", "-c", "umount "+path+" && stat -c %a "+path)); got != "1777" {
			t.Errorf("%s underneath: got %s, want 1777", path, got)
		}
	}
}

func TestMachineFirewall(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	// The second server is never needed, and protected all the same.
	i := start(t, l, lab.VM{Ephemeral: lab.GiB, Edit: func(d lab.Document) {
		d.Set("env.bosh.mbus.urls", []any{d["mbus"], "nats://192.0.2.7:4222"})
	}})
	ready(t, i)
	rules := func() string { return run(t, i, "nft", "list", "table", "inet", "bosh_agent") }
	got := rules()
	for _, want := range []string{"jump monit_access_jobs", "meta skuid 0 ip daddr 127.0.0.1 tcp dport 2822 accept",
		"ip daddr 127.0.0.1 tcp dport 2822 drop",
		"ip daddr " + lab.Gateway + " tcp dport 4222 drop", "ip daddr 192.0.2.7 tcp dport 4222 drop"} {
		if !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwant %q in it", got, want)
		}
	}
	connect := func(user, address string) bool {
		_, err := i.Output(t.Context(), "runuser", "-u", user, "--", "timeout", "1", "bash", "-c",
			"exec 3<>/dev/tcp/"+address)
		return err == nil
	}
	// monit begins to listen a moment after the agent is ready.
	eventually.True(t, "monit", func() bool { return connect("root", "127.0.0.1/2822") })
	for _, tc := range []struct {
		user, address string
		want          bool
	}{{"root", "127.0.0.1/2822", true}, {"vcap", "127.0.0.1/2822", false}, {"root", lab.Gateway + "/4222", true},
		{"vcap", lab.Gateway + "/4222", false}} {
		if got := connect(tc.user, tc.address); got != tc.want {
			t.Errorf("%s to %s: connected %v, want %v", tc.user, tc.address, got, tc.want)
		}
	}
	// A job outside of bpm asks for access; the agent's next start leaves it alone.
	run(t, i, "/var/vcap/bosh/etc/bosh-enable-monit-access")
	run(t, i, "systemctl", "restart", "bosh-agent")
	ready(t, i)
	if got := rules(); strings.Count(got, "bosh-monit-access: UID 1000 match: ") != 1 {
		t.Errorf("got\n%s\nwant one rule for vcap", got)
	}
	if !connect("vcap", "127.0.0.1/2822") {
		t.Error("vcap does not get through although it was let in")
	}
	if connect("nobody", "127.0.0.1/2822") {
		t.Error("others get through as well")
	}
	// One in bpm is known by its control group.
	run(t, i, "systemd-run", "--scope", "--slice=system", "--unit=runc-bpm-router",
		"/var/vcap/bosh/etc/bosh-enable-monit-access")
	if got := rules(); strings.Count(got, `comment "bosh-monit-access:router"`) != 1 ||
		!strings.Contains(got, "socket cgroupv2 level 2 ") {
		t.Errorf("got\n%s\nwant one rule for the job's control group", got)
	}

	// All of this was with UseMonitIptablesFirewall false, which is the default. A stemcell that has
	// its own rules for monit sets it, and the agent then keeps those for the bus alone.
	for _, own := range []bool{true, false} {
		t.Run(fmt.Sprintf("UseMonitIptablesFirewall %v", own), func(t *testing.T) {
			configure(t, i, "Platform.Linux.UseMonitIptablesFirewall", own)
			run(t, i, "nft", "delete", "table", "inet", "bosh_agent")
			run(t, i, "systemctl", "restart", "bosh-agent")
			ready(t, i)
			got := rules()
			if monit := strings.Contains(got, "chain monit_access {"); monit == own ||
				!strings.Contains(got, "chain nats_access {") {
				t.Errorf("got\n%s\nwant rules for monit %v, and those for the bus", got, !own)
			}
			if got := connect("vcap", "127.0.0.1/2822"); got != own {
				t.Errorf("vcap gets through to monit: %v, want %v", got, own)
			}
			run(t, i, "/var/vcap/bosh/etc/bosh-enable-monit-access")
		})
	}
	// The stemcell switches it off, and so does the deployment, which decides.
	for _, c := range []struct {
		stemcell   bool
		deployment any
		want       bool
	}{{false, nil, false}, {true, false, false}, {false, true, true}} {
		configure(t, i, "Platform.Linux.Firewall", c.stemcell)
		if err := i.Change(t.Context(), func(d lab.Document) {
			d.Set("env.bosh.agent",
				map[string]any{"firewall": c.deployment})
		}); err != nil {
			t.Fatal(err)
		}
		run(t, i, "systemctl", "restart", "bosh-agent")
		ready(t, i)
		if got := rules(); strings.Contains(got, "chain monit_access {") != c.want ||
			strings.Contains(got, "chain nats_access {") != c.want {
			t.Errorf("stemcell %v, deployment %v: got\n%s\nwant rules %v", c.stemcell, c.deployment, got, c.want)
		}
	}
}

// configure changes one value of the stemcell's agent.json.
func configure(t *testing.T, i *lab.Instance, key string, value any) {
	t.Helper()
	const path = "/var/vcap/bosh/agent.json"
	config := lab.Document{}
	data, err := i.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &config)
	}
	if err == nil {
		err = i.WriteFile(machine.File{Path: path, Data: config.Set(key, value).JSON(), Mode: 0o644})
	}
	if err != nil {
		t.Fatal(err)
	}
}
