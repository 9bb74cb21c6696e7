package persistent

import (
	"context"
	"errors"
	"os"

	"cambium/internal/blkdev"
	"cambium/internal/watch"
	"cambium/platform/disk/layout"
	"cambium/platform/mount"
	"cambium/storage/decide"
)

// growStore grows the disk on the store to the size of its device. The caller holds the lock.
func (d *Disks) growStore(ctx context.Context, path string) {
	o := decide.Observed{Persistent: decide.Persistent{Preformatted: d.Preformatted}}
	s, err := d.inspect(path)
	err = d.observeDisk(ctx, &o, s, err, true)
	if err == nil {
		_, err = d.Machine.Apply(ctx, "", decide.GrowMounted(o.Persistent, d.Machine.Dirs.Store()))
	}
	if err != nil {
		d.Machine.Log.WithError(err).Warn("cannot grow the disk on the store")
	}
}

// WatchSizes grows the disk on the store whenever its device becomes larger, until ctx ends. It logs errors; mount_disk
// and the next start retry.
func (d *Disks) WatchSizes(ctx context.Context) error {
	// Mounting causes no event, so a disk seen for the first time may already have grown. Try it in any case; growing a
	// disk of full size changes nothing.
	var lastPath string
	var lastSize int64
	err := watch.UntilDevice(ctx, nil, func() (bool, error) {
		path, size := d.storeDevice()
		if path == "" || path == lastPath && size == lastSize {
			return false, nil
		}
		lastPath, lastSize = path, size
		if err := d.Machine.Lock(ctx); err != nil {
			return false, err
		}
		defer d.Machine.Unlock()
		if now, _ := d.storeDevice(); now == path {
			d.growStore(ctx, path)
		}
		return false, nil
	})
	if errors.Is(err, context.Cause(ctx)) {
		return nil
	}
	return err
}

// storeDevice returns the path and size of the disk on the store, or "" if none is mounted.
func (d *Disks) storeDevice() (string, int64) {
	entry, ok, err := mount.At(d.Machine.Dirs.Store())
	// The device of a bind-mounted directory is not ours to grow.
	if err != nil || !ok || d.BindMounted || entry.Root != "/" {
		return "", 0
	}
	info, err := blkdev.Lookup("/sys", entry.Number)
	if err != nil {
		return "", 0
	}
	path := entry.Source
	if info.Partition > 0 {
		var isPart bool
		if path, _, isPart = layout.SplitPath(entry.Source); !isPart {
			return "", 0
		}
	}
	f, err := os.Open(path)
	if err != nil {
		return "", 0
	}
	defer f.Close()
	size, err := blkdev.Size(f)
	if err != nil {
		return "", 0
	}
	return path, size
}
