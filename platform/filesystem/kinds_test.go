package filesystem

import (
	"testing"

	"cambium/internal/managedfs"
	"cambium/platform/filesystem/probe"
)

// A row that lacks something would fail only on the disk that needs it.
func TestManagedKindsAreComplete(t *testing.T) {
	for _, name := range managedfs.Names() {
		row := managedKinds[probe.Kind(name)]
		if row.finished == nil || row.journal == nil || row.length == nil || row.grow == nil {
			t.Errorf("the row of %s is not complete", name)
		}
	}
}
