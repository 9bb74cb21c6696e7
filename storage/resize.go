package storage

import (
	"context"
	"errors"
	"os"

	"github.com/sirupsen/logrus"

	"cambium/internal/blkdev"
	"cambium/platform/device"
	"cambium/platform/disk"
	"cambium/platform/filesystem"
	"cambium/platform/mount"
)

// growSlack is what a partition may lack of its disk without being grown: older agents left
// room at the end.
const growSlack = 100 * disk.MiB

// growPersistent extends the only partition of a persistent disk over a disk that became
// larger, also while it is mounted. The file system follows when it is mounted.
func (d *Persistent) growPersistent(ctx context.Context, s disk.State) error {
	p := s.Table.Partitions[0]
	end, why := growTo(s, p.Number)
	if why != "" {
		d.Log.WithFields(logrus.Fields{"device": s.Path, "reason": why}).Warn("partition is not grown")
		return nil
	}
	if end-p.End() < growSlack {
		return nil
	}
	d.crashPoint("grow persistent partition")
	if err := disk.Grow(ctx, s.Path, p.Number, end); err != nil {
		return err
	}
	d.crashPoint("announce grown partition")
	if err := d.announce(ctx, s.Path); err != nil {
		return err
	}
	d.Log.WithField("device", s.Path).Info("partition grown to its disk")
	return nil
}

// growInUse brings a mounted persistent disk to the size of its device.
func (d *Persistent) growInUse(ctx context.Context, path, where string) error {
	if !d.Options.UsePreformattedPersistentDisk {
		s, err := disk.Inspect(path)
		if err != nil {
			return err
		}
		if len(s.Table.Partitions) != 1 {
			return nil
		}
		if err := d.repair(ctx, s); err != nil {
			return err
		}
		// The kernel may know less than the table says: whoever grew it last was killed before he told.
		d.crashPoint("announce partition in use")
		if err := d.announceState(ctx, s); err != nil {
			return err
		}
		if err := d.growPersistent(ctx, s); err != nil {
			return err
		}
	}
	entry, ok, err := mount.At(where)
	if err != nil || !ok {
		return err
	}
	d.crashPoint("grow file system in use")
	if err := d.growMounted(d.part(path), where, filesystem.Kind(entry.Type)); err != nil {
		d.Log.WithError(err).Warn("file system in use cannot be grown; its next mount tries again")
	}
	return nil
}

// repair writes a table anew of which only one copy is good.
func (d *Persistent) repair(ctx context.Context, s disk.State) error {
	if !s.Table.Recovered {
		return nil
	}
	d.Log.WithField("device", s.Path).Warn("partition table has only one good copy and is repaired")
	d.crashPoint("repair table")
	return disk.Repair(ctx, s.Path)
}

// WatchSizes grows the disk on the store whenever the kernel reports that its device became
// larger, until ctx ends. What fails is logged; mount_disk and the next start try again.
func (d *Persistent) WatchSizes(ctx context.Context) error {
	// Mounting is no event of a device: the disk may be seen for the first time when it has
	// grown already. Growing what needs no growing changes nothing, so that is always tried.
	var lastPath string
	var lastSize int64
	err := device.Await(ctx, nil, func() (bool, error) {
		path, size := d.storeDevice()
		if path == "" || path == lastPath && size == lastSize {
			return false, nil
		}
		lastPath, lastSize = path, size
		d.mu.Lock()
		defer d.mu.Unlock()
		if now, _ := d.storeDevice(); now != path {
			return false, nil
		}
		if err := d.growInUse(ctx, path, d.Dirs.Store()); err != nil {
			d.Log.WithError(err).Warn("disk on the store became larger but could not be grown")
		}
		return false, nil
	})
	if errors.Is(err, context.Cause(ctx)) {
		return nil
	}
	return err
}

// storeDevice is the disk on the store and its size; an empty path if there is none.
func (d *Persistent) storeDevice() (string, int64) {
	entry, ok, err := mount.At(d.Dirs.Store())
	// A directory that is bound there is on a disk that is not ours to grow.
	if err != nil || !ok || d.Options.BindMountPersistentDisk || entry.Root != "/" {
		return "", 0
	}
	info, err := blkdev.Lookup("/sys", entry.Number)
	if err != nil {
		return "", 0
	}
	path := entry.Source
	if info.Partition > 0 {
		var isPart bool
		if path, _, isPart = device.SplitPartition(entry.Source); !isPart {
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
