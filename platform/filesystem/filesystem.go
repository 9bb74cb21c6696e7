// Package filesystem creates, grows, checks and reads the file systems that the agent uses, and swap. Package probe
// identifies content. Make and FormatSwap overwrite any device: the caller must have proven that it may be overwritten.
package filesystem

import (
	"fmt"
	"io"
	"math"
	"os"

	"golang.org/x/sys/unix"

	"cambium/internal/blkdev"
	"cambium/platform/filesystem/probe"
)

// Probe identifies the content of the device or image at path, which it opens read-only.
func Probe(path string) (probe.Content, error) {
	f, err := os.Open(path)
	if err != nil {
		return probe.Content{}, fmt.Errorf("probe: %w", err)
	}
	defer f.Close()
	size, err := blkdev.Size(f)
	if err != nil {
		return probe.Content{}, fmt.Errorf("probe: %w", err)
	}
	blkdev.Prefetch(f, size)
	c, err := probe.Identify(f, size)
	if err != nil {
		return probe.Content{}, fmt.Errorf("probe %s: %w", path, err)
	}
	return c, nil
}

// ProbeAt identifies the content of a part of a device, for a partition without a device node.
func ProbeAt(path string, start, size int64) (probe.Content, error) {
	f, err := os.Open(path)
	if err != nil {
		return probe.Content{}, fmt.Errorf("probe: %w", err)
	}
	defer f.Close()
	// The page cache of a disk is separate from those of its partitions.
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	c, err := probe.Identify(io.NewSectionReader(f, start, size), size)
	if err != nil {
		return probe.Content{}, fmt.Errorf("probe %s at %d: %w", path, start, err)
	}
	return c, nil
}

// HalfGrown reports whether growing the file system at offset start of a device was interrupted. The next mount
// completes it. Only xfs can be in that state; one sector of each allocation group is read.
func HalfGrown(path string, start int64, kind probe.Kind) (bool, error) {
	if kind != probe.XFS {
		return false, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return false, fmt.Errorf("probe: %w", err)
	}
	defer f.Close()
	half, err := probe.HalfGrown(io.NewSectionReader(f, start, math.MaxInt64-start))
	if err != nil {
		return false, fmt.Errorf("probe %s at %d: %w", path, start, err)
	}
	return half, nil
}
