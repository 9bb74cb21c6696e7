package probe

import (
	"slices"
	"testing"

	"cambium/internal/managedfs"
)

func TestManagedKindsAreRecognized(t *testing.T) {
	for _, name := range managedfs.Names() {
		kind := Kind(name)
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
}
