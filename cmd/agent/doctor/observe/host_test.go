package observe

import (
	"testing"

	"cambium/internal/vcap"
	"cambium/storage/record"
	"cambium/storage/recordfile"
)

// The doctor expects the disk that a boot would mount, also where the file that other agents read is lost.
func TestPersistentDiskIsTheOneOnRecord(t *testing.T) {
	dirs := vcap.New(t.TempDir())
	if got := persistentDisk(dirs, "vol-0"); got.CID != "vol-0" {
		t.Errorf("without a record it expects %q, want what another agent wrote", got.CID)
	}
	if err := recordfile.In(dirs).Update(func(r *record.Record) { r.Store = "vol-1" }); err != nil {
		t.Fatal(err)
	}
	for _, told := range []string{"", "vol-1"} {
		if got := persistentDisk(dirs, told); got.CID != "vol-1" {
			t.Errorf("with %q in managed_disk_settings.json it expects %q, want vol-1", told, got.CID)
		}
	}
}
