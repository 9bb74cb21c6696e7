// Package filesystem makes, grows and checks the file systems that the agent uses, and swap; package probe says what
// is on a device. Nothing here decides whether a device may be written: Make and FormatSwap write to whatever they are
// given, so the caller proves first.
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

// Probe identifies what is on the device or image at path. It opens read-only and never writes.
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

// ProbeAt identifies what is on a part of a device, for a partition that has no node of its own.
func ProbeAt(path string, start, size int64) (probe.Content, error) {
	f, err := os.Open(path)
	if err != nil {
		return probe.Content{}, fmt.Errorf("probe: %w", err)
	}
	defer f.Close()
	// A disk's pages are cached apart from those of its partitions.
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	c, err := probe.Identify(io.NewSectionReader(f, start, size), size)
	if err != nil {
		return probe.Content{}, fmt.Errorf("probe %s at %d: %w", path, start, err)
	}
	return c, nil
}

// HalfGrown reports a file system at a byte of a device whose growth was interrupted, which its next mount completes. It
// reads a sector of each of its groups.
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
