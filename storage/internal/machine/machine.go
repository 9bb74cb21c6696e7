// Package machine contains what all kinds of disks share: the lock, the disk record, the observation of partitions, the
// proof that a disk is idle, and the functions that make the changes planned by package decide.
package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"cambium/internal/blkdev"
	"cambium/internal/vcap"
	"cambium/platform/device"
	"cambium/platform/disk"
	"cambium/platform/disk/layout"
	"cambium/platform/filesystem"
	"cambium/platform/filesystem/probe"
	"cambium/platform/mount"
	"cambium/settings"
	"cambium/storage/decide"
	"cambium/storage/record"
	"cambium/storage/recordfile"
)

// Machine holds the state shared by all disks of an agent.
type Machine struct {
	lock chan struct{} // full during a disk operation

	Dirs vcap.Dirs
	// Record is the file with the record of disks.
	Record recordfile.File
	Log    *logrus.Entry

	// WorkProgress, if not nil, is called every second with a description of long work, and with "" at its end.
	WorkProgress func(text string)

	// Change, if set, is called with each change of a disk before it is made; what it returns, after that.
	Change func(ctx context.Context, what string) (made func())

	// Shortfall, if not nil, is called with the reason why the file system on a directory is smaller than its disk, and
	// with "" once that no longer applies.
	Shortfall func(dir, text string)
	short     map[string]bool // directories with a reason; changed under the lock

	working sync.Mutex // guards current
	current work

	// Tests replace these functions.
	RootMount   func() (mount.Entry, bool, error)
	InContainer func() bool
	Memory      func() (int64, error)
	crashPoints
}

// New returns the machine on which the agent runs.
func New(dirs vcap.Dirs, log *logrus.Entry) *Machine {
	return &Machine{lock: make(chan struct{}, 1), Dirs: dirs, Record: recordfile.In(dirs), Log: log,
		short:       map[string]bool{},
		RootMount:   func() (mount.Entry, bool, error) { return mount.At("/") },
		InContainer: inContainer, Memory: memTotal, crashPoints: newCrashPoints()}
}

// Lock waits for the current disk operation to end, which may take as long as the check of a file system, and begins
// another one. It returns an error if ctx ends before.
func (m *Machine) Lock(ctx context.Context) error {
	select {
	case m.lock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for another disk operation: %w", context.Cause(ctx))
	}
}

// Unlock ends a disk operation.
func (m *Machine) Unlock() {
	m.withdrawShortfalls()
	<-m.lock
}

const (
	// nodeLimit bounds the wait for the device node of a new partition.
	nodeLimit = 30 * time.Second
	// UnmountLimit bounds the wait for a busy mount. cloudfoundry/bosh-agent waits as long.
	UnmountLimit = 600 * time.Second
)

// HintOf converts a hint of the settings for package device.
func HintOf(cid string, h settings.DiskHint) device.Hint {
	return device.Hint{
		CID:          cid,
		Path:         h.Path,
		VolumeID:     h.VolumeID,
		DeviceID:     h.DeviceID,
		LUN:          h.LUN,
		HostDeviceID: h.HostDeviceID,
		ISCSI:        h.ISCSI != nil,
	}
}

// Missing reports whether the error is that a disk was not found.
func Missing(err error) bool {
	return errors.Is(err, device.ErrAbsent) || errors.Is(err, device.ErrTimedOut)
}

// ReadRecord returns the disk record. A damaged one counts as empty, so that the disks themselves decide.
func (m *Machine) ReadRecord() (record.Record, error) {
	r, err := m.Record.Read()
	if errors.Is(err, recordfile.ErrDamaged) {
		m.Log.WithError(err).Warn("the record is not used")
		err = nil
	}
	return r, err
}

// Announce makes the kernel read the partition table of a disk.
func (m *Machine) Announce(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, nodeLimit)
	defer cancel()
	return disk.Announce(ctx, path)
}

// Volume observes a partition. A mounted one is not probed, since the kernel knows its type. A partition without a
// device node is read through its disk.
func (m *Machine) Volume(s layout.State, n int) (decide.Volume, error) {
	node := layout.PartitionPath(s.Path, n)
	if _, err := blkdev.NumberOf(node); errors.Is(err, os.ErrNotExist) {
		p, _ := s.Table.Partition(n)
		content, err := filesystem.ProbeAt(s.Path, p.Start, p.Size)
		if err != nil {
			return decide.Volume{}, err
		}
		half, err := filesystem.HalfGrown(s.Path, p.Start, content.Kind)
		return decide.Volume{Content: content, HalfGrown: half}, err
	}
	return m.Device(node)
}

// Device observes a device that may contain a file system or swap.
func (m *Machine) Device(node string) (v decide.Volume, err error) {
	number, err := blkdev.NumberOf(node)
	if err != nil {
		return v, err
	}
	mounts, err := mount.Of(number)
	if err != nil {
		return v, err
	}
	if len(mounts) > 0 {
		at := mounts[len(mounts)-1]
		v.MountedOn, v.InUse, v.Content.Kind = at.Target, true, probe.Kind(at.Type)
		if v.Growable, err = filesystem.Growable(node, at.Target, v.Content.Kind); err != nil {
			m.Log.WithError(err).Warn("cannot determine the size of a mounted file system")
		}
		return v, nil
	}
	if v.InUse, err = mount.Uses(number); err != nil {
		return v, err
	}
	if v.ActiveSwap, err = filesystem.SwapActive(node); err != nil {
		return v, err
	}
	if v.Content, err = filesystem.Probe(node); err == nil {
		v.HalfGrown, err = filesystem.HalfGrown(node, 0, v.Content.Kind)
	}
	return v, err
}

// MountedAt returns the mount point of a device's file system, or "". If it is mounted on several directories, as jobs
// may bind it elsewhere, the first of directories counts. A device that does not exist is not mounted.
func MountedAt(node string, directories ...string) (string, error) {
	number, err := blkdev.NumberOf(node)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	all, err := mount.Of(number)
	if err != nil || len(all) == 0 {
		return "", err
	}
	for _, dir := range directories {
		real, err := filepath.EvalSymlinks(dir)
		if err == nil && slices.ContainsFunc(all, func(m mount.Entry) bool { return m.Target == real }) {
			return dir, nil
		}
	}
	return all[len(all)-1].Target, nil
}

// Serial returns the serial number of a disk, or "".
func Serial(number blkdev.Number) string {
	info, err := blkdev.Lookup("/sys", number)
	if err != nil {
		return ""
	}
	return info.Serial
}

func memTotal() (int64, error) {
	var info unix.Sysinfo_t
	err := unix.Sysinfo(&info)
	return int64(info.Totalram) * int64(info.Unit), err
}

// EnsureDir creates a directory with exactly this mode. It leaves an existing one unchanged.
func EnsureDir(path string, mode os.FileMode) error {
	if err := os.Mkdir(path, mode); err != nil {
		if errors.Is(err, os.ErrExist) {
			return nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if err := os.MkdirAll(path, mode); err != nil {
			return err
		}
	}
	return os.Chmod(path, mode)
}

// ProveIdle returns an error unless the disk is provably not in use, which must be known before its table is replaced.
func (m *Machine) ProveIdle(path string, number blkdev.Number) error {
	root, err := m.rootNumbers()
	if err != nil {
		return err
	}
	if root[number] {
		return fmt.Errorf("%s is the root disk", path)
	}
	info, err := blkdev.Lookup("/sys", number)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if info.Partition > 0 {
		return fmt.Errorf("%s is a partition of %s, not a disk", path, info.Disk)
	}
	parts, err := blkdev.Partitions("/sys", number)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	swaps, err := filesystem.ActiveSwaps()
	if err != nil {
		return err
	}
	for _, p := range append(parts, info) {
		n, err := numberIn(p.Dir)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if len(p.Holders) > 0 {
			return fmt.Errorf("%s is in use by %s", p.Name, strings.Join(p.Holders, ", "))
		}
		used, err := mount.Uses(n)
		if err != nil {
			return err
		}
		if used {
			return fmt.Errorf("%s is mounted", p.Name)
		}
		for _, s := range swaps {
			if s == n {
				return fmt.Errorf("%s is in use as swap", p.Name)
			}
		}
	}
	return nil
}

func numberIn(sysDir string) (blkdev.Number, error) {
	var major, minor uint32
	data, err := os.ReadFile(filepath.Join(sysDir, "dev"))
	if err != nil {
		return 0, err
	}
	if _, err := fmt.Sscanf(string(data), "%d:%d", &major, &minor); err != nil {
		return 0, fmt.Errorf("%s: %w", sysDir, err)
	}
	return mount.Number(major, minor), nil
}
