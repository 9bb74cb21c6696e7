package logs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"time"

	"cambium/internal/atomicfile"
	"cambium/internal/blob"
	"cambium/internal/tempfile"

	"github.com/google/uuid"
)

// Bundle is an archive on disk for a caller to fetch.
type Bundle struct {
	Path   string
	SHA512 string // with its prefix
}

// A caller fetches a bundle within seconds. If nobody has fetched it, it is deleted after bundleLife.
const (
	bundlePrefix = "logs-"
	bundleEnding = ".tgz"
	bundleLife   = time.Hour
)

// Bundle packs the logs into a file that belongs to the user owner, or to root if owner is empty. The caller of the
// action fetches the file and then removes it.
func (c Collector) Bundle(ctx context.Context, s Selection, owner string) (b Bundle, err error) {
	if err := c.Check(s); err != nil {
		return Bundle{}, err
	}
	uid, gid := os.Geteuid(), os.Getegid()
	if owner != "" {
		if uid, gid, err = lookup(owner); err != nil {
			return Bundle{}, fmt.Errorf("bundle logs: %w", err)
		}
	}
	sums := blob.NewSums()
	path := filepath.Join(c.Dirs.Tmp(), bundlePrefix+uuid.NewString()+bundleEnding)
	err = atomicfile.WriteFrom(path, 0o600, func(file *os.File) error {
		bounded, err := tempfile.NewWriter(file)
		if err != nil {
			return err
		}
		return c.Collect(ctx, s, io.MultiWriter(bounded, sums))
	}, atomicfile.Owner(uid, gid), atomicfile.Volatile())
	if err != nil {
		return Bundle{}, fmt.Errorf("bundle logs: %w", err)
	}
	return Bundle{Path: path, SHA512: sums.SHA512()}, nil
}

// Sweep removes incomplete bundles of a crash, and bundles that were not fetched. Call it before the first call of
// Bundle.
func (c Collector) Sweep() error {
	bundles, err := filepath.Glob(filepath.Join(c.Dirs.Tmp(), bundlePrefix+"*"+bundleEnding))
	faults := []error{err, atomicfile.Sweep(c.Dirs.Tmp())}
	for _, path := range bundles {
		if info, err := os.Lstat(path); err == nil && time.Since(info.ModTime()) > bundleLife {
			faults = append(faults, os.Remove(path))
		}
	}
	return errors.Join(faults...)
}

func lookup(name string) (uid, gid int, err error) {
	u, err := user.Lookup(name)
	if err != nil {
		return 0, 0, err
	}
	uid, err = strconv.Atoi(u.Uid)
	if err != nil {
		return 0, 0, err
	}
	gid, err = strconv.Atoi(u.Gid)
	return uid, gid, err
}
