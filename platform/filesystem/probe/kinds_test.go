package probe

import (
	"slices"
	"testing"
)

func TestManagedKindsAreRecognized(t *testing.T) {
	for _, kind := range managed {
		magic := kind
		if kind == Ext4 {
			magic = extFamily
		}
		if readers[magic] == nil ||
			!slices.ContainsFunc(signatures, func(s signature) bool { return s.kind == magic }) {
			t.Errorf("%s is never recognized", kind)
		}
		if !(Content{Kind: kind}).Data() {
			t.Errorf("%s is not used", kind)
		}
	}
	if got := ManagedNames(); got != "ext4 and xfs" || Btrfs.Managed() {
		t.Errorf("names %q", got)
	}
}
