//go:build ns

package firewall

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"cambium/internal/command"
	"cambium/internal/localroute"
	"cambium/internal/nstest"
	"cambium/internal/secret"

	"cambium/internal/skiptest"
	"cambium/platform/platformtest"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func converge(t *testing.T, f *Firewall, want Desired) {
	t.Helper()
	platformtest.Converge(t, f, Diff, want)
}

// ruleset returns the kernel's rules as nft lists them.
func ruleset(t *testing.T) string {
	t.Helper()
	r, err := command.Run(t.Context(), command.Cmd{Name: "nft", Args: []string{"list", "ruleset"}})
	if err != nil {
		t.Fatal(err)
	}
	return string(r.Stdout)
}

func listen(t *testing.T, address string) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
}

// connect starts a program as that user, in a cgroup if group is not empty, and reports whether it could connect.
func connect(t *testing.T, user uint32, host string, port int, group string) bool {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer write.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p, err := command.Start(ctx, command.Cmd{Name: "bash",
		Args:  []string{"-c", fmt.Sprintf("read; exec 3<>/dev/tcp/%s/%d", host, port)},
		Stdin: read, Grace: 50 * time.Millisecond, Credential: &syscall.Credential{Uid: user, Gid: user}})
	read.Close()
	if err != nil {
		t.Fatal(err)
	}
	if group != "" {
		if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), fmt.Append(nil, p.Pid()), 0o644); err != nil {
			t.Error(err)
		}
	}
	time.AfterFunc(2*time.Second, cancel)
	if _, err := write.WriteString("\n"); err != nil {
		t.Error(err)
	}
	_, err = p.Wait()
	if err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("user %d to %s:%d: got %v, want silence or success", user, host, port, err)
	}
	return err == nil
}

func TestNSMonit(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		f := &Firewall{Log: platformtest.Quiet()}
		listen(t, "127.0.0.1:2822")
		listen(t, "127.0.0.1:2823")
		if !connect(t, 1234, "127.0.0.1", 2822, "") {
			t.Fatal("port is closed before there are rules")
		}
		if err := f.Allow(t.Context(), Job{Root: t.TempDir(), UID: 1000}); !errors.Is(err, ErrNotSetUp) {
			t.Errorf("got %v, want ErrNotSetUp", err)
		}
		converge(t, f, Desired{Monit: true})
		want := `table inet bosh_agent {
	chain monit_access_jobs {
	}

	chain monit_access {
		type filter hook output priority filter - 1; policy accept;
		jump monit_access_jobs
		ct state established,related accept
		meta skuid 0 ip daddr 127.0.0.1 tcp dport 2822 accept
		ip daddr 127.0.0.1 tcp dport 2822 drop
	}
}
`
		if got := ruleset(t); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
		for _, tc := range []struct {
			user uint32
			port int
			want bool
		}{{0, 2822, true}, {1234, 2822, false}, {1234, 2823, true}} {
			if got := connect(t, tc.user, "127.0.0.1", tc.port, ""); got != tc.want {
				t.Errorf("user %d to port %d: connected %v, want %v", tc.user, tc.port, got, tc.want)
			}
		}

		// A process outside of bpm lets vcap in, once, and that survives the agent's next start.
		for range 2 {
			if err := f.Allow(t.Context(), Job{Root: t.TempDir(), UID: 1234}); err != nil {
				t.Fatal(err)
			}
		}
		rule := `meta skuid 1234 ip daddr 127.0.0.1 tcp dport 2822 log prefix "bosh-monit-access: UID 1234 match: " accept`
		if got := ruleset(t); strings.Count(got, rule) != 1 {
			t.Errorf("got\n%s\nwant once\n%s", got, rule)
		}
		if !connect(t, 1234, "127.0.0.1", 2822, "") || connect(t, 1235, "127.0.0.1", 2822, "") {
			t.Error("the rule lets in the wrong ones")
		}
		// Other rules of jobs in their chain are not touched.
		for _, rule := range []string{"tcp dport 12 limit rate 1/second counter accept",
			"meta skuid { 5, 6 } tcp dport 2822 accept", "ip daddr 127.0.0.0/8 tcp dport 7 reject",
			"tcp dport 8 ct count over 5 drop", "tcp dport 9 queue num 3", "numgen inc mod 2 0 tcp dport 10 accept",
			"tcp option maxseg size set 1000", "tcp dport 11 ct mark set 5"} {
			args := append([]string{"add", "rule", "inet", "bosh_agent", "monit_access_jobs"}, strings.Fields(rule)...)
			if r, err := command.Run(t.Context(), command.Cmd{Name: "nft", Args: args}); err != nil {
				t.Logf("this kernel has no %q: %s", rule, r.Stderr)
			}
		}
		before := ruleset(t)
		converge(t, f, Desired{Monit: true})
		if err := f.Allow(t.Context(), Job{Root: t.TempDir(), UID: 1234}); err != nil {
			t.Errorf("access beside odd rules: %v", err)
		}
		// Counters may move on; nothing else may.
		if got := ruleset(t); strings.Count(got, "\n") != strings.Count(before, "\n") {
			t.Errorf("got\n%s\nwant\n%s", got, before)
		}
		// Damage to our own chain is repaired without touching the jobs' chain.
		if _, err := command.Run(t.Context(), command.Cmd{Name: "nft",
			Args: []string{"flush", "chain", "inet", "bosh_agent", "monit_access"}}); err != nil {
			t.Fatal(err)
		}
		converge(t, f, Desired{Monit: true})
		if got := ruleset(t); strings.Count(got, rule) != 1 || !strings.Contains(got, "dport 2822 drop") {
			t.Errorf("got\n%s\nwant the jobs' rule kept and ours back", got)
		}
		// A chain of our name that is not attached as ours is made anew.
		for _, args := range [][]string{{"flush", "chain", "inet", "bosh_agent", "monit_access"},
			{"delete", "chain", "inet", "bosh_agent", "monit_access"}, {"add", "chain", "inet", "bosh_agent", "monit_access"}} {
			if _, err := command.Run(t.Context(), command.Cmd{Name: "nft", Args: args}); err != nil {
				t.Fatal(err)
			}
		}
		converge(t, f, Desired{Monit: true})
		if connect(t, 1235, "127.0.0.1", 2822, "") {
			t.Error("the chain is there but does nothing")
		}
		// Switched off, our chains go and that of the jobs stays.
		converge(t, f, Desired{Off: true, Monit: true})
		if got := ruleset(t); strings.Contains(got, "chain monit_access {") ||
			!strings.Contains(got, "chain monit_access_jobs {") || !connect(t, 1235, "127.0.0.1", 2822, "") {
			t.Errorf("switched off, but:\n%s", got)
		}
	})
}

func TestNSGroup(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		root := t.TempDir()
		unified := filepath.Join(root, "sys/fs/cgroup")
		for _, dir := range []string{unified, filepath.Join(root, "proc/self")} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := unix.Mount("cgroup2", unified, "cgroup2", 0, ""); err != nil {
			skiptest.Skip(t, fmt.Errorf("no cgroup v2 hierarchy: %w", err))
		}
		t.Cleanup(func() {
			if err := unix.Unmount(unified, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
		slice := fmt.Sprintf("firewall-test-%d", os.Getpid())
		group := filepath.Join(slice, "monit-service-bpm-bpm-router.scope")
		for _, dir := range []string{slice, group} {
			if err := os.Mkdir(filepath.Join(unified, dir), 0o755); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := unix.Rmdir(filepath.Join(unified, dir)); err != nil {
					t.Errorf("control group stays: %v", err)
				}
			})
		}
		if err := os.WriteFile(filepath.Join(root, "proc/self/cgroup"), []byte("0::/"+group+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		f := &Firewall{Log: platformtest.Quiet()}
		listen(t, "127.0.0.1:2822")
		converge(t, f, Desired{Monit: true})
		for range 2 {
			if err := f.Allow(t.Context(), Job{Root: root, UID: 1000}); err != nil {
				t.Fatal(err)
			}
		}
		got := ruleset(t)
		if strings.Count(got, `comment "bosh-monit-access:router"`) != 1 ||
			!strings.Contains(got, "socket cgroupv2 level 2") ||
			!strings.Contains(got, `ip daddr 127.0.0.1 tcp dport 2822 log prefix "bosh-monit-access: cgroup match: " accept`) {
			t.Errorf("got\n%s\nwant one rule for the group", got)
		}
		if !connect(t, 1234, "127.0.0.1", 2822, filepath.Join(unified, group)) {
			t.Error("the job does not get through")
		}
		if connect(t, 1234, "127.0.0.1", 2822, "") {
			t.Error("others get through as well")
		}
	})
}

func TestNSNATS(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			t.Fatal(err)
		}
		for _, prefix := range []string{"192.0.2.100/32", "2001:db8::1/128"} {
			a, err := netlink.ParseAddr(prefix)
			if err != nil {
				t.Fatal(err)
			}
			a.Flags = unix.IFA_F_NODAD
			if err := errors.Join(netlink.AddrAdd(lo, a), localroute.Await(nil, a.IP)); err != nil {
				t.Fatal(err)
			}
		}
		listen(t, "192.0.2.100:4222")
		listen(t, "[2001:db8::1]:4222")
		held, err := net.Dial("tcp", "192.0.2.100:4222")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { held.Close() })

		f := &Firewall{Log: platformtest.Quiet(), Resolver: resolver{"bus.example": {netip.MustParseAddr("192.0.2.100"),
			netip.MustParseAddr("2001:db8::1")}}}
		urls := []secret.URL{secret.NewURL("nats://u:p@bus.example:4222"), secret.NewURL("nats://192.0.2.101:4222"),
			secret.NewURL("nats://gone.example:4222")}
		converge(t, f, Desired{NATS: f.Resolve(t.Context(), urls)})
		want := `table inet bosh_agent {
	chain nats_access {
		type filter hook output priority filter - 1; policy accept;
		ct state established,related accept
		meta skuid 0 ip daddr 192.0.2.100 tcp dport 4222 accept
		ip daddr 192.0.2.100 tcp dport 4222 drop
		meta skuid 0 ip daddr 192.0.2.101 tcp dport 4222 accept
		ip daddr 192.0.2.101 tcp dport 4222 drop
		meta skuid 0 ip6 daddr 2001:db8::1 tcp dport 4222 accept
		ip6 daddr 2001:db8::1 tcp dport 4222 drop
	}
}
`
		if got := ruleset(t); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
		for _, host := range []string{"192.0.2.100", "2001:db8::1"} {
			if !connect(t, 0, host, 4222, "") {
				t.Errorf("root does not reach %s", host)
			}
			if connect(t, 1234, host, 4222, "") {
				t.Errorf("every user reaches %s", host)
			}
		}
		// Names that do not resolve for the moment change nothing.
		converge(t, f, Desired{NATS: f.Resolve(t.Context(), urls[2:])})
		if got := ruleset(t); got != want {
			t.Errorf("got\n%s\nwant the rules as they were", got)
		}
		converge(t, f, Desired{NATS: f.Resolve(t.Context(), urls[1:2])})
		if got := ruleset(t); strings.Contains(got, "192.0.2.100") || !strings.Contains(got, "192.0.2.101") {
			t.Errorf("got\n%s\nwant only the new server", got)
		}
	})
}

func TestNSForeignDrops(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		f := &Firewall{Log: platformtest.Quiet()}
		converge(t, f, Desired{Monit: true, NATS: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.6:4222")}})
		if found, err := f.ForeignDrops(t.Context()); err != nil || len(found) != 0 {
			t.Errorf("with our own rules: got %v, %v, want nothing", found, err)
		}
		for _, line := range []string{"add table ip a",
			"add chain ip a out { type filter hook output priority 0; policy drop; }",
			"add chain ip a in { type filter hook input priority 0; policy drop; }",
			"add table inet b", "add chain inet b out { type filter hook output priority 0; }",
			"add rule inet b out tcp dport 4222 drop", "add rule inet b out tcp dport 22 accept"} {
			if _, err := command.Run(t.Context(), command.Cmd{Name: "nft", Args: []string{line}}); err != nil {
				t.Fatal(err)
			}
		}
		want := []string{"inet b out (1 rules that drop or reject)", "ip a out (policy drop)"}
		found, err := f.ForeignDrops(t.Context())
		slices.Sort(found)
		if err != nil || !slices.Equal(found, want) {
			t.Errorf("got %q, %v, want %q", found, err, want)
		}
	})
}
