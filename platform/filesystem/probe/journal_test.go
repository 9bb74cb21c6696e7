package probe

import (
	"encoding/binary"
	"io"
	"os"
	"testing"

	"cambium/internal/looptest"
)

// TestJournalsOfNewFileSystems: the journal of a new file system need not be replayed. The root tests have file systems
// that were not unmounted.
func TestJournalsOfNewFileSystems(t *testing.T) {
	for name, c := range map[string]struct {
		make    []string
		journal func(io.ReaderAt) (bool, error)
	}{
		"ext4":         {[]string{"mkfs.ext4", "-qF"}, ExtJournal},
		"xfs":          {[]string{"mkfs.xfs", "-q"}, XFSJournal},
		"striped xfs":  {[]string{"mkfs.xfs", "-q", "-d", "su=256k,sw=2"}, XFSJournal},
		"xfs in 1 KiB": {[]string{"mkfs.xfs", "-q", "-b", "size=1024"}, XFSJournal},
	} {
		t.Run(name, func(t *testing.T) {
			path := looptest.Image(t, 2<<30)
			run(c.make[0], append(c.make[1:], "IMAGE")...)(t, path)
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if used, err := c.journal(f); used || err != nil {
				t.Errorf("the journal of a new one: %v, %v", used, err)
			}
			if name == "ext4" {
				return
			}
			// A log on another device cannot be looked at.
			if _, err := f.WriteAt(binary.BigEndian.AppendUint64(nil, 0), 48); err != nil {
				t.Fatal(err)
			}
			if used, err := c.journal(f); !used || err != nil {
				t.Errorf("a log elsewhere: %v, %v", used, err)
			}
		})
	}
}
