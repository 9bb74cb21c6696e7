package observe

import (
	"maps"
	"testing"

	"cambium/internal/vcap"
	"cambium/platform/mount"
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

// An ext4 that has met an error says so in its options; another one of the table does not count.
func TestFailedFileSystems(t *testing.T) {
	got := failedFileSystems([]mount.Entry{
		{Number: 1, Super: "rw,errors=remount-ro"},
		{Number: 2, Super: "rw,emergency_ro"},
		{Number: 3, Super: "ro,x-emergency_ro"},
	})
	if want := map[uint64]bool{2: true}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
