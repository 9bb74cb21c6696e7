package machine

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"cambium/internal/blkdev"
	"cambium/internal/managedfs"
	"cambium/platform/disk"
	"cambium/platform/filesystem"
	"cambium/platform/mount"
	"cambium/storage/decide"
	"cambium/storage/record"
)

// Apply makes the changes of a plan and returns those it made. It records unfinished work before the first change, and
// clears that record after the last one, before the disk is used. key is the CID, or the key of the ephemeral disk.
func (m *Machine) Apply(ctx context.Context, key string, p decide.Plan) (made []decide.Change, err error) {
	return m.ApplyAdmitting(ctx, key, p, nil)
}

// ApplyAdmitting makes the changes of a plan like Apply. Before it attaches a mount to its path, it calls admit with
// the top directory; if admit fails, the disk is not mounted.
func (m *Machine) ApplyAdmitting(ctx context.Context, key string, p decide.Plan,
	admit func(top *os.File) error) ([]decide.Change, error) {
	made, notGrown, err := m.makeAll(ctx, key, p, admit)
	m.compare(p.SizeCheck, errors.Join(notGrown, err))
	return made, err
}

// makeAll makes the changes of a plan. notGrown is the error if a file system could not be grown.
func (m *Machine) makeAll(ctx context.Context, key string, p decide.Plan,
	admit func(top *os.File) error) (made []decide.Change, notGrown, err error) {
	if p.Begin != "" {
		if err := m.begin(p.Begin); err != nil {
			return nil, nil, err
		}
	}
	unfinished := p.Finish
	finish := func() error {
		if !unfinished {
			return nil
		}
		unfinished = false
		m.CrashPoint("preparation complete")
		return m.Record.Update(func(r *record.Record) { r.Unfinished = "" })
	}
	mounted := map[string]bool{} // by this plan
	for _, c := range p.Changes {
		if uses(c.Op) {
			if err := finish(); err != nil {
				return made, nil, err
			}
		}
		m.CrashPoint(string(c.Op))
		end := m.changing(ctx, c)
		changed := true
		if c.Op == decide.GrowFileSystem {
			changed, notGrown, err = m.growFileSystem(ctx, c, mounted[c.Device])
		} else {
			err = m.apply(ctx, key, c, p.Finish, admit)
		}
		end()
		if err != nil {
			return made, notGrown, err
		}
		if changed {
			made = append(made, c)
		}
		mounted[c.Device] = mounted[c.Device] || c.Op == decide.Mount
	}
	return made, notGrown, finish()
}

// changing announces a change.
func (m *Machine) changing(ctx context.Context, c decide.Change) (made func()) {
	if m.Change == nil {
		return func() {}
	}
	return m.Change(ctx, fmt.Sprintf("%s %s", c.Op, c.Device))
}

// begin records an unfinished preparation.
func (m *Machine) begin(what string) error {
	return m.Record.Update(func(r *record.Record) { r.Unfinished = what })
}

// uses reports whether a change requires a complete file system.
func uses(op decide.Op) bool {
	switch op {
	case decide.GrowPartition, decide.UseSwap, decide.CheckFileSystem, decide.Mount, decide.GrowFileSystem:
		return true
	}
	return false
}

// apply makes one change. onRecord is set if the preparation is recorded.
func (m *Machine) apply(ctx context.Context, key string, c decide.Change, onRecord bool,
	admit func(top *os.File) error) error {
	log := m.Log.WithFields(logrus.Fields{"device": c.Device, "proof": c.Proof})
	switch c.Op {
	case decide.CreateTable:
		return m.createTable(ctx, c, onRecord, log)
	case decide.AppendPartitions:
		if err := disk.Append(ctx, c.Device, c.Partitions); err != nil {
			return err
		}
		m.CrashPoint("announce appended partitions")
		return m.Announce(ctx, c.Device)
	case decide.RepairTable:
		log.Warn("repairing the partition table")
		return disk.Repair(ctx, c.Device)
	case decide.GrowPartition:
		if err := disk.Grow(ctx, c.Device, c.Partition, c.End); err != nil {
			return err
		}
		m.CrashPoint("announce grown partition")
		if err := m.Announce(ctx, c.Device); err != nil {
			return err
		}
		log.Info("partition grown")
		return nil
	case decide.MakeSwap:
		return filesystem.FormatSwap(c.Device)
	case decide.MakeFileSystem:
		log.WithField("filesystem", string(c.FileSystem)).Info("making file system")
		if err := mount.AwaitIdle(ctx, c.Device); err != nil {
			return err
		}
		return filesystem.Make(ctx, c.Device, c.FileSystem)
	case decide.NamePartition:
		return disk.Rename(ctx, c.Device, c.Partition, c.Name)
	case decide.UseSwap:
		err := filesystem.SwapOn(c.Device)
		if errors.Is(err, unix.EPERM) { // as in most containers, whose host manages swap
			log.WithError(err).Warn("swap is not permitted here; going on without")
			return nil
		}
		return err
	case decide.CheckFileSystem:
		log.Warn("file system has recorded errors; checking it")
		return m.work(key, c.Device, "is being checked", func(percent func(int)) error {
			return filesystem.Check(ctx, c.Device, c.FileSystem, c.RepairAll, percent)
		})
	case decide.Mount:
		return m.work(key, c.Device, "is being mounted, which replays its journal", func(func(int)) error {
			return damaged(c, m.mount(ctx, c, admit))
		})
	case decide.BindMount:
		return m.bind(ctx, c, admit)
	}
	return fmt.Errorf("%s: unknown change: %s", c.Device, c.Op)
}

// mount mounts a file system. If admit is set, it is attached to its path only once it is admitted.
func (m *Machine) mount(ctx context.Context, c decide.Change, admit func(top *os.File) error) error {
	if admit == nil {
		return mount.MountDevice(ctx, c.Device, c.Target, string(c.FileSystem), c.MountOptions)
	}
	place := m.Dirs.DiskLook()
	if err := EnsureDir(place, 0o700); errors.Is(err, unix.EROFS) || errors.Is(err, unix.ENOSPC) {
		place = c.Target // it is there only briefly
	} else if err != nil {
		return err
	}
	return mount.MountAdmitted(
		ctx,
		c.Device,
		place,
		c.Target,
		string(c.FileSystem),
		c.MountOptions,
		func(top *os.File) error {
			if err := admit(top); err != nil {
				return err
			}
			m.CrashPoint("attach")
			return nil
		},
	)
}

// bind bind-mounts a directory, after admit has accepted it.
func (m *Machine) bind(ctx context.Context, c decide.Change, admit func(top *os.File) error) error {
	if admit != nil {
		top, err := os.Open(c.Device)
		if err == nil {
			err = errors.Join(admit(top), top.Close())
		}
		if err != nil {
			return err
		}
	}
	return mount.Bind(ctx, c.Device, c.Target)
}

// damaged adds a remedy to the error of a file system that the kernel rejects as damaged. A power cut can leave an ext4
// superblock with one old and one new sector.
func damaged(c decide.Change, err error) error {
	f, ours := managedfs.Find(string(c.FileSystem))
	if !ours || !errors.Is(err, unix.EBADMSG) && !errors.Is(err, unix.EUCLEAN) {
		return err
	}
	return fmt.Errorf("the file system is damaged: %w. %s", err, f.DamageAdvice(c.Device))
}

func (m *Machine) createTable(ctx context.Context, c decide.Change, onRecord bool, log *logrus.Entry) error {
	number, err := blkdev.NumberOf(c.Device)
	if err != nil {
		return err
	}
	if err := m.ProveIdle(c.Device, number); err != nil {
		return err
	}
	id := ""
	if onRecord {
		if id, err = disk.NewID(c.Label); err != nil {
			return err
		}
		if err := m.begin(id); err != nil {
			return err
		}
		m.CrashPoint("create recorded table")
	}
	if err := disk.Create(ctx, c.Device, c.Label, id, c.Partitions); err != nil {
		return err
	}
	log.Info("disk partitioned")
	m.CrashPoint("announce created table")
	return m.Announce(ctx, c.Device)
}

// growFileSystem grows a mounted file system. Some sandboxes lack the capability that ext4 needs for that. If
// mountedNow is set, so that nothing uses the file system yet, it is then unmounted, grown and mounted again. notGrown
// is the error of growing it, because of which a mount must not fail.
func (m *Machine) growFileSystem(ctx context.Context, c decide.Change,
	mountedNow bool) (grown bool, notGrown, err error) {
	grown, notGrown = filesystem.Grow(c.Device, c.Target, c.FileSystem)
	if errors.Is(notGrown, unix.EPERM) && mountedNow && filesystem.GrowsUnmounted(c.FileSystem) {
		m.Log.WithError(notGrown).Warn("cannot grow the mounted file system; growing it unmounted")
		if err := mount.Unmount(ctx, c.Target); err != nil {
			return false, notGrown, err
		}
		notGrown = filesystem.GrowUnmounted(ctx, c.Device, c.FileSystem)
		grown = notGrown == nil
		if err := mount.MountDevice(ctx, c.Device, c.Target, string(c.FileSystem), c.MountOptions); err != nil {
			return false, notGrown, err
		}
	}
	if notGrown != nil {
		m.Log.WithError(notGrown).Warn("cannot grow the file system; retrying at its next mount")
	}
	if grown {
		m.Log.WithFields(logrus.Fields{"device": c.Device, "mount": c.Target}).Info("file system grown to its device")
	}
	return grown, notGrown, nil
}
