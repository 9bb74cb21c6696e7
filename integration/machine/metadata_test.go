//go:build machine

package machine

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"cambium/internal/status"
	"cambium/lab"
	"cambium/lab/metadata"
)

// TestMachineMetadata closes the metadata service, which is also the name server, and the registry to jobs: to a
// process of vcap, to one in the control group of bpm, and to a container.
func TestMachineMetadata(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	nameServer(t, l)
	i := start(t, l, lab.VM{Source: lab.Registry, Ephemeral: lab.GiB, Edit: func(d lab.Document) {
		d.Set("env.bosh.agent", map[string]any{"metadata_access": "root", "metadata_users": []any{"nobody", "no-such-user"}})
	}})
	ready(t, i)
	run(t, i, "sh", "-c", `ip netns add container && ip link add inside type veth peer name eth0 netns container &&
ip address add 192.0.2.1/30 dev inside && ip link set inside up && sysctl -qw net.ipv4.ip_forward=1 &&
ip -n container address add 192.0.2.2/30 dev eth0 && ip -n container link set eth0 up &&
ip -n container route add default via 192.0.2.1`)
	other := func() {
		run(t, i, "sh", "-c", `nft list table ip other >/dev/null 2>&1 && nft delete table ip other; nft -f - <<end
table ip other {
	chain post { type nat hook postrouting priority srcnat; masquerade; }
	chain out { type filter hook output priority -20; tcp dport 80 accept; }
}
end`)
	}
	other()
	vcap, bpm := []string{"runuser", "-u", "vcap", "--"},
		[]string{"systemd-run", "-q", "--scope", "--slice=system", "runuser", "-u", "vcap", "--"}
	users := map[string][]string{"root": nil, "vcap": vcap, "nobody": {"runuser", "-u", "nobody", "--"}, "bpm": bpm,
		"container": {"ip", "netns", "exec", "container"}}
	look := func(when, jobs string) {
		t.Helper()
		for who, prefix := range users {
			for _, address := range []string{"169.254.169.254/80", lab.Gateway + "/25777"} {
				want := jobs
				if who == "root" || who == "nobody" {
					want = "open"
				}
				if got := reach(t, i, prefix, "tcp/"+address); got != want {
					t.Errorf("%s: %s to %s: got %s, want %s", when, who, address, got, want)
				}
			}
			for _, address := range []string{"tcp/169.254.169.254/53", "udp/169.254.169.254/53"} {
				if got := reach(t, i, prefix, address); got != "open" {
					t.Errorf("%s: %s to the name server, %s: got %s", when, who, address, got)
				}
			}
		}
	}
	look("by the deployment", "refused")
	if got := fmt.Sprint(agentStatus(t, i).Warnings); !strings.Contains(got, `there is no user "no-such-user"`) {
		t.Errorf("the warnings do not name the unknown user: %s", got)
	}
	other()
	look("after a reload of another table", "refused")
	run(t, i, "systemctl", "stop", "bosh-agent")
	look("while the agent is stopped", "refused")
	run(t, i, "systemctl", "start", "bosh-agent")
	ready(t, i)
	look("after a restart of the agent", "refused")

	if err := i.Change(t.Context(), func(d lab.Document) { d.Set("env.bosh.agent", map[string]any{}) }); err != nil {
		t.Fatal(err)
	}
	run(t, i, "systemctl", "restart", "bosh-agent")
	ready(t, i)
	look("by default", "open")

	// What agent.json says holds before the settings are known.
	configure(t, i, "Platform.Linux.MetadataAccess", "root")
	configure(t, i, "Platform.Linux.MetadataUsers", []string{"nobody"})
	run(t, i, "systemctl", "restart", "bosh-agent")
	ready(t, i)
	look("by the stemcell", "refused")
	if got := stepOf(t, i, "settings"); !slices.Contains(got.Changes, "fill chain metadata_access_forward with 1 rules") {
		t.Errorf("the step settings did not close the service: %+v", got)
	}
}

// nameServer makes the address of the metadata service that of a name server, too, which answers with what it is asked.
func nameServer(t *testing.T, l *lab.Lab) {
	t.Helper()
	address := net.JoinHostPort(metadata.Address, "53")
	listener, err := l.Net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := l.Net.ListenPacket(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close(); conn.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			b := make([]byte, 100)
			n, _ := c.Read(b)
			_, _ = c.Write(b[:n])
			c.Close()
		}
	}()
	go func() {
		for b := make([]byte, 10); ; {
			n, from, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo(b[:n], from)
		}
	}()
}

// reach returns how a request by a user of a machine ends: "open", "refused" or "silent".
func reach(t *testing.T, i *lab.Instance, as []string, address string) string {
	t.Helper()
	script := "exec 3<>/dev/" + address + " && printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3 && timeout 4 head -c 1 <&3 | grep -q ."
	out, err := i.Output(t.Context(), slices.Concat(as, []string{"timeout", "5", "bash", "-c", "exec 2>&1; " + script})...)
	switch {
	case err == nil:
		return "open"
	case strings.Contains(string(out), "Connection refused") || strings.Contains(err.Error(), "Connection refused"):
		return "refused"
	}
	return "silent"
}

// stepOf is a step of the boot.
func stepOf(t *testing.T, i *lab.Instance, name string) status.Step {
	t.Helper()
	steps := agentStatus(t, i).Steps
	return steps[slices.IndexFunc(steps, func(s status.Step) bool { return s.Name == name })]
}
