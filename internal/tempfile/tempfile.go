// Package tempfile creates temporary files for content of unknown length, such as archives of logs and blobs to upload,
// and prevents them from filling the file system that jobs use.
package tempfile

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// prefix is the prefix of temporary names, on file systems that do not support unnamed files. atomicfile.Sweep removes
// what a crash has left of them.
const prefix = ".unnamed.cambium-tmp-"

// Unnamed creates a file without a name in dir (O_TMPFILE), so that a crash leaves nothing behind. Only root may have
// write access to dir.
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

// reserve defines the free space that is kept: a twentieth of what is free at the start. It is not a part of the whole
// file system, because if the disk is nearly full, operators need the logs most.
const reserve = 20

// checkEvery is the number of bytes written between two checks of the free space.
const checkEvery = 4 << 20

// Writer writes to a file and fails before the file system is full.
type Writer struct {
	file      *os.File
	minFree   uint64 // bytes
	unchecked int
	free      func() (uint64, error)
}

// NewWriter returns a writer that keeps a part of the current free space.
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
			return 0, fmt.Errorf("the disk of %s has only %d MiB left: request less, or free some space",
				w.file.Name(), now>>20)
		}
	}
	return w.file.Write(data)
}

// free returns the space that is available to users other than root.
func free(file *os.File) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(file.Fd()), &st); err != nil {
		return 0, fmt.Errorf("free space: %w", err)
	}
	return st.Bavail * uint64(st.Bsize), nil
}
