package configdrive

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"cambium/infrastructure/internal/source"
	"cambium/internal/detached"
)

// mountable are the file systems that config drives are made of, by the kernel's driver. No other
// driver is tried: each is kernel code that would parse untrusted data.
var mountable = []struct {
	driver string
	flags  []string
}{
	{driver: "iso9660"}, // whose first session is not the last one
	{driver: "udf"},
	{driver: "vfat"},
	// ext2 and ext3 as well. The journal is replayed even on a read-only mount, unless noload is set.
	{driver: "ext4", flags: []string{"noload"}},
}

var errNotMountable = errors.New("no file system that a config drive may have (iso9660, udf, vfat, ext2, ext3, ext4)")

// readMounted has the kernel read a medium that cannot be read in user space, through a mount to which no path leads.
func readMounted(ctx context.Context, device string, names []string) (body []byte, name string, err error) {
	if info, err := os.Stat(device); err != nil || info.Mode()&fs.ModeDevice == 0 {
		return nil, "", source.Final(errors.New("cannot be mounted: not a block device"))
	}
	root, err := mountDetached(ctx, device)
	if err != nil {
		return nil, "", source.Final(fmt.Errorf("mount: %w", err))
	}
	defer root.Close()
	for _, name := range names {
		body, err := readBeneath(root, name)
		if errors.Is(err, errNoFile) {
			continue
		}
		return body, name, err
	}
	return nil, "", source.Final(fmt.Errorf("%s: %w", strings.Join(names, ", "), fs.ErrNotExist))
}

// mountDetached returns the root directory of the medium.
func mountDetached(ctx context.Context, device string) (*os.File, error) {
	failed := errNotMountable
	for _, m := range mountable {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		root, err := detached.Mount(device, m.driver, m.flags...)
		if err == nil {
			return root, nil
		}
		// EINVAL: another file system; ENODEV: the kernel has no such driver.
		if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENODEV) {
			failed = fmt.Errorf("%s: %w", m.driver, err)
		}
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENOSYS) {
			break
		}
	}
	return nil, failed
}

// errNoFile means that the medium has no such file, or something else of that name.
var errNoFile = errors.New("no such file")

// readBeneath reads a regular file. The kernel follows no link that leads out of the medium.
func readBeneath(root *os.File, name string) ([]byte, error) {
	clean := strings.TrimPrefix(path.Clean("/"+name), "/")
	fd, err := unix.Openat2(int(root.Fd()), clean, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY, // a FIFO must not block
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, errNoFile
	}
	file := os.NewFile(uintptr(fd), clean)
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errNoFile
	}
	return source.ReadAll(file, source.MaxDocument)
}
