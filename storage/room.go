package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// holding is what a store holds.
type holding struct{ bytes, files int64 }

// holds returns what is on the disk that is mounted on a directory. Of a bind-mounted one only the tree counts: the rest
// of the file system is somebody else's.
func (d *Migration) holds(dir string) (holding, error) {
	if !d.Options.BindMountPersistentDisk {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			return holding{}, &os.PathError{Op: "statfs", Path: dir, Err: err}
		}
		return holding{int64(st.Blocks-st.Bfree) * st.Bsize, int64(st.Files - st.Ffree)}, nil
	}
	var bytes, files float64 // a file with several names is a part at each
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(path, &st)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // gone meanwhile
		}
		if err != nil {
			return err
		}
		names := 1.0
		if !e.IsDir() {
			names = float64(max(st.Nlink, 1))
		}
		bytes += float64(st.Blocks*512) / names
		files += 1 / names
		return nil
	})
	return holding{int64(bytes), int64(files)}, err
}

// roomFor refuses a target that is too small before the first byte is copied.
func (d *Migration) roomFor(need holding, target string, exact bool) error {
	var to unix.Statfs_t
	if err := unix.Statfs(target, &to); err != nil {
		return &os.PathError{Op: "statfs", Path: target, Err: err}
	}
	have := holding{int64(to.Bfree) * to.Bsize, int64(to.Ffree)}
	if exact {
		before, err := d.holds(target) // of an earlier attempt
		if err != nil {
			return err
		}
		have.bytes += before.bytes
		have.files += before.files
	}
	if need.bytes > have.bytes {
		return fmt.Errorf("the new disk is too small: %d MiB are used on the old one, %d MiB are free", need.bytes>>20, have.bytes>>20)
	}
	if to.Files > 0 && need.files > have.files {
		return fmt.Errorf("the new disk has too few inodes: %d are used on the old one, %d are free", need.files, have.files)
	}
	return nil
}
