package logs

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// extent is a part of a file with data.
type extent struct{ offset, length int64 }

// Limits of sparse files. A file with fewer bytes in holes is packed like any other. A job can create a hole after
// every block; readers refuse a map above 1 MiB.
const (
	minHoles   = 1 << 20
	maxExtents = 20_000
)

// extents returns the parts of a file that have data, according to the kernel, so that the zeros of terabytes of holes
// need not be read. The last extent may be empty; it marks the end of a file that ends in a hole. If a file has more
// than maxExtents, it is cut there.
func extents(file *os.File, size int64) (data []extent, cut bool, err error) {
	fd := int(file.Fd())
	for at := int64(0); at < size; {
		begin, err := unix.Seek(fd, at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) || err == nil && begin >= size {
			break // a hole up to the end
		}
		if err != nil {
			return nil, false, fmt.Errorf("find data: %w", err)
		}
		end, err := unix.Seek(fd, begin, unix.SEEK_HOLE)
		if err != nil && !errors.Is(err, unix.ENXIO) {
			return nil, false, fmt.Errorf("find holes: %w", err)
		}
		if err != nil || end > size {
			end = size
		}
		if len(data) == maxExtents {
			return data, true, nil
		}
		data = append(data, extent{begin, end - begin})
		at = end
	}
	if len(data) == 0 || data[len(data)-1].offset+data[len(data)-1].length < size {
		data = append(data, extent{offset: size})
	}
	return data, false, nil
}

func total(data []extent) (n int64) {
	for _, e := range data {
		n += e.length
	}
	return n
}

// sparseMap encodes the map before the data of a sparse entry: the number of extents, and then the offset and length of
// each, one number per line, padded to a block.
func sparseMap(data []extent) []byte {
	text := strconv.AppendInt(nil, int64(len(data)), 10)
	text = append(text, '\n')
	for _, e := range data {
		text = append(strconv.AppendInt(text, e.offset, 10), '\n')
		text = append(strconv.AppendInt(text, e.length, 10), '\n')
	}
	return append(text, make([]byte, padding(int64(len(text))))...)
}

const blockSize = 512

func padding(n int64) int64 { return (blockSize - n%blockSize) % blockSize }

// sparseHeader returns the headers of a sparse file in GNU tar's format 1.0, which current tars read and write: a pax
// extended header with name and size of the file, and the header of an ordinary file whose content is the map and the
// data. archive/tar reads this format, but does not write it. Values that do not fit into an ordinary header are in the
// extended one.
func sparseHeader(file *tar.Header, stored int64) ([]byte, error) {
	var records strings.Builder
	for _, r := range [][2]string{
		{"size", strconv.FormatInt(stored, 10)}, {"mtime", strconv.FormatInt(file.ModTime.Unix(), 10)},
		{"uid", strconv.Itoa(file.Uid)}, {"gid", strconv.Itoa(file.Gid)},
		{"GNU.sparse.major", "1"}, {"GNU.sparse.minor", "0"}, {"GNU.sparse.name", file.Name}, {"GNU.sparse.realsize", strconv.FormatInt(file.Size, 10)},
	} {
		records.WriteString(record(r[0], r[1]))
	}
	extended, err := block(
		tar.Header{Name: "PaxHeaders.0/sparse", Size: int64(records.Len()), Mode: 0o644, ModTime: file.ModTime})
	if err != nil {
		return nil, err
	}
	setType(extended, tar.TypeXHeader)
	ordinary, err := block(tar.Header{Name: "GNUSparseFile.0/log", Mode: file.Mode, ModTime: file.ModTime})
	if err != nil {
		return nil, err
	}
	filled := append([]byte(records.String()), make([]byte, padding(int64(records.Len())))...)
	return slices.Concat(extended, filled, ordinary), nil
}

// maxTime is the latest time in an ordinary header, in 2242. Times before 1970 do not fit either.
const maxTime = 1<<33 - 1

// block returns the header of a regular file.
func block(h tar.Header) ([]byte, error) {
	var b bytes.Buffer
	h.Typeflag, h.Format = tar.TypeReg, tar.FormatUSTAR
	h.ModTime = time.Unix(min(max(h.ModTime.Unix(), 0), maxTime), 0)
	if err := tar.NewWriter(&b).WriteHeader(&h); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// record formats "LENGTH KEY=VALUE
//
// ". The length includes itself.
func record(key, value string) string {
	rest := " " + key + "=" + value + "\n"
	length := len(rest)
	for length != len(rest)+len(strconv.Itoa(length)) {
		length = len(rest) + len(strconv.Itoa(length))
	}
	return strconv.Itoa(length) + rest
}

// setType changes the type in a header, which archive/tar refuses to write, and its checksum: the sum of all bytes,
// with spaces in place of the checksum.
func setType(block []byte, flag byte) {
	const typeAt, sumAt, sumEnd = 156, 148, 156
	block[typeAt] = flag
	copy(block[sumAt:sumEnd], "        ")
	sum := 0
	for _, b := range block[:blockSize] {
		sum += int(b)
	}
	copy(block[sumAt:sumEnd], fmt.Sprintf("%06o\x00 ", sum))
}

// sparse packs a file with the given extents.
func (p *packing) sparse(file *os.File, header *tar.Header, data []extent) error {
	// The entry before must be filled up before something is written past the tar writer.
	if err := p.tar.Flush(); err != nil {
		return err
	}
	table := sparseMap(data)
	stored := int64(len(table)) + total(data)
	headers, err := sparseHeader(header, stored)
	if err != nil {
		return err
	}
	if _, err := p.out.Write(append(headers, table...)); err != nil {
		return err
	}
	for _, e := range data {
		if err := p.copy(&p.out, io.NewSectionReader(file, e.offset, e.length), e.length); err != nil {
			return err
		}
	}
	return p.pad(&p.out, padding(stored))
}
