// Package disk creates the lab's disks: sparse image files with loop devices. A loop device belongs to one machine. Its
// partitions are removed from the kernel before it is detached, because they would outlive the machine.
package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Create creates a blank image. It uses no space until it is written to.
func Create(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := f.Truncate(size); err != nil {
		_ = os.Remove(path)
		return fmt.Errorf("size of %s: %w", path, err)
	}
	return nil
}

// Loop is an image with its loop device.
type Loop struct {
	Name  string // kernel name, such as "loop3"
	Image string
	Major uint32
	Minor uint32
}

// Path returns the path of the device node on the host.
func (l Loop) Path() string { return "/dev/" + l.Name }

// Attach attaches an image to a free loop device.
func Attach(image string, readOnly bool) (Loop, error) {
	flags := os.O_RDWR
	if readOnly {
		flags = os.O_RDONLY
	}
	f, err := os.OpenFile(image, flags, 0)
	if err != nil {
		return Loop{}, err
	}
	defer func() { _ = f.Close() }()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return Loop{}, fmt.Errorf("loop devices: %w", err)
	}
	defer func() { _ = control.Close() }()
	for range 50 {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return Loop{}, fmt.Errorf("free loop device: %w", err)
		}
		l := Loop{Name: "loop" + strconv.Itoa(n), Image: image}
		err = l.configure(f, flags, readOnly)
		if errors.Is(err, unix.EBUSY) {
			continue // another lab has taken it
		}
		if err != nil {
			return Loop{}, fmt.Errorf("attach %s to %s: %w", image, l.Name, err)
		}
		var st unix.Stat_t
		if err := unix.Stat(l.Path(), &st); err != nil {
			return Loop{}, fmt.Errorf("%s: %w", l.Path(), err)
		}
		l.Major, l.Minor = unix.Major(st.Rdev), unix.Minor(st.Rdev)
		return l, nil
	}
	return Loop{}, fmt.Errorf("attach %s: every free loop device was taken by another process", image)
}

func (l Loop) configure(image *os.File, flags int, readOnly bool) error {
	device, err := os.OpenFile(l.Path(), flags, 0)
	if err != nil {
		return err
	}
	defer func() { _ = device.Close() }()
	config := unix.LoopConfig{Fd: uint32(image.Fd())}
	// Where the kernel has a parser for partition tables, it behaves as for a real disk.
	config.Info.Flags = unix.LO_FLAGS_PARTSCAN
	if readOnly {
		config.Info.Flags |= unix.LO_FLAGS_READ_ONLY
	}
	copy(config.Info.File_name[:], image.Name())
	return unix.IoctlLoopConfigure(int(device.Fd()), &config)
}

// Resize grows the image and the loop device (LOOP_SET_CAPACITY), as an IaaS grows an attached disk.
func (l Loop) Resize(size int64) error {
	if err := os.Truncate(l.Image, size); err != nil {
		return err
	}
	return l.ioctl(unix.LOOP_SET_CAPACITY)
}

func (l Loop) ioctl(request uint) error {
	device, err := os.OpenFile(l.Path(), os.O_RDWR, 0)
	if errors.Is(err, unix.EROFS) || errors.Is(err, unix.EACCES) {
		device, err = os.OpenFile(l.Path(), os.O_RDONLY, 0)
	}
	if err != nil {
		return err
	}
	defer func() { _ = device.Close() }()
	if _, err := unix.IoctlRetInt(int(device.Fd()), request); err != nil {
		return fmt.Errorf("%s: %w", l.Name, err)
	}
	return nil
}

// Detach removes the partitions and detaches the device.
func (l Loop) Detach() error {
	if !l.attached() {
		return nil
	}
	if err := l.forgetPartitions(); err != nil {
		return err
	}
	return l.ioctl(unix.LOOP_CLR_FD)
}

// attached reports whether the device still belongs to this image, since its number may have been reused.
func (l Loop) attached() bool {
	file, err := os.ReadFile("/sys/block/" + l.Name + "/loop/backing_file")
	return err == nil && strings.TrimSuffix(strings.TrimSpace(string(file)), " (deleted)") == l.Image
}

// Partitions returns the kernel names of its partitions.
func (l Loop) Partitions() []string {
	entries, err := os.ReadDir("/sys/block/" + l.Name)
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), l.Name+"p") {
			names = append(names, e.Name())
		}
	}
	return names
}

func (l Loop) forgetPartitions() error {
	partitions := l.Partitions()
	if len(partitions) == 0 {
		return nil
	}
	device, err := os.OpenFile(l.Path(), os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = device.Close() }()
	var failed error
	for _, name := range partitions {
		number, err := strconv.Atoi(strings.TrimPrefix(name, l.Name+"p"))
		if err != nil {
			continue
		}
		if err := deletePartition(device, number); err != nil {
			failed = errors.Join(failed, fmt.Errorf("partition %s: %w", name, err))
		}
	}
	return failed
}

// Below returns the attached loop devices with images in dir, which a crashed lab has left.
func Below(dir string) ([]Loop, error) {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	var found []Loop
	for _, file := range files {
		data, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) || err != nil {
			continue // detached meanwhile
		}
		image := strings.TrimSuffix(strings.TrimSpace(string(data)), " (deleted)")
		if strings.HasPrefix(image, strings.TrimSuffix(dir, "/")+"/") {
			found = append(found, Loop{Name: filepath.Base(filepath.Dir(filepath.Dir(file))), Image: image})
		}
	}
	return found, nil
}
