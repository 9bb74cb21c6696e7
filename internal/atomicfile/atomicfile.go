// Package atomicfile replaces files so that after a crash or a power cut, and for every reader, a file has either its
// old content or its new one. It writes a temporary file in the same directory, syncs it, renames it and syncs the
// directory. The agent writes all of its state with it.
package atomicfile

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// PreviousSuffix is the suffix of a file's previous version.
const PreviousSuffix = ".previous"

const tempMark = ".cambium-tmp-"

type options struct {
	uid, gid     int
	owner        bool
	keepPrevious bool
	volatile     bool
}

// Option changes how Write and WriteFrom work.
type Option func(*options)

// Owner makes uid and gid the owner of the file before it becomes visible.
func Owner(uid, gid int) Option {
	return func(o *options) { o.uid, o.gid, o.owner = uid, gid, true }
}

// KeepPrevious keeps the replaced file under its name with PreviousSuffix.
func KeepPrevious() Option { return func(o *options) { o.keepPrevious = true } }

// Volatile skips fsync, for files that need not survive a power cut, such as those below /run. Readers still see either
// the old content or the new.
func Volatile() Option { return func(o *options) { o.volatile = true } }

// Write replaces the file at path. It sets mode exactly, regardless of the umask. A missing parent directory is an
// error, because its owner must create it with the right mode.
func Write(path string, data []byte, mode fs.FileMode, opts ...Option) error {
	return WriteFrom(path, mode, func(file *os.File) error {
		_, err := file.Write(data)
		return err
	}, opts...)
}

// WriteFrom is like Write, for content that fill writes. If fill fails, the file stays as it was.
func WriteFrom(path string, mode fs.FileMode, fill func(*os.File) error, opts ...Option) (err error) {
	var o options
	for _, apply := range opts {
		apply(&o)
	}
	dir, name := filepath.Split(path)
	if dir == "" {
		dir = "."
	}
	temp := filepath.Join(dir, "."+name+tempMark+rand.Text())
	// 0600 until the content is complete: a secret must not be readable for a moment.
	file, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("write %s: %w", path, err), removeIfThere(temp))
		}
	}()
	if err = fill(file); err == nil {
		err = finish(file, mode, o)
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	if o.keepPrevious {
		if err = keepPrevious(path, dir, name); err != nil {
			return err
		}
	}
	if err = os.Rename(temp, path); err != nil || o.volatile {
		return err
	}
	return SyncDir(dir)
}

func finish(file *os.File, mode fs.FileMode, o options) error {
	if o.owner {
		if err := file.Chown(o.uid, o.gid); err != nil {
			return err
		}
	}
	// After chown, which clears setuid and setgid bits.
	if err := file.Chmod(mode); err != nil || o.volatile {
		return err
	}
	return file.Sync()
}

// keepPrevious adds a hard link to the current file, so that path exists at all times.
func keepPrevious(path, dir, name string) error {
	link := filepath.Join(dir, "."+name+tempMark+rand.Text())
	err := os.Link(path, link)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	// rename(2) of two names for one inode does nothing and leaves both, hence the removal.
	return errors.Join(os.Rename(link, path+PreviousSuffix), removeIfThere(link))
}

// WriteIfChanged writes the file only if its content or mode differs, and reports whether it has written.
func WriteIfChanged(path string, data []byte, mode fs.FileMode, opts ...Option) (bool, error) {
	info, err := os.Lstat(path)
	if err == nil && info.Mode().IsRegular() && info.Mode().Perm() == mode.Perm() && info.Size() == int64(len(data)) {
		have, err := os.ReadFile(path)
		if err == nil && bytes.Equal(have, data) {
			return false, nil
		}
	}
	return true, Write(path, data, mode, opts...)
}

// Remove removes a file and syncs its directory. A missing file is not an error.
func Remove(path string) error {
	if err := removeIfThere(path); err != nil {
		return err
	}
	err := SyncDir(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Symlink makes path a symbolic link to target. It atomically replaces a file or link.
func Symlink(target, path string) error {
	if have, err := os.Readlink(path); err == nil && have == target {
		return nil
	}
	dir, name := filepath.Split(path)
	temp := filepath.Join(dir, "."+name+tempMark+rand.Text())
	if err := os.Symlink(target, temp); err != nil {
		return fmt.Errorf("link %s: %w", path, err)
	}
	if err := os.Rename(temp, path); err != nil {
		return errors.Join(fmt.Errorf("link %s: %w", path, err), removeIfThere(temp))
	}
	return SyncDir(dir)
}

// SyncDir syncs a directory, so that the names in it survive a power cut.
func SyncDir(dir string) error {
	if dir == "" {
		dir = "."
	}
	handle, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	if err := handle.Sync(); err != nil {
		return errors.Join(fmt.Errorf("sync directory %s: %w", dir, err), handle.Close())
	}
	return handle.Close()
}

// Sweep removes the temporary files that a crash during Write has left in dir. No other process may be writing there.
func Sweep(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("sweep: %w", err)
	}
	var failed []error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") && strings.Contains(e.Name(), tempMark) && !e.IsDir() {
			failed = append(failed, removeIfThere(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(failed...)
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Exists reports whether path exists. A dangling link counts.
func Exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
