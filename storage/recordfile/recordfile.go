// Package recordfile stores the record of disks in a file. The next change sets a damaged file, or one of a newer
// version, aside; the agent then relies on what the disks themselves contain.
package recordfile

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"cambium/internal/atomicfile"
	"cambium/internal/vcap"
	"cambium/storage/record"
)

// ErrDamaged is returned, with an empty record, if the file cannot be used.
var ErrDamaged = errors.New("the disk record is damaged")

// File is the file with an agent's record.
type File struct{ dirs vcap.Dirs }

// In returns the file below these directories.
func In(dirs vcap.Dirs) File { return File{dirs} }

// Read returns the record, or an empty one if there is no file.
func (f File) Read() (record.Record, error) {
	data, err := os.ReadFile(f.dirs.DiskRecord())
	if errors.Is(err, fs.ErrNotExist) {
		return record.New(), nil
	}
	if err != nil {
		return record.Record{}, fmt.Errorf("read the disk record: %w", err)
	}
	r, err := record.Decode(data)
	if err != nil {
		return record.New(), fmt.Errorf("%w: %s: %w", ErrDamaged, f.dirs.DiskRecord(), err)
	}
	return r, nil
}

// Update changes the record and writes it if it is different afterwards. It locks the file, since commands and the
// agent may change it at the same time.
func (f File) Update(change func(*record.Record)) (err error) {
	if err := os.MkdirAll(filepath.Dir(f.dirs.DiskRecord()), 0o755); err != nil {
		return err
	}
	return f.locked(func() error {
		r, err := f.Read()
		if errors.Is(err, ErrDamaged) {
			err = f.setAside()
		}
		if err != nil {
			return err
		}
		return f.write(r, change)
	})
}

func (f File) write(r record.Record, change func(*record.Record)) error {
	before, err := r.Encode()
	if err != nil {
		return err
	}
	change(&r)
	after, err := r.Encode()
	if err != nil || bytes.Equal(before, after) {
		return err
	}
	if err := atomicfile.Write(f.dirs.DiskRecord(), after, 0o600); err != nil {
		return fmt.Errorf("write the disk record: %w", err)
	}
	return nil
}

// locked calls do while it holds the lock against other processes. Only root can take it, and each writer holds it only
// briefly.
func (f File) locked(do func() error) (err error) {
	lock, err := os.OpenFile(f.dirs.DiskRecordLock(), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("lock the disk record: %w", err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock the disk record: %w", err)
	}
	return do()
}

// Ask records an operator's request for the agent. shown identifies the disk that the operator was shown; if it is
// empty, the request is for any.
func (f File) Ask(a record.Action, cid, shown string) error {
	if cid == "" {
		return errors.New("the disk's CID is empty")
	}
	if a == record.Release {
		r, err := f.Read()
		_, known := r.Disks[cid]
		if err == nil && !known && r.Store != cid && r.Asked[cid] == "" {
			err = fmt.Errorf("disk %s is not on record; recorded disks: %q", cid, slices.Sorted(maps.Keys(r.Disks)))
		}
		if err != nil {
			return err
		}
	}
	if _, err := os.Stat(filepath.Dir(f.dirs.DiskRecord())); err != nil {
		return err
	}
	return f.Update(func(r *record.Record) {
		r.EndRequest(cid)
		r.Asked[cid] = a
		if shown != "" {
			r.Shown[cid] = shown
		}
	})
}

// setAside renames the damaged file, so that an operator can inspect it.
func (f File) setAside() error {
	path := f.dirs.DiskRecord()
	if err := os.Rename(path, path+".damaged"); err != nil {
		return err
	}
	return atomicfile.SyncDir(filepath.Dir(path))
}
