package copytree

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// openAhead opens an entry before its turn, and has the kernel begin to read it: while a worker is
// busy with one file, the disk reads the next ones. Of anything but a regular file it returns a
// descriptor that only stands for it: a device must not be opened.
func openAhead(dir int, name string, kind uint8) (int, error) {
	if kind != unix.DT_REG {
		return openFile(dir, name, unix.O_PATH)
	}
	fd, err := openFile(dir, name, unix.O_RDONLY)
	if err == nil {
		_ = unix.Fadvise(fd, 0, blockSize, unix.FADV_WILLNEED) // only readahead
	}
	return fd, err
}

// leaveHoles turns readahead off: it would fill the page cache with zeros for the holes of a sparse file, which takes
// longer than reading its data.
func leaveHoles(fd int) {
	_ = unix.Fadvise(fd, 0, 0, unix.FADV_RANDOM) // only readahead
}

// readAt fills a block from an offset of a file.
func readAt(fd int, b []byte, offset int64) error {
	for len(b) > 0 {
		n, err := unix.Pread(fd, b, offset)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("read: %w", err)
		case n == 0:
			return &DifferenceError{What: "size"} // it became shorter
		}
		b, offset = b[n:], offset+int64(n)
	}
	return nil
}
