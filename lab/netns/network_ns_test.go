//go:build ns

package netns

import (
	"fmt"
	"net"
	"os"
	"testing"

	"cambium/internal/skiptest"
)

// rounds are enough to see an address that is not usable at once, on an idle machine too.
const rounds = 50

// TestNSAddressesAreUsableAtOnce: what the lab starts on an address connects as soon as the address is added. The
// kernel adds the local route of an IPv6 address later, from a work queue, also without duplicate address detection.
func TestNSAddressesAreUsableAtOnce(t *testing.T) {
	n, err := Create(fmt.Sprintf("cambium-a%d", os.Getpid()))
	if err != nil {
		skiptest.Skip(t, fmt.Errorf("network namespaces: %w", err))
	}
	t.Cleanup(func() {
		if err := n.Delete(); err != nil {
			t.Error(err)
		}
	})
	if err := n.Bridge("br-up"); err != nil {
		t.Fatal(err)
	}
	for kind, add := range []func(round int, address string) error{
		func(_ int, address string) error { return n.AddAddress("lo", address) },
		func(_ int, address string) error { return n.AddAddress("br-up", address) },
		func(round int, address string) error { return n.Bridge(fmt.Sprintf("br%d", round), address) },
	} {
		for round := range rounds {
			host := fmt.Sprintf("fd88:0:0:%x::%x", kind, round+1)
			if err := add(round, host+"/128"); err != nil {
				t.Fatal(err)
			}
			if err := connects(n, host); err != nil {
				t.Fatalf("kind %d, round %d: %v", kind, round, err)
			}
		}
	}
}

func connects(n Namespace, host string) error {
	l, err := n.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	c, err := n.Dial("tcp", l.Addr().String())
	if err != nil {
		return err
	}
	return c.Close()
}
