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

// Fingerprint returns a text that differs between disks, for an operator's request: the UUID of the file system, the
// table's identifier, the size and the serial number. Without a file system, it contains a hash of the first MiB, too.
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

// DropLapsedRequest removes an operator's request from r if it was not made about the disk at path, whose fingerprint
// found returns. With acting set, it also removes it from the file.
func (m *Machine) DropLapsedRequest(r record.Record, key, path string, acting bool,
	found func() (string, error)) error {
	asked := r.Asked[key]
	if asked == "" {
		return nil
	}
	text, err := found()
	if err != nil || !r.Lapsed(key, text) {
		return err
	}
	r.EndRequest(key)
	if !acting {
		return nil
	}
	m.Log.WithFields(logrus.Fields{"disk": key, "device": path, "request": string(asked)}).
		Warn("the disk is not the one that an operator was shown: the request lapses")
	return m.Record.Update(func(r *record.Record) { r.EndRequest(key) })
}
