package neighbor

import (
	"net/netip"
	"slices"
	"testing"
)

func addr(text string) netip.Addr { return netip.MustParseAddr(text) }

func FuzzARP(f *testing.F) {
	f.Add(arp{operation: arpRequest, senderIP: addr("10.0.0.1"), targetIP: addr("10.0.0.2")}.bytes())
	f.Add(make([]byte, 27))
	f.Fuzz(func(t *testing.T, b []byte) {
		if a, ok := parseARP(b); ok && !slices.Equal(a.bytes(), b[:arpLength]) {
			t.Errorf("%x came back as %x", b[:arpLength], a.bytes())
		}
	})
}

func FuzzAdvertisement(f *testing.F) {
	f.Add(append([]byte{ndAdvertisement, 0, 0, 0, ndOverride, 0, 0, 0}, addr("fd00::1").AsSlice()...))
	f.Add([]byte{ndAdvertisement})
	f.Fuzz(func(t *testing.T, b []byte) {
		if target, ok := parseAdvertisement(b); ok && !target.IsValid() {
			t.Errorf("%x gives %v", b, target)
		}
	})
}
