package filesystem

import (
	"testing"

	"cambium/internal/managedfs"
	"cambium/platform/filesystem/probe"
)

// TestManagedKindsAreComplete: an incomplete row would fail only with a disk that needs it.
func TestManagedKindsAreComplete(t *testing.T) {
	for _, name := range managedfs.Names() {
		row := managedKinds[probe.Kind(name)]
		if row.finished == nil || row.journal == nil || row.length == nil || row.grow == nil {
			t.Errorf("the row of %s is not complete", name)
		}
	}
}
