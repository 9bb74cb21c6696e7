package source

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// ReadFile reads a regular file of at most MaxDocument bytes. If it is missing, the error is final.
func ReadFile(path string) ([]byte, error) {
	// Without O_NONBLOCK, opening a FIFO would wait for a writer.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, Final(fmt.Errorf("%s: %w", path, cause(err)))
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, cause(err))
	}
	if !info.Mode().IsRegular() {
		return nil, Final(fmt.Errorf("%s: not a regular file", path))
	}
	body, err := ReadAll(f, MaxDocument)
	if errors.Is(err, ErrTooLarge) {
		return nil, NotYet(fmt.Errorf("%s: %w", path, err))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, cause(err))
	}
	return body, nil
}

// cause removes the operation and path from an error, since callers add the path.
func cause(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}
