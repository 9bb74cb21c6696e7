// Package tempfile makes temporary files for content whose length is not known in advance, such as archives of
// logs and blobs to upload, and keeps them from filling the file system that jobs write to.
package tempfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// prefix begins the names of files on file systems that have no unnamed ones.
const prefix = "unnamed-"

// Unnamed makes a file in dir without a name (O_TMPFILE), so that a crash leaves nothing behind. The
// directory must belong to root alone.
func Unnamed(dir string) (*os.File, error) {
	file, err := os.OpenFile(dir, os.O_RDWR|unix.O_TMPFILE, 0o600)
	if err == nil {
		return file, nil
	}
	// Some file systems have no unnamed files.
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EISDIR) {
		return nil, fmt.Errorf("temporary file: %w", err)
	}
	if file, err = os.CreateTemp(dir, prefix); err != nil {
		return nil, fmt.Errorf("temporary file: %w", err)
	}
	return file, os.Remove(file.Name())
}

// Sweep removes what a crash between making a file and taking its name away has left in dir.
func Sweep(dir string) error {
	left, err := filepath.Glob(filepath.Join(dir, prefix+"*"))
	faults := []error{err}
	for _, path := range left {
		faults = append(faults, os.Remove(path))
	}
	return errors.Join(faults...)
}

// reserve is the part of the space free at the start that is left: a twentieth. A part of what is free, not of
// the whole, because the logs of a machine whose disk is nearly full are the ones an operator asks for.
const reserve = 20

// checkEvery is the number of bytes written between two checks of the free space.
const checkEvery = 4 << 20

// Writer writes to a file and fails before its file system is full.
type Writer struct {
	file      *os.File
	minFree   uint64 // bytes
	unchecked int
	free      func() (uint64, error)
}

// NewWriter bounds what is written to file from now on.
func NewWriter(file *os.File) (*Writer, error) {
	return newWriter(file, func() (uint64, error) { return free(file) })
}

func newWriter(file *os.File, free func() (uint64, error)) (*Writer, error) {
	now, err := free()
	if err != nil {
		return nil, err
	}
	return &Writer{file: file, minFree: now / reserve, free: free}, nil
}

// Write implements io.Writer.
func (w *Writer) Write(data []byte) (int, error) {
	if w.unchecked += len(data); w.unchecked >= checkEvery {
		w.unchecked = 0
		now, err := w.free()
		if err != nil {
			return 0, err
		}
		if now < w.minFree+uint64(max(checkEvery, len(data))) { // until the next check
			return 0, fmt.Errorf("the disk of %s has only %d MiB left: request less, or free some space", w.file.Name(), now>>20)
		}
	}
	return w.file.Write(data)
}

// free is the space of the file system of file that is available to other users than root.
func free(file *os.File) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(file.Fd()), &st); err != nil {
		return 0, fmt.Errorf("free space: %w", err)
	}
	return st.Bavail * uint64(st.Bsize), nil
}
