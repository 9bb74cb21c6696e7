//go:build root

package writes

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"testing"

	"cambium/integration/writes/replay"
	"cambium/lab/fusetest"
)

// readRecording reads the log, and what the images held before.
func readRecording(t testing.TB, disks []disk, images []string, log string) *replay.Recording {
	t.Helper()
	r := &replay.Recording{}
	for n, image := range images {
		base, err := replay.DataOf(image, byte(n))
		if err != nil {
			t.Fatal(err)
		}
		r.Base = append(r.Base, base...)
		r.Disks = append(r.Disks, replay.Disk{Name: disks[n].name, Size: disks[n].final()})
	}
	f, err := os.Open(log)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for {
		var e replay.Entry
		err := binary.Read(f, binary.LittleEndian, &e.Header)
		if errors.Is(err, io.EOF) {
			return r
		}
		if err == nil && (e.Kind == fusetest.Wrote || e.Kind == fusetest.Marked) {
			e.Data = make([]byte, e.Length)
			_, err = io.ReadFull(f, e.Data)
		}
		if err != nil {
			t.Fatal(err)
		}
		r.Log = append(r.Log, e)
	}
}
