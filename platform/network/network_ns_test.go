//go:build ns

package network_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/internal/nstest"
	"cambium/platform/network"
)

// kernel is the kernel of the namespaces, with files below a directory of the test.
func kernel(t *testing.T) *network.Kernel {
	t.Helper()
	log := logrus.New()
	log.SetOutput(testWriter{t})
	return &network.Kernel{Root: t.TempDir(), Log: logrus.NewEntry(log)}
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", p)
	return len(p), nil
}

func within(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// converge applies want and checks that a second run finds nothing to do.
func converge(t *testing.T, k *network.Kernel, want network.Desired) []network.Change {
	t.Helper()
	changes := plan(t, k, want)
	if err := k.Apply(t.Context(), changes); err != nil {
		t.Fatalf("Apply: %v", err)
	}
	if again := plan(t, k, want); len(again) > 0 {
		t.Fatalf("second run wants to change %v, want nothing", again)
	}
	return changes
}

func plan(t *testing.T, k *network.Kernel, want network.Desired) []network.Change {
	t.Helper()
	have, err := k.Observe(t.Context())
	if err != nil {
		t.Fatalf("Observe: %v", err)
	}
	changes, err := network.Diff(have, want)
	if err != nil {
		t.Fatalf("Diff: %v", err)
	}
	return changes
}

func TestNSStaticIPv4(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		peer := nstest.NewPeer(t)
		peer.NIC(t, "eth0", "52:54:00:00:00:01")
		peer.Address(t, "eth0", "10.0.0.1/24")
		k := kernel(t)
		converge(t, k, network.Desired{Links: []network.WantLink{{
			Name:     "eth0",
			Networks: []string{"default"},
			Addresses: []network.WantAddress{
				{Prefix: netip.MustParsePrefix("10.0.0.5/24"), Network: "default"},
			},
			Routes: []network.WantRoute{{To: netip.MustParsePrefix("0.0.0.0/0"), Gateway: netip.MustParseAddr("10.0.0.1"), Network: "default"}},
		}}})
	})
}
