// Package looptest provides tests with block devices that they may write to: loop devices on sparse images in the
// temporary directory of the test. Tests must get them nowhere else. Guard refuses all other devices, so that no test
// can damage a disk of the machine. At the end of a test, even a failed one, swap is off, file systems are unmounted,
// partitions deleted and loop devices detached.
package looptest

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cambium/internal/blkdev"
	"cambium/internal/command"
	"cambium/internal/skiptest"
)

// Require skips the test if loop devices cannot be used, and fails it in CI.
func Require(t testing.TB) {
	t.Helper()
	var reason string
	if os.Geteuid() != 0 {
		reason = "loop devices need root"
	} else if _, err := os.Stat("/dev/loop-control"); err != nil {
		reason = "no /dev/loop-control"
	}
	if reason == "" {
		return
	}
	skiptest.Skip(t, reason)
}

// Needs skips the test if one of the programs is missing, and fails it in CI.
func Needs(t testing.TB, programs ...string) {
	t.Helper()
	for _, name := range programs {
		if command.Find(name) != "" {
			continue
		}
		skiptest.Skip(t, name+" is missing")
	}
}

// Device is a loop device with its image.
type Device struct {
	Path  string
	Image string
}

// New creates a loop device on a new sparse image.
func New(t testing.TB, size int64) *Device {
	t.Helper()
	return Attach(t, Image(t, size))
}

// NewPlain creates a loop device on which the kernel supports no partitions.
func NewPlain(t testing.TB, size int64) *Device {
	t.Helper()
	return attached(t, Image(t, size), 0)
}

// Image creates a sparse image, for tests that need no device.
func Image(t testing.TB, size int64) string {
	t.Helper()
	image := filepath.Join(t.TempDir(), "disk.img")
	f, err := os.OpenFile(image, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
		t.Fatal(err)
	}
	return image
}

// Attach creates a loop device on an existing image, which must be in a temporary directory.
func Attach(t testing.TB, image string) *Device {
	t.Helper()
	return attached(t, image, unix.LO_FLAGS_PARTSCAN) // without it the kernel refuses partitions
}

func attached(t testing.TB, image string, flags uint32) *Device {
	t.Helper()
	Require(t)
	if err := temporary(image); err != nil {
		t.Fatal(err)
	}
	path, err := attach(image, flags)
	if err != nil {
		t.Fatal(err)
	}
	d := &Device{Path: path, Image: image}
	t.Cleanup(func() {
		if err := d.release(); err != nil {
			t.Errorf("release %s: %v", d.Path, err)
		}
	})
	return d
}

func attach(image string, flags uint32) (string, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer control.Close()
	backing, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer backing.Close()
	// Others may take the free device first; the kernel then says EBUSY and offers another.
	for range 100 {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return "", fmt.Errorf("free loop device: %w", err)
		}
		path := fmt.Sprintf("/dev/loop%d", n)
		loop, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return "", err
		}
		config := unix.LoopConfig{Fd: uint32(backing.Fd())}
		config.Info.Flags = flags
		copy(config.Info.File_name[:], image)
		err = unix.IoctlLoopConfigure(int(loop.Fd()), &config)
		loop.Close()
		if err == nil {
			return path, nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return "", fmt.Errorf("configure %s: %w", path, err)
		}
	}
	return "", errors.New("no loop device became free")
}

// Grow enlarges the image and the device, as when a volume is resized.
func (d *Device) Grow(t testing.TB, size int64) {
	t.Helper()
	if err := Guard(d.Path); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(d.Image, size); err != nil {
		t.Fatal(err)
	}
	loop, err := os.OpenFile(d.Path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer loop.Close()
	if err := unix.IoctlSetInt(int(loop.Fd()), unix.LOOP_SET_CAPACITY, 0); err != nil {
		t.Fatal(err)
	}
}

// Guard returns an error unless path is a loop device, or a partition of one, with its image in the temporary
// directory.
func Guard(path string) error {
	number, err := blkdev.NumberOf(path)
	if err != nil {
		return fmt.Errorf("refused for a test: %w", err)
	}
	info, err := blkdev.Lookup("/sys", number)
	if err != nil {
		return fmt.Errorf("refused for a test: %w", err)
	}
	dir := info.Dir
	if info.Partition > 0 {
		dir = filepath.Dir(dir)
	}
	backing, err := os.ReadFile(filepath.Join(dir, "loop", "backing_file"))
	if err != nil {
		return fmt.Errorf("refused for a test: %s is not a loop device", path)
	}
	return temporary(strings.TrimSuffix(strings.TrimSpace(string(backing)), " (deleted)"))
}

func temporary(image string) error {
	clean := filepath.Clean(image)
	if clean != image || !strings.HasPrefix(clean, filepath.Clean(os.TempDir())+"/") {
		return fmt.Errorf("refused for a test: image %s is not in the temporary directory", image)
	}
	return nil
}

// Release detaches the device before the end of the test. It may be called twice.
func (d *Device) Release(t testing.TB) {
	t.Helper()
	if err := d.release(); err != nil {
		t.Fatal(err)
	}
}

func (d *Device) release() error {
	if d.Path == "" {
		return nil
	}
	if err := Guard(d.Path); err != nil {
		return err
	}
	number, err := blkdev.NumberOf(d.Path)
	if err != nil {
		return err
	}
	parts, err := blkdev.Partitions("/sys", number)
	if err != nil {
		return err
	}
	numbers := map[string]bool{number.String(): true}
	for _, p := range parts {
		if data, err := os.ReadFile(filepath.Join(p.Dir, "dev")); err == nil {
			numbers[strings.TrimSpace(string(data))] = true
		}
	}
	failed := []error{swapsOff(numbers), unmountAll(numbers)}
	loop, err := os.OpenFile(d.Path, os.O_RDWR, 0)
	if err != nil {
		return errors.Join(append(failed, err)...)
	}
	defer loop.Close()
	for _, p := range parts {
		// Another process may have copied our mounts into a namespace of its own for a moment.
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			err = blkdev.DeletePartition(loop, p.Partition)
			if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
				break
			}
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("forget partition %d: %w", p.Partition, err))
		}
	}
	if err := unix.IoctlSetInt(int(loop.Fd()), unix.LOOP_CLR_FD, 0); err != nil && !errors.Is(err, unix.ENXIO) {
		failed = append(failed, fmt.Errorf("detach: %w", err))
	}
	d.Path = ""
	return errors.Join(failed...)
}

func swapsOff(numbers map[string]bool) error {
	f, err := os.Open("/proc/swaps")
	if err != nil {
		return err
	}
	defer f.Close()
	var failed []error
	for s := bufio.NewScanner(f); s.Scan(); {
		fields := strings.Fields(s.Text())
		if len(fields) == 0 {
			continue
		}
		n, err := blkdev.NumberOf(fields[0])
		if err != nil || !numbers[n.String()] {
			continue
		}
		failed = append(failed, SwapOff(fields[0]))
	}
	return errors.Join(failed...)
}

func unmountAll(numbers map[string]bool) error {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var failed []error
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		fields := strings.Fields(lines[i])
		if len(fields) < 5 || !numbers[fields[2]] {
			continue
		}
		target := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(fields[4])
		if err := unix.Unmount(target, 0); err != nil {
			if err := unix.Unmount(target, unix.MNT_DETACH); err != nil {
				failed = append(failed, fmt.Errorf("unmount %s: %w", target, err))
			}
		}
	}
	return errors.Join(failed...)
}
