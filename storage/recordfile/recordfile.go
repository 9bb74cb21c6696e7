// Package recordfile keeps the disk record in one file. One that is damaged, or of a newer version, is set aside by the next
// change: what is on the disks themselves decides then.
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

// ErrDamaged means that there is a record which cannot be used. An empty one is returned with it.
var ErrDamaged = errors.New("the disk record is damaged")

// File is the file with the record of one agent.
type File struct{ dirs vcap.Dirs }

// In returns the file of the agent with these directories.
func In(dirs vcap.Dirs) File { return File{dirs} }

// Read returns the record; an empty one if there is no file.
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

// Update changes the record, and writes it if it is another one then. A command and the agent may both do so.
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

// locked keeps other processes from changing the record. Only root can hold the lock, for as long as one write takes.
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

// Ask leaves an operator's request for the agent. shown is which disk the operator was shown; without one it is for any.
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
		r.Done(cid)
		r.Asked[cid] = a
		if shown != "" {
			r.Shown[cid] = shown
		}
	})
}

// setAside renames what is damaged, so that an operator can inspect it.
func (f File) setAside() error {
	path := f.dirs.DiskRecord()
	if err := os.Rename(path, path+".damaged"); err != nil {
		return err
	}
	return atomicfile.SyncDir(filepath.Dir(path))
}
