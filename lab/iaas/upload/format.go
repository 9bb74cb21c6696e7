package upload

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// errElsewhere means that a disk refers to other files. QEMU opens such a file as soon as it opens the disk, and blocks
// forever if it is a FIFO, so such a disk is recognized before.
var errElsewhere = errors.New("it refers to another file")

// headerSize is enough for the headers of all formats.
const headerSize = 1024

// format returns the format of a disk from its header; "raw" if it is not known.
func format(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	header := make([]byte, headerSize)
	if _, err := f.ReadAt(header, 0); err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	number := func(at int) uint64 { return binary.BigEndian.Uint64(header[at:]) }
	switch {
	case bytes.HasPrefix(header, []byte("QFI\xfb")):
		backing, version := number(8), binary.BigEndian.Uint32(header[4:])
		if dataFile := version >= 3 && number(72)&4 != 0; backing != 0 || dataFile {
			return "", errElsewhere
		}
		return "qcow2", nil
	case bytes.HasPrefix(header, []byte("KDMV")):
		if capacity := header[12:20]; bytes.Equal(capacity, make([]byte, 8)) { // it only has a description inside
			return "", errElsewhere
		}
		return "vmdk", nil
	case bytes.HasPrefix(header, []byte("# Disk DescriptorFile")):
		return "", errElsewhere
	}
	// A VHD has its mark at the end; one that grows has a copy at the beginning.
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return "", err
	}
	footer := make([]byte, len(vhdMark))
	if _, err := f.ReadAt(footer, max(0, size-vhdFooter)); err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	if bytes.HasPrefix(header, []byte(vhdMark)) || string(footer) == vhdMark {
		return "vpc", nil
	}
	return "raw", nil
}

const (
	vhdMark   = "conectix"
	vhdFooter = 512
)

// limits bounds the resources of qemu-img for a hostile disk: processor time in seconds, memory and file size in bytes.
var limits = []string{"prlimit", "--cpu=1800", "--as=8589934592", fmt.Sprintf("--fsize=%d", int64(MaxImage)),
	"--core=0", "--"}

// qemuTimeout bounds how long qemu-img may take for a disk.
const qemuTimeout = 30 * time.Minute

// qemuImg runs qemu-img within its limits.
func qemuImg(ctx context.Context, args ...string) ([]byte, error) {
	within, cancel := context.WithTimeout(ctx, qemuTimeout)
	defer cancel()
	argv := append(append(append([]string{}, limits...), "qemu-img"), args...)
	var said bytes.Buffer
	cmd := exec.CommandContext(within, argv[0], argv[1:]...)
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("qemu-img %s: %w: %s", args[0], err, strings.TrimSpace(said.String()))
	}
	return out, nil
}

// inspect makes QEMU check a disk in a format other than raw.
func inspect(ctx context.Context, path, format string) error {
	out, err := qemuImg(ctx, "info", "-f", format, "--output=json", path)
	if err != nil {
		return err
	}
	var info imageInfo
	if err := json.Unmarshal(out, &info); err != nil {
		return err
	}
	return info.check(path)
}
