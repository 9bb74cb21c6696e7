package intent

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/sirupsen/logrus"

	"cambium/platform/disk"
)

func newFile(t *testing.T) File {
	t.Helper()
	log := logrus.New()
	log.SetOutput(io.Discard)
	return File{Path: filepath.Join(t.TempDir(), "bosh", "disk_intents.json"), Log: logrus.NewEntry(log)}
}

func TestIntentsAreKept(t *testing.T) {
	f := newFile(t)
	if err := f.Clear("vol-1"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(f.Path); !os.IsNotExist(err) {
		t.Errorf("nothing was on record, and there is a file: %v", err)
	}
	if err := f.Set("vol-1", Intent{Table: "ABCD"}); err != nil {
		t.Fatal(err)
	}
	if err := f.Set(Migration, Intent{Table: MigrationID("a", "b")}); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(f.Path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v; want 0600", info, err)
	}
	for _, c := range []struct {
		name  string
		key   string
		table disk.Table
		want  bool
	}{
		{"this table", "vol-1", disk.Table{Label: disk.GPT, GUID: "abcd"}, true},
		{"another table", "vol-1", disk.Table{Label: disk.GPT, GUID: "abce"}, false},
		{"no table", "vol-1", disk.Table{GUID: "abcd"}, false},
		{"another disk", "vol-2", disk.Table{Label: disk.GPT, GUID: "abcd"}, false},
	} {
		if got, err := f.Pending(c.key, c.table); err != nil || got != c.want {
			t.Errorf("%s: pending %v, %v; want %v", c.name, got, err, c.want)
		}
	}
	if err := f.Clear("vol-1"); err != nil {
		t.Fatal(err)
	}
	all, err := f.All()
	if err != nil || len(all) != 1 || all[Migration].Table == "" {
		t.Errorf("on record %+v, %v; want the migration alone", all, err)
	}
}

// Without the record a disk with an incomplete copy would become the store.
func TestDamagedFileIsAnError(t *testing.T) {
	f := newFile(t)
	if err := os.Mkdir(filepath.Dir(f.Path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(f.Path, []byte(`{"vol-1": {`), 0o600); err != nil {
		t.Fatal(err)
	}
	if all, err := f.All(); !errors.Is(err, ErrDamaged) || all != nil {
		t.Errorf("on record %+v, %v; want ErrDamaged", all, err)
	}
	if err := f.Set("vol-2", Intent{Table: "x"}); !errors.Is(err, ErrDamaged) {
		t.Errorf("Set = %v; want ErrDamaged", err)
	}
	if err := f.SetAside(); err != nil {
		t.Fatal(err)
	}
	if all, err := f.All(); err != nil || len(all) != 0 {
		t.Errorf("set aside: on record %+v, %v", all, err)
	}
	if err := os.Mkdir(f.Path, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := f.All(); err == nil {
		t.Error("what cannot be read is taken for nothing")
	}
}

func TestMigrationRecord(t *testing.T) {
	i := Intent{Table: MigrationID("vol-1", "vol-2")}
	for cid, want := range map[string][2]bool{"vol-1": {false, true}, "vol-2": {true, true}, "vol-3": {}, "": {}, "vol": {}} {
		if moves, concerns := i.Moves(cid), i.Concerns(cid); moves != want[0] || concerns != want[1] {
			t.Errorf("%q: moves %v, concerns %v; want %v", cid, moves, concerns, want)
		}
	}
}
