package logs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strconv"

	"cambium/internal/blob"
)

// Bundle is a collection that waits on disk to be fetched.
type Bundle struct {
	Path   string
	SHA512 string // with its prefix
}

// Bundle collects into a file that belongs to the named user, or to root without one. The
// caller of the action fetches and then removes it.
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
	file, err := os.CreateTemp(c.Dirs.Tmp(), "logs-*.tgz")
	if err != nil {
		return Bundle{}, fmt.Errorf("bundle logs: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("bundle logs: %w", err), os.Remove(file.Name()))
		}
	}()
	sums := blob.NewSums()
	err = c.Collect(ctx, s, io.MultiWriter(file, sums))
	if err == nil {
		err = errors.Join(file.Chmod(0o600), file.Chown(uid, gid))
	}
	if err := errors.Join(err, file.Close()); err != nil {
		return Bundle{}, err
	}
	return Bundle{Path: file.Name(), SHA512: sums.SHA512()}, nil
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
