//go:build bench

package network_test

import (
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"testing"

	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"cambium/internal/skiptest"
	"cambium/platform/network"
)

// quietKernel returns a kernel in a network namespace of the benchmark, with one NIC. The thread stays locked, so that
// the namespace ends with the benchmark.
func quietKernel(b *testing.B) *network.Kernel {
	b.Helper()
	skiptest.WithoutRoot(b, "for a network namespace")
	runtime.LockOSThread()
	ns, err := netns.New()
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { ns.Close() })
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "eth0"
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "peer0"}); err != nil {
		b.Fatal(err)
	}
	for _, name := range []string{"eth0", "peer0"} {
		link, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetUp(link)
		}
		if err == nil && name == "eth0" {
			err = netlink.LinkSetAlias(link, "bosh-interface")
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	return &network.Kernel{Root: b.TempDir(), Log: logrus.NewEntry(log)}
}

// wantNetworks returns static networks on the NIC, each in its own subnet.
func wantNetworks(count, subnet int) network.Desired {
	l := network.WantLink{Name: "eth0", Networks: []string{"n"}}
	for i := range count {
		l.Addresses = append(l.Addresses, network.WantAddress{Prefix: netip.MustParsePrefix(fmt.Sprintf("10.%d.%d.5/24",
			subnet, i)), Network: "n"})
	}
	return network.Desired{Links: []network.WantLink{l}}
}

func converge(b *testing.B, k *network.Kernel, want network.Desired) {
	b.Helper()
	have, err := k.Observe(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	changes, err := network.Diff(have, want)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := k.Apply(b.Context(), changes); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkChanged replaces every address of a machine.
func BenchmarkChanged(b *testing.B) {
	for _, count := range []int{1, 4, 64} {
		b.Run(fmt.Sprintf("%d", count), func(b *testing.B) {
			k := quietKernel(b)
			for i := 0; b.Loop(); i++ {
				converge(b, k, wantNetworks(count, 20+i%2))
			}
		})
	}
}

// BenchmarkUnchanged measures the cost of an agent restart.
func BenchmarkUnchanged(b *testing.B) {
	for _, count := range []int{1, 4, 64} {
		b.Run(fmt.Sprintf("%d", count), func(b *testing.B) {
			k := quietKernel(b)
			want := wantNetworks(count, 20)
			converge(b, k, want)
			for b.Loop() {
				converge(b, k, want)
			}
		})
	}
}
