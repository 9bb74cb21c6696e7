// Package recordfile keeps the disk record in one file. A file that cannot be read is an error, never an empty
// record: only an operator begins a new one.
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

// ErrDamaged means that there is a record which cannot be used.
var ErrDamaged = errors.New("the disk record is damaged")

// File is where the record of one agent is.
type File struct{ dirs vcap.Dirs }

// In returns the file of the agent with these directories.
func In(dirs vcap.Dirs) File { return File{dirs} }

// Read returns the record; an empty one if there is no file.
func (f File) Read() (record.Record, error) {
	data, err := os.ReadFile(f.dirs.DiskRecord())
	if errors.Is(err, fs.ErrNotExist) {
		return f.readFormer()
	}
	if err != nil {
		return record.Record{}, fmt.Errorf("read the disk record: %w", err)
	}
	r, err := record.Decode(data)
	if err != nil {
		return record.Record{}, damaged(f.dirs.DiskRecord(), err)
	}
	return r, nil
}

func damaged(path string, why error) error {
	return fmt.Errorf("%w: %s: %w: run 'agent disk accept CID' with the CID of the disk that belongs on the store",
		ErrDamaged, path, why)
}

// Update changes the record, and writes it if it is another one then. A command and the agent may both do so.
func (f File) Update(change func(*record.Record)) (err error) {
	if err := os.MkdirAll(filepath.Dir(f.dirs.DiskRecord()), 0o755); err != nil {
		return err
	}
	return f.locked(func() error {
		r, err := f.Read()
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
	_, first := os.Lstat(f.dirs.DiskRecord())
	if err := atomicfile.Write(f.dirs.DiskRecord(), after, 0o600); err != nil {
		return fmt.Errorf("write the disk record: %w", err)
	}
	if first != nil {
		return f.removeFormer()
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

// Ask leaves an operator's request for the agent. To accept a disk begins a new record where the present one is
// damaged.
func (f File) Ask(a record.Action, cid string) error {
	if cid == "" {
		return errors.New("the disk's CID is empty")
	}
	return f.locked(func() error {
		r, err := f.Read()
		if errors.Is(err, ErrDamaged) && a == record.Accept {
			if err := f.setAside(); err != nil {
				return err
			}
			r, err = record.New(), nil
		}
		if err != nil {
			return err
		}
		_, known := r.Disks[cid]
		if a == record.Release && !known && r.Store != cid && r.Asked[cid] == "" {
			return fmt.Errorf("disk %s is not on record; recorded disks: %q", cid, slices.Sorted(maps.Keys(r.Disks)))
		}
		return f.write(r, func(r *record.Record) { r.Asked[cid] = a })
	})
}

// setAside renames what is damaged, so that an operator can inspect it.
func (f File) setAside() error {
	for _, path := range []string{f.dirs.DiskRecord(), f.dirs.FormerDiskRecords(), f.dirs.FormerDiskIntents()} {
		if err := os.Rename(path, path+".damaged"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return atomicfile.SyncDir(filepath.Dir(f.dirs.DiskRecord()))
}
