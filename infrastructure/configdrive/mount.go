package configdrive

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"cambium/infrastructure/internal/source"
)

// mountable are the file systems of a medium that is mounted because it cannot be read in user
// space, with what keeps the kernel from writing to it: a journal is replayed even on a
// read-only mount unless it is told not to.
var mountable = []struct{ kind, options string }{
	{"udf", ""},
	{"vfat", ""},
	{"exfat", ""},
	{"ext4", "noload"},
	{"xfs", "norecovery"},
	{"btrfs", "rescue=nologreplay"},
	{"squashfs", ""},
	{"erofs", ""},
	{"ntfs3", ""},
}

// readMounted mounts the device where nobody else looks, reads one of the files and unmounts.
func readMounted(ctx context.Context, device string, names []string) (body []byte, name string, err error) {
	if info, err := os.Stat(device); err != nil || info.Mode()&fs.ModeDevice == 0 {
		return nil, "", source.Final(errors.New("cannot be mounted: not a block device"))
	}
	dir, err := os.MkdirTemp("", "cambium-medium-")
	if err != nil {
		return nil, "", err
	}
	defer os.Remove(dir)
	if err := mount(ctx, device, dir); err != nil {
		return nil, "", err
	}
	defer func() {
		if failed := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); failed != nil && err == nil {
			err = fmt.Errorf("unmount: %w", failed)
		}
	}()
	// Links on the medium must not lead into the machine's own files.
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, "", err
	}
	defer root.Close()
	for _, name := range names {
		clean := strings.TrimPrefix(path.Clean("/"+name), "/")
		f, err := root.OpenFile(filepath.FromSlash(clean), os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		defer f.Close()
		if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
			continue
		}
		body, err := source.ReadAll(f, source.MaxDocument)
		return body, name, err
	}
	return nil, "", source.Final(fmt.Errorf("%s: %w", strings.Join(names, ", "), fs.ErrNotExist))
}

func mount(ctx context.Context, device, dir string) error {
	const flags = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	last := error(unix.ENODEV)
	for _, m := range mountable {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		err := unix.Mount(device, dir, m.kind, flags, m.options)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENODEV) {
			last = err
		}
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
			break
		}
	}
	return source.Final(fmt.Errorf("mount: %w", last))
}
