package identity

import (
	"errors"
	"os"
	"reflect"
	"testing"

	"cambium/internal/vcap"
)

// FuzzRecords: a file of records is used whole or called damaged, and what was read is what is read after it was written
// again. A record is found by its CID.
func FuzzRecords(f *testing.F) {
	for _, seed := range []string{`{"version":1,"disks":{}}`, `{"version":1,"disks":{"vol-1":{"file_system":"11111111-aaaa","table":"AAAA","bytes":100,"hardware":"naa.1"},"vol-2":{"bytes":-1}}}`,
		`{"version":2,"disks":{}}`, `{"version":1}`, `{"version":1,"disks":{"a":null}}`, `{"version":1,"disks":{"a":{"bytes":1e3}}}`, ``, `null`, `[]`} {
		f.Add([]byte(seed))
	}
	dirs := vcap.New(f.TempDir())
	if err := os.Mkdir(dirs.Bosh(), 0o755); err != nil {
		f.Fatal(err)
	}
	file := In(dirs)
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(file.path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		records, err := file.All()
		if err != nil {
			if !errors.Is(err, errDamaged) || records != nil {
				t.Fatalf("got %v with %v, want nothing but that it is damaged", records, err)
			}
			return
		}
		for cid, d := range records {
			if of, found, known := records.Known(cid, "", ""); !known || of != cid || found != d {
				t.Fatalf("%q is on record as %v, and found as %q %v", cid, d, of, found)
			}
			if d.Conflict(d) != "" {
				t.Fatalf("%v conflicts with itself: %s", d, d.Conflict(d))
			}
			records.Owners(d)
		}
		if err := file.write(records); err != nil {
			t.Fatal(err)
		}
		if second, err := file.All(); err != nil || !reflect.DeepEqual(second, records) {
			t.Fatalf("%v became %v, %v", records, second, err)
		}
	})
}
