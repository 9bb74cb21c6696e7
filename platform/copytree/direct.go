package copytree

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Small files are read with O_DIRECT, past the page cache: what is read is what the disk holds, and the
// kernel neither allocates pages nor copies. Files larger than a block are read through the page
// cache, because the kernel reads ahead there; so is what a file system or an offset does not allow.

// directAlign is a multiple of the alignment that devices want of memory, offsets and lengths.
const directAlign = 4096

// alignedBlock returns memory of blockSize for readAt.
func alignedBlock() []byte {
	b := make([]byte, blockSize+directAlign)
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(b))) % directAlign
	return b[skip : skip+blockSize : skip+blockSize]
}

// openDirect opens a regular file for readAt.
func openDirect(dir int, name string) (int, error) {
	fd, err := openFile(dir, name, unix.O_RDONLY|unix.O_DIRECT)
	if !errors.Is(err, unix.EINVAL) {
		return fd, err
	}
	fd, err = openFile(dir, name, unix.O_RDONLY)
	if err == nil {
		if err = throughCache(fd); err != nil {
			closeAll(fd)
		}
	}
	return fd, err
}

// openEntry opens a regular file for readAt. Of anything else it returns a descriptor that only stands
// for it: a device must not be opened.
func openEntry(dir int, name string, kind uint8) (int, error) {
	if kind == unix.DT_REG {
		return openDirect(dir, name)
	}
	return openFile(dir, name, unix.O_PATH)
}

// throughCache has a file read through the page cache, after what has been flushed of it has left
// that: the disk is asked, and not the memory. The kernel may not follow the advice; nothing but the proof
// that the disk has what is read depends on it.
func throughCache(fd int) error {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, unix.O_NOATIME); err != nil {
		return fmt.Errorf("read through the page cache: %w", err)
	}
	_ = unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED)
	return nil
}

// readAt fills the beginning of an alignedBlock.
func readAt(fd int, b []byte, offset int64) error {
	rounded := (len(b) + directAlign - 1) / directAlign * directAlign
	if n, err := unix.Pread(fd, b[:rounded], offset); err == nil && n >= len(b) {
		return nil
	}
	// The file ends early, or its data begins where O_DIRECT does not reach.
	if err := throughCache(fd); err != nil {
		return err
	}
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
