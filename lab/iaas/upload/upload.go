// Package upload converts uploaded stemcells to images: a raw disk, or the tree of a root file system. Uploads are not
// trusted: their format is detected from the content, and a disk that refers to other files is rejected.
package upload

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"cambium/internal/thread"
	"cambium/lab/room"

	"golang.org/x/sys/unix"
)

// Names in an image, which has one of them: a raw disk, from which virtual machines boot, or the tree of a root file
// system, from which containers boot. For a disk, the tree is created when the first container needs it.
const (
	Disk = "disk.raw"
	Tree = "tree"
)

// MaxImage bounds the size of an upload, and of the image that is made from it, in bytes.
const MaxImage = 64 << 30

// diskSuffixes lists the suffixes of disks in the tarballs of stemcells.
var diskSuffixes = []string{".img", ".raw", ".vhd", ".vmdk", ".qcow2"}

// Unpack creates an image in dir from an upload, which is a disk, or a gzip tarball with a disk or a root file system.
func Unpack(ctx context.Context, upload, dir string) error {
	f, err := os.Open(upload)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	magic := make([]byte, 2)
	if _, err := io.ReadFull(f, magic); err != nil {
		return errors.New("it is empty")
	}
	if !bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		return convert(ctx, upload, filepath.Join(dir, Disk))
	}
	name, err := diskIn(f)
	if err != nil {
		return err
	}
	if name == "" {
		return unpackTree(ctx, f, filepath.Join(dir, Tree), treeBound)
	}
	inner := filepath.Join(dir, "inner")
	defer func() { _ = os.Remove(inner) }()
	if err := extract(f, name, inner); err != nil {
		return err
	}
	return convert(ctx, inner, filepath.Join(dir, Disk))
}

// members calls each for the members of a gzip tarball until it returns true or an error.
func members(f *os.File, each func(h *tar.Header, r io.Reader) (stop bool, err error)) error {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	zip, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if stop, err := each(h, r); stop || err != nil {
			return err
		}
	}
}

// firstMembers limits how many members of a tarball are searched for a disk. A root file system has thousands, a
// tarball with a disk has at most three.
const firstMembers = 8

// diskIn returns the name of the disk in a tarball, or "".
func diskIn(f *os.File) (name string, err error) {
	n := 0
	err = members(f, func(h *tar.Header, _ io.Reader) (bool, error) {
		n++
		isDisk := slices.ContainsFunc(diskSuffixes, func(suffix string) bool { return strings.HasSuffix(h.Name, suffix) })
		if h.Typeflag == tar.TypeReg && isDisk && strings.Count(strings.TrimPrefix(h.Name, "./"), "/") == 0 {
			name = h.Name
		}
		return name != "" || n == firstMembers, nil
	})
	return name, err
}

// extract writes a member to a file, with holes for blocks of zeros.
func extract(f *os.File, name, to string) error {
	return members(f, func(h *tar.Header, r io.Reader) (bool, error) {
		if h.Name != name {
			return false, nil
		}
		if h.Size > MaxImage {
			return true, fmt.Errorf("%s would be %d bytes long, more than the limit of %d",
				name, h.Size, int64(MaxImage))
		}
		return true, writeSparse(r, to, h.Size)
	})
}

func writeSparse(r io.Reader, to string, size int64) error {
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	at := io.NewOffsetWriter(out, 0)
	bounded := room.At(filepath.Dir(to)).Writer(at, size)
	block, zeros := make([]byte, 1<<16), make([]byte, 1<<16)
	for left := size; err == nil && left > 0; {
		var n int
		n, err = io.ReadFull(r, block[:min(int64(len(block)), left)])
		var passed error
		if bytes.Equal(block[:n], zeros[:n]) {
			_, passed = at.Seek(int64(n), io.SeekCurrent)
		} else {
			_, passed = bounded.Write(block[:n])
		}
		err = errors.Join(err, passed)
		left -= int64(n)
	}
	return errors.Join(err, out.Truncate(size), out.Sync(), out.Close())
}

// convert converts a disk to a raw disk.
func convert(ctx context.Context, from, to string) error {
	format, err := format(from)
	if err != nil {
		return err
	}
	if format == "raw" {
		if err := isDisk(from); err != nil {
			return err
		}
		return os.Rename(from, to)
	}
	if err := inspect(ctx, from, format); err != nil {
		return err
	}
	err = room.At(filepath.Dir(to)).While(ctx, func(ctx context.Context) error {
		_, err := qemuImg(ctx, "convert", "-f", format, "-O", "raw", from, to)
		return err
	})
	if err != nil {
		return err
	}
	return isDisk(to)
}

// imageInfo is the output of qemu-img info.
type imageInfo struct {
	Size     int64  `json:"virtual-size"`
	Backing  string `json:"backing-filename"`
	Specific struct {
		Data struct {
			DataFile string `json:"data-file"` // of qcow2
			// Extents lists the files with the content of a VMDK: the VMDK itself, unless it is only a descriptor.
			Extents []struct {
				Filename string `json:"filename"`
			} `json:"extents"`
		} `json:"data"`
	} `json:"format-specific"`
}

// check rejects what an upload must not contain. path is the file of the disk.
func (i imageInfo) check(path string) error {
	elsewhere := i.Backing != "" || i.Specific.Data.DataFile != ""
	for _, e := range i.Specific.Data.Extents {
		elsewhere = elsewhere || e.Filename != path
	}
	switch {
	case elsewhere:
		return errElsewhere
	case i.Size > MaxImage:
		return fmt.Errorf("the disk would be %d bytes long, more than the limit of %d", i.Size, int64(MaxImage))
	}
	return nil
}

// isDisk fails unless there is a partition table, because every unknown format is taken for a raw disk.
func isDisk(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	sector := make([]byte, 512)
	if _, err := io.ReadFull(f, sector); err != nil || sector[510] != 0x55 || sector[511] != 0xaa {
		return errors.New("it is neither a tarball nor a disk with a partition table")
	}
	return nil
}

// bound limits the size and the number of files of a root file system.
type bound struct{ bytes, members int64 }

// treeBound is several times the size of stemcells' root file systems.
var treeBound = bound{bytes: 16 << 30, members: 2_000_000}

// pass decompresses a gzip tarball to w, up to the bound. Holes in files do not count, since they use no space.
func (b bound) pass(tarball *os.File, w io.Writer) error {
	if _, err := tarball.Seek(0, io.SeekStart); err != nil {
		return err
	}
	zip, err := gzip.NewReader(tarball)
	if err != nil {
		return err
	}
	through := io.TeeReader(zip, w)
	r := tar.NewReader(through)
	for members := int64(0); err == nil; members++ {
		if members > b.members {
			return fmt.Errorf("the root file system has more than %d files", b.members)
		}
		_, err = r.Next()
	}
	if errors.Is(err, io.EOF) { // what follows the last member
		_, err = io.Copy(io.Discard, through)
	}
	return err
}

// unpackTree unpacks a root file system.
func unpackTree(ctx context.Context, tarball *os.File, dir string, most bound) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	unpack := exec.CommandContext(within, "tar", "--numeric-owner", "--xattrs", "-xpf", "-", "-C", dir)
	var said bytes.Buffer
	unpack.Stderr = &said
	into, err := unpack.StdinPipe()
	if err == nil {
		err = unpack.Start()
	}
	if err != nil {
		return err
	}
	passed := most.pass(tarball, room.At(dir).Writer(into, most.bytes))
	if passed != nil && !errors.Is(passed, unix.EPIPE) {
		cancel() // what tar has got is not the whole
	}
	_ = into.Close()
	err = unpack.Wait()
	if passed != nil && !errors.Is(passed, unix.EPIPE) {
		err = passed
	}
	if err != nil {
		return fmt.Errorf("unpack the root file system: %w: %s", err, lastLine(said.Bytes()))
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	for _, name := range []string{"sbin/init", "etc"} {
		if _, err := root.Lstat(name); err != nil {
			return fmt.Errorf("the tarball contains neither a disk nor a root file system: there is no %s", name)
		}
	}
	return nil
}

func lastLine(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}

// CopyTree copies the files of a disk's root partition. It mounts the file system read-only in a mount namespace that
// ends with the copy, as does the loop device.
func CopyTree(ctx context.Context, disk, to string) error {
	return room.At(filepath.Dir(to)).While(ctx, func(ctx context.Context) error { return copyTree(ctx, disk, to) })
}

func copyTree(ctx context.Context, disk, to string) error {
	offset, size, err := rootPartition(ctx, disk)
	if err != nil {
		return err
	}
	if err := os.Mkdir(to, 0o755); err != nil {
		return err
	}
	at, err := os.MkdirTemp(filepath.Dir(to), "mount-")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(at) }()
	return thread.Run(func() error {
		if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("mount namespace: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("mount namespace: %w", err)
		}
		for _, argv := range [][]string{
			{"mount", "-o", fmt.Sprintf("ro,loop,nodev,nosuid,offset=%d,sizelimit=%d", offset, size), disk, at},
			{"cp", "--archive", "--reflink=auto", at + "/.", to},
			{"umount", at},
		} {
			if out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", argv[0], err, lastLine(out))
			}
		}
		return nil
	})
}

// rootPartition returns the offset and the size of the largest partition of a disk, in bytes.
func rootPartition(ctx context.Context, disk string) (offset, size int64, err error) {
	out, err := exec.CommandContext(ctx, "sfdisk", "--json", disk).Output()
	if err != nil {
		return 0, 0, fmt.Errorf("partition table: %w", err)
	}
	var table struct {
		PartitionTable struct {
			Partitions []struct {
				Start int64 `json:"start"`
				Size  int64 `json:"size"`
			} `json:"partitions"`
		} `json:"partitiontable"`
	}
	if err := json.Unmarshal(out, &table); err != nil {
		return 0, 0, fmt.Errorf("partition table: %w", err)
	}
	for _, p := range table.PartitionTable.Partitions {
		if p.Size > size {
			offset, size = p.Start, p.Size
		}
	}
	if size == 0 {
		return 0, 0, errors.New("the disk has no partition")
	}
	return offset * 512, size * 512, nil
}
