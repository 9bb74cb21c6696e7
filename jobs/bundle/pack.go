package bundle

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"syscall"

	"github.com/klauspost/compress/gzip"
)

// PackGzip is like Pack, and compresses the archive with gzip.
func PackGzip(ctx context.Context, dir string, w io.Writer, first ...string) error {
	z := gzip.NewWriter(w)
	if err := Pack(ctx, dir, z, first...); err != nil {
		return err
	}
	return z.Close()
}

type inode struct{ dev, ino uint64 }

// Pack writes a directory as a tar archive with names that begin with "./". The files named first precede all others.
// Hard links are kept. Files without content, such as sockets, are an error.
func Pack(ctx context.Context, dir string, w io.Writer, first ...string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("pack: %w", err)
	}
	defer root.Close()
	archive := tar.NewWriter(w)
	linked := map[inode]string{}
	buffer := make([]byte, 256<<10)
	add := func(rel string) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		info, err := root.Lstat(rel)
		if err != nil {
			return err
		}
		target := ""
		if info.Mode()&fs.ModeSymlink != 0 {
			if target, err = root.Readlink(rel); err != nil {
				return err
			}
		}
		header, err := tar.FileInfoHeader(info, target)
		if err != nil {
			return fmt.Errorf("%s: %w", rel, err)
		}
		header.Name = "./" + rel
		if rel == "." {
			header.Name = "./"
		} else if info.IsDir() {
			header.Name += "/"
		}
		header.Uname, header.Gname = "", ""
		if stat, ok := info.Sys().(*syscall.Stat_t); ok && info.Mode().IsRegular() && stat.Nlink > 1 {
			key := inode{uint64(stat.Dev), stat.Ino}
			if earlier, seen := linked[key]; seen {
				header.Typeflag, header.Linkname, header.Size = tar.TypeLink, earlier, 0
			} else {
				linked[key] = header.Name
			}
		}
		if err := archive.WriteHeader(header); err != nil {
			return fmt.Errorf("%s: %w", rel, err)
		}
		if header.Typeflag != tar.TypeReg {
			return nil
		}
		file, err := root.Open(rel)
		if err != nil {
			return err
		}
		_, err = io.CopyBuffer(onlyWriter{archive}, &contextReader{ctx, file}, buffer)
		return errors.Join(err, file.Close())
	}
	for _, rel := range first {
		if err := add(rel); err != nil {
			return fmt.Errorf("pack: %w", err)
		}
	}
	err = fs.WalkDir(root.FS(), ".", func(rel string, _ fs.DirEntry, err error) error {
		if err != nil || slices.Contains(first, rel) {
			return err
		}
		return add(rel)
	})
	if err != nil {
		return fmt.Errorf("pack: %w", err)
	}
	return archive.Close()
}

// onlyWriter hides ReadFrom from io.Copy, which would copy in the kernel (splice) and ignore ctx.
type onlyWriter struct{ io.Writer }
