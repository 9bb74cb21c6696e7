package machine

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/sirupsen/logrus"

	"cambium/internal/blkdev"
	"cambium/platform/disk/layout"
	"cambium/storage/record"
)

// Fingerprint tells a disk from others, for an operator's request about it: by the identifier of its file system, size
// and serial number, or, where it is given without a file system, by what it begins with.
func Fingerprint(path string, d record.Disk) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	number, err := blkdev.NumberOf(path)
	if err != nil {
		return "", err
	}
	text := fmt.Sprintf("file system %s, table %s, serial %s, %d bytes", d.FileSystem, d.Table, Serial(number), d.Bytes)
	if d.FileSystem != "" {
		return text, nil
	}
	sum := sha256.New()
	if _, err := io.CopyN(sum, f, layout.MiB); err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	return fmt.Sprintf("%s, %x", text, sum.Sum(nil)), nil
}

// Lapse drops a request that an operator has made about a disk other than the one at path, whose fingerprint is found.
// With acting set, also on record.
func (m *Machine) Lapse(r record.Record, key, path string, acting bool, found func() (string, error)) error {
	asked := r.Asked[key]
	if asked == "" {
		return nil
	}
	text, err := found()
	if err != nil || !r.Lapsed(key, text) {
		return err
	}
	r.Done(key)
	if !acting {
		return nil
	}
	m.Log.WithFields(logrus.Fields{"disk": key, "device": path, "request": string(asked)}).
		Warn("the disk is not the one that an operator was shown: the request lapses")
	return m.Record.Update(func(r *record.Record) { r.Done(key) })
}
