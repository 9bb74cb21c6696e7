//go:build ns

package firewall

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"cambium/internal/command"
	"cambium/internal/localroute"
	"cambium/internal/nstest"
	"cambium/platform/platformtest"

	"github.com/vishvananda/netlink"
)

// reach tries to connect as that user and returns "open", "refused" or "silent".
func reach(t *testing.T, user uint32, network, address string) string {
	t.Helper()
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	script := fmt.Sprintf("exec 3<>/dev/%s/%s/%s && echo hello >&3 && timeout 4 head -c 6 <&3 | grep -q hello", network,
		host, port)
	r, err := command.Run(ctx, command.Cmd{Name: "bash", Args: []string{"-c", script},
		Grace: 50 * time.Millisecond, Credential: &syscall.Credential{Uid: user, Gid: user}})
	switch {
	case err == nil:
		return "open"
	case strings.Contains(string(r.Stderr), "Connection refused"):
		return "refused"
	}
	return "silent"
}

// reachFrom is like reach, from another namespace.
func reachFrom(t *testing.T, p *nstest.Peer, network, address string) (end string) {
	t.Helper()
	p.Do(t, func() error {
		end = "silent"
		c, err := net.DialTimeout(network, address, 4*time.Second)
		if errors.Is(err, syscall.ECONNREFUSED) {
			end = "refused"
		}
		if err != nil {
			return nil
		}
		defer c.Close()
		_, err = c.Write([]byte("hello\n"))
		if err = errors.Join(err, c.SetReadDeadline(time.Now().Add(4*time.Second))); err != nil {
			return err
		}
		if _, err := c.Read(make([]byte, 1)); err == nil {
			end = "open"
		}
		return nil
	})
	return end
}

// service answers messages at an outside address, over TCP and UDP, until the test ends.
func service(t *testing.T, outside *nstest.Peer, address string) {
	t.Helper()
	var l net.Listener
	var u net.PacketConn
	outside.Do(t, func() (err error) {
		if l, err = net.Listen("tcp", address); err != nil {
			return err
		}
		u, err = net.ListenPacket("udp", address)
		return err
	})
	t.Cleanup(func() { l.Close(); u.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("hello\n"))
			c.Close()
		}
	}()
	go func() {
		for b := make([]byte, 10); ; {
			_, from, err := u.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = u.WriteTo([]byte("hello\n"), from)
		}
	}()
}

// routed sets up a machine between an outside network, with the metadata service, and a container. The service is also
// the name server.
func routed(t *testing.T) (container *nstest.Peer) {
	t.Helper()
	outside, container := nstest.NewPeer(t), nstest.NewPeer(t)
	plug(t, outside, "out", "169.254.0.1/16", "169.254.169.254/16", "192.0.2.0/24")
	plug(t, outside, "out6", "fd00:ec2::1/64", "fd00:ec2::254/64", "fd00:1::/64")
	plug(t, container, "in", "192.0.2.1/24", "192.0.2.9/24", "169.254.0.0/16")
	plug(t, container, "in6", "fd00:1::1/64", "fd00:1::9/64", "fd00:ec2::/64")
	for _, address := range []string{"169.254.169.254", "fd00:ec2::254"} {
		service(t, outside, net.JoinHostPort(address, "80"))
		service(t, outside, net.JoinHostPort(address, "53"))
	}
	for _, path := range []string{"/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"} {
		if err := os.WriteFile(path, []byte("1"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return container
}

// plug creates a link to a peer, which reaches the beyond network through the machine.
func plug(t *testing.T, p *nstest.Peer, name, near, far, beyond string) {
	t.Helper()
	p.Veth(t, name, "")
	p.Address(t, name, far)
	nstest.Up(t, name, near)
	gateway := netip.MustParsePrefix(near).Addr()
	if err := localroute.Await(nil, gateway.AsSlice()); err != nil {
		t.Fatal(err)
	}
	_, to, err := net.ParseCIDR(beyond)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Handle.RouteAdd(&netlink.Route{Dst: to, Gw: gateway.AsSlice()}); err != nil {
		t.Fatalf("route to %s: %v", beyond, err)
	}
}

func TestNSMetadata(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		container := routed(t)
		const port4, port6 = "169.254.169.254:80", "[fd00:ec2::254]:80"
		look := func(when, other, listed string) {
			t.Helper()
			for _, address := range []string{port4, port6} {
				for user, want := range map[uint32]string{0: "open", 1234: other, 1235: listed} {
					if got := reach(t, user, "tcp", address); got != want {
						t.Errorf("%s: user %d to %s: got %s, want %s", when, user, address, got, want)
					}
				}
				if got := reachFrom(t, container, "tcp", address); got != other {
					t.Errorf("%s: a container to %s: got %s, want %s", when, address, got, other)
				}
			}
			for _, network := range []string{"tcp", "udp"} {
				for _, address := range []string{"169.254.169.254:53", "[fd00:ec2::254]:53"} {
					if got := reach(t, 1234, network, address); got != "open" {
						t.Errorf("%s: the name server, %s %s: got %s", when, network, address, got)
					}
					if got := reachFrom(t, container, network, address); got != "open" {
						t.Errorf("%s: a container to the name server, %s %s: got %s", when, network, address, got)
					}
				}
			}
		}
		look("before there are rules", "open", "open")
		f := &Firewall{Log: platformtest.Quiet()}
		closed := Desired{Metadata: &Metadata{Users: []uint32{1235},
			Servers: []netip.AddrPort{netip.MustParseAddrPort(port4), netip.MustParseAddrPort(port6)}}}
		converge(t, f, closed)
		want := `table inet bosh_agent {
	chain metadata_access {
		type filter hook output priority filter - 1; policy accept;
		ct state established,related accept
		meta skuid 0 ip daddr 169.254.169.254 tcp dport 80 accept
		meta skuid 1235 ip daddr 169.254.169.254 tcp dport 80 accept
		ip daddr 169.254.169.254 tcp dport 80 reject with tcp reset
		meta skuid 0 ip6 daddr fd00:ec2::254 tcp dport 80 accept
		meta skuid 1235 ip6 daddr fd00:ec2::254 tcp dport 80 accept
		ip6 daddr fd00:ec2::254 tcp dport 80 reject with tcp reset
	}

	chain metadata_access_forward {
		type filter hook forward priority filter - 1; policy accept;
		ip daddr 169.254.169.254 tcp dport 80 reject with tcp reset
		ip6 daddr fd00:ec2::254 tcp dport 80 reject with tcp reset
	}
}
`
		if got := ruleset(t); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
		look("closed", "refused", "open")

		// Another program's table comes, accepts everything, and goes.
		for _, line := range []string{"add table inet other",
			"add chain inet other out { type filter hook output priority -10; policy accept; }",
			"add rule inet other out tcp dport 80 accept", "flush table inet other"} {
			if _, err := command.Run(t.Context(), command.Cmd{Name: "nft", Args: []string{line}}); err != nil {
				t.Fatal(err)
			}
			if got := reach(t, 1234, "tcp", port4); got != "refused" {
				t.Errorf("after %q: got %s", line, got)
			}
		}
		// An agent that knows only one of the addresses leaves the other one closed; the user is no longer listed.
		converge(t, f, Desired{Off: true, Metadata: &Metadata{Servers: closed.Metadata.Servers[:1]}})
		look("closed to more", "refused", "refused")
		converge(t, f, Desired{Metadata: &Metadata{Open: true}})
		look("opened", "open", "open")
	})
}
