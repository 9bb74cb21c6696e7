package copytree

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// openEntry opens an entry to read it. For anything but a regular file it returns an O_PATH descriptor: a device must
// not be opened.
func openEntry(dir int, name string, kind uint8) (int, error) {
	if kind != unix.DT_REG {
		return openFile(dir, name, unix.O_PATH)
	}
	return openFile(dir, name, unix.O_RDONLY)
}

// leaveHoles disables readahead, which would fill the page cache with zeros for the holes of a sparse file and take
// longer than reading its data.
func leaveHoles(fd int) {
	_ = unix.Fadvise(fd, 0, 0, unix.FADV_RANDOM) // only readahead
}

// readAt fills b from an offset of a file.
func readAt(fd int, b []byte, offset int64) error {
	for len(b) > 0 {
		n, err := unix.Pread(fd, b, offset)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("read: %w", err)
		case n == 0:
			return &DifferenceError{What: "size"} // the file became shorter
		}
		b, offset = b[n:], offset+int64(n)
	}
	return nil
}
