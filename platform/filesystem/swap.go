package filesystem

import (
	"bufio"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"cambium/internal/blkdev"
)

// FormatSwap writes a swap header, which destroys the content of the device.
func FormatSwap(device string) error {
	f, err := os.OpenFile(device, os.O_RDWR|unix.O_EXCL, 0)
	if err != nil {
		return fmt.Errorf("make swap: %w", err)
	}
	size, err := blkdev.Size(f)
	if err == nil {
		err = writeSwap(f, size, os.Getpagesize())
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("make swap on %s: %w", device, err)
	}
	return nil
}

func writeSwap(f interface {
	io.WriterAt
	Sync() error
}, size int64, page int) error {
	pages := size / int64(page)
	if pages < 10 {
		return fmt.Errorf("%d bytes are too small for swap", size)
	}
	header := make([]byte, page)
	binary.LittleEndian.PutUint32(header[1024:], 1)
	binary.LittleEndian.PutUint32(header[1028:], uint32(min(pages-1, 1<<32-1)))
	id := header[1036:1052]
	_, _ = rand.Read(id) // never fails on supported systems
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	copy(header[page-10:], "SWAPSPACE2")
	if _, err := f.WriteAt(header, 0); err != nil {
		return err
	}
	return f.Sync()
}

// SwapOn activates a swap device, unless it is active.
func SwapOn(device string) error {
	active, err := SwapActive(device)
	if err != nil || active {
		return err
	}
	path, err := unix.BytePtrFromString(device)
	if err != nil {
		return err
	}
	_, _, errno := unix.Syscall(unix.SYS_SWAPON, uintptr(unsafe.Pointer(path)), 0, 0)
	if errno != 0 && errno != unix.EBUSY {
		return fmt.Errorf("swapon %s: %w", device, errno)
	}
	return nil
}

// SwapActive reports whether a device is in use as swap. It compares device numbers, since /proc/swaps may contain
// another path.
func SwapActive(device string) (bool, error) {
	want, err := blkdev.NumberOf(device)
	if err != nil {
		return false, err
	}
	active, err := ActiveSwaps()
	if err != nil {
		return false, err
	}
	for _, n := range active {
		if n == want {
			return true, nil
		}
	}
	return false, nil
}

// ActiveSwaps returns the numbers of all devices in use as swap.
func ActiveSwaps() ([]blkdev.Number, error) {
	f, err := os.Open("/proc/swaps")
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // a kernel without swap
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []blkdev.Number
	s := bufio.NewScanner(f)
	for s.Scan() {
		path, _, _ := strings.Cut(s.Text(), " ")
		path = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(path)
		if n, err := blkdev.NumberOf(path); err == nil {
			all = append(all, n)
		}
	}
	return all, s.Err()
}
