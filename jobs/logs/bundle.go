package logs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"time"

	"cambium/internal/blob"
	"cambium/internal/tempfile"

	"github.com/google/uuid"
)

// Bundle is an archive on disk for a caller to fetch.
type Bundle struct {
	Path   string
	SHA512 string // with its prefix
}

// A bundle has a temporary name until it is complete. A caller fetches it within seconds. If nobody has fetched it, it
// is deleted after bundleLife.
const (
	completePrefix = "logs-"
	partialPrefix  = ".logs-"
	bundleEnding   = ".tgz"
	bundleLife     = time.Hour
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
	dir, err := os.OpenRoot(c.Dirs.Tmp())
	if err != nil {
		return Bundle{}, fmt.Errorf("bundle logs: %w", err)
	}
	defer dir.Close()
	id := uuid.NewString() + bundleEnding
	file, err := dir.OpenFile(partialPrefix+id, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return Bundle{}, fmt.Errorf("bundle logs: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("bundle logs: %w", err), dir.Remove(partialPrefix+id))
		}
	}()
	sums := blob.NewSums()
	bounded, err := tempfile.NewWriter(file)
	if err == nil {
		err = c.Collect(ctx, s, io.MultiWriter(bounded, sums))
	}
	if err == nil {
		err = errors.Join(file.Chmod(0o600), file.Chown(uid, gid))
	}
	if err := errors.Join(err, file.Close()); err != nil {
		return Bundle{}, err
	}
	if err := dir.Rename(partialPrefix+id, completePrefix+id); err != nil {
		return Bundle{}, err
	}
	return Bundle{Path: filepath.Join(c.Dirs.Tmp(), completePrefix+id), SHA512: sums.SHA512()}, nil
}

// Sweep removes incomplete bundles of a crash, and bundles that were not fetched. Call it before the first call of
// Bundle.
func (c Collector) Sweep() error {
	dir, err := os.OpenRoot(c.Dirs.Tmp())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove old bundles: %w", err)
	}
	defer dir.Close()
	partial, err := fs.Glob(dir.FS(), partialPrefix+"*"+bundleEnding)
	faults := []error{err}
	for _, name := range partial {
		faults = append(faults, dir.Remove(name))
	}
	complete, err := fs.Glob(dir.FS(), completePrefix+"*"+bundleEnding)
	faults = append(faults, err)
	for _, name := range complete {
		if info, err := dir.Lstat(name); err == nil && time.Since(info.ModTime()) > bundleLife {
			faults = append(faults, dir.Remove(name))
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
