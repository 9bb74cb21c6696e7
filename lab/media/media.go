// Package media creates the media on which a CPI delivers settings: config drives, as ISO 9660 with long names or as
// FAT, and vSphere's plain ISO 9660 CD-ROM.
package media

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"github.com/diskfs/go-diskfs"
	"github.com/diskfs/go-diskfs/filesystem"
)

// Files maps paths on the medium to contents.
type Files map[string][]byte

// ISO creates an image with Rock Ridge and Joliet names and a label.
func ISO(ctx context.Context, image, label string, files Files) error {
	return iso(ctx, image, files, "-V", label, "-J", "-r")
}

// PlainISO creates an image with only short upper case names, as the vSphere CPI does.
func PlainISO(ctx context.Context, image string, files Files) error {
	return iso(ctx, image, files)
}

func iso(ctx context.Context, image string, files Files, options ...string) error {
	dir, err := os.MkdirTemp(filepath.Dir(image), "medium-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	for name, data := range files {
		file := filepath.Join(dir, filepath.Clean("/"+name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, data, 0o644); err != nil {
			return err
		}
	}
	args := append(append([]string{"-quiet", "-o", image}, options...), dir)
	return run(ctx, "genisoimage", args...)
}

// fatSize is the size of a FAT image in KiB, the smallest that FAT32 permits.
const fatSize = 64 << 10

// FAT creates a FAT32 image with a label.
func FAT(ctx context.Context, image, label string, files Files) error {
	if err := os.Remove(image); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := run(ctx, "mkfs.vfat", "-F", "32", "-n", label, "-C", image, fmt.Sprint(fatSize)); err != nil {
		return err
	}
	d, err := diskfs.Open(image)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	fs, err := d.GetFilesystem(0)
	if err != nil {
		return err
	}
	for name, data := range files {
		if err := put(fs, path.Clean("/"+name), data); err != nil {
			return fmt.Errorf("%s on the medium: %w", name, err)
		}
	}
	return nil
}

func put(fs filesystem.FileSystem, name string, data []byte) error {
	name = strings.TrimPrefix(name, "/")
	if dir := path.Dir(name); dir != "." {
		if err := fs.Mkdir(dir); err != nil {
			return err
		}
	}
	f, err := fs.OpenFile(name, os.O_CREATE|os.O_RDWR)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

func run(ctx context.Context, name string, args ...string) error {
	// mkfs.vfat and its like are not in the PATH of every user.
	cmd := exec.CommandContext(ctx, name, args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}
