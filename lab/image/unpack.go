package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/gzip"
)

// UnpackStemcell writes the disk of a stemcell's tarball to a file, raw whatever its format is, and returns the manifest.
func UnpackStemcell(ctx context.Context, tarball, disk string) (manifest []byte, err error) {
	dir, err := os.MkdirTemp(filepath.Dir(disk), "stemcell-*")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := untar(tarball, dir); err != nil {
		return nil, fmt.Errorf("%s: %w", tarball, err)
	}
	if manifest, err = os.ReadFile(filepath.Join(dir, "stemcell.MF")); err != nil {
		return nil, err
	}
	image := filepath.Join(dir, "image")
	digest, err := sha1File(image)
	if err != nil {
		return nil, err
	}
	if !strings.Contains(string(manifest), "\nsha1: "+digest+"\n") {
		return nil, fmt.Errorf("image has digest %q, which the manifest does not know", digest)
	}
	if startsWith(image, "BZh") {
		if err := run(ctx, "sh", "-c", `bzip2 -d -c "$1" >"$2"`, "sh", image, filepath.Join(dir, "root.vhd")); err != nil {
			return nil, err
		}
	} else if err := untar(image, dir); err != nil {
		return nil, fmt.Errorf("image: %w", err)
	}
	for _, name := range []string{"root.img", "disk.raw", "root.vhd", "image-disk1.vmdk"} {
		member := filepath.Join(dir, name)
		if _, err := os.Stat(member); err == nil {
			return manifest, toRaw(ctx, member, disk)
		}
	}
	return nil, errors.New("the image holds no disk")
}

func toRaw(ctx context.Context, from, to string) error {
	switch {
	case strings.HasSuffix(from, ".vhd"): // a fixed one is a raw disk with a footer, and looks like it
		return run(ctx, "qemu-img", "convert", "-f", "vpc", "-O", "raw", from, to)
	case strings.HasSuffix(from, ".vmdk"):
		return run(ctx, "qemu-img", "convert", "-f", "vmdk", "-O", "raw", from, to)
	case startsWith(from, "QFI\xfb"):
		return run(ctx, "qemu-img", "convert", "-f", "qcow2", "-O", "raw", from, to)
	}
	return os.Rename(from, to)
}

// startsWith tells whether a file begins with the magic number of a format.
func startsWith(path, magic string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	start := make([]byte, len(magic))
	_, err = io.ReadFull(f, start)
	return err == nil && string(start) == magic
}

// untar unpacks the regular files at the top of a gzipped tarball.
func untar(tarball, dir string) error {
	f, err := os.Open(tarball)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
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
		name := strings.TrimPrefix(h.Name, "./")
		if h.Typeflag != tar.TypeReg || name != filepath.Base(name) {
			continue
		}
		out, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(out, r)
		if err = errors.Join(err, out.Close()); err != nil {
			return err
		}
	}
}
