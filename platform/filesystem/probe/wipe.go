package probe

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// Wipe clears all locations of signatures in [start, start+length) of the device, so that none is recognized there. It
// does not write where it reads zeros, so that a sparse volume remains sparse. Use it only for disks whose content may
// be lost or was released by an operator.
func Wipe(f interface {
	io.ReaderAt
	io.WriterAt
}, start, length int64) error {
	if length <= 0 {
		return nil
	}
	zero, have := make([]byte, wipeChunk), make([]byte, wipeChunk)
	clear := func(from, to int64) error {
		from, to = max(from, 0), min(to, length)
		for from < to {
			n := min(wipeChunk, to-from)
			// Write to an unreadable range, too: the disk may then remap its sectors.
			if _, err := f.ReadAt(have[:n], start+from); err != nil || !bytes.Equal(have[:n], zero[:n]) {
				if _, err := f.WriteAt(zero[:n], start+from); err != nil {
					return fmt.Errorf("wipe %d bytes at %d: %w", n, start+from, err)
				}
			}
			from += n
		}
		return nil
	}
	// All but three kinds are in the head and tail.
	if err := errors.Join(clear(0, 1<<20+64<<10), clear(length-1<<20, length)); err != nil {
		return err
	}
	for _, s := range signatures {
		if s.offset >= 1<<20 {
			if err := clear(s.offset, s.offset+int64(len(s.magic))); err != nil {
				return err
			}
		}
	}
	return nil
}

const wipeChunk = 64 << 10
