// Package storage is disks as the agent means them: the ephemeral disk, raw ephemeral disks,
// the root disk and persistent disks, from a CPI's hint to a mounted directory. It decides
// with package plan, acts through the disk packages of platform, and keeps the records that
// let every sequence resume after a crash. Nothing is formatted that was not proven blank,
// ours or disposable; everything else is refused with what was found.
package storage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"cambium/internal/blkdev"
	"cambium/internal/vcap"
	"cambium/platform/device"
	"cambium/platform/disk"
	"cambium/platform/filesystem"
	"cambium/platform/mount"
	"cambium/settings"
)

// Options are the stemcell's; see agent.json.
type Options struct {
	UsePreformattedPersistentDisk    bool
	BindMountPersistentDisk          bool
	CreatePartitionIfNoEphemeralDisk bool
	SkipDiskSetup                    bool
	PartitionerType                  string
	// MissingEphemeralDisk is "fail" (or empty) or "root": what to do about an ephemeral disk
	// that the CPI named and that never appears.
	MissingEphemeralDisk string
	// ManagedVolumes is set when raw ephemeral NVMe disks are found by exclusion.
	ManagedVolumes bool
}

// Records are the disks that settings and hints name, and which one is on the store.
type Records interface {
	Disks() map[string]settings.PersistentDisk
	PutHint(cid string, hint settings.DiskHint) error
	RemoveHint(cid string) error
	MountedCID() string
	SetMountedCID(cid string) error
	ClearMountedCID() error
}

// Resolver finds devices; *device.Resolver is one.
type Resolver interface {
	Resolve(ctx context.Context, h device.Hint) (device.Device, error)
	Look(h device.Hint) (device.Device, error)
	InstanceStorage(ctx context.Context, count int) ([]device.Device, error)
}

// Config is what the disks of one agent are made of.
type Config struct {
	Dirs     vcap.Dirs
	Options  Options
	Resolver Resolver
	Records  Records
	// Reload reads the settings from their source again; hints of some CPIs come that way.
	Reload func(context.Context) error
	// Foreign says what to do with a persistent disk that carries something which is not
	// ours: "refuse" (or empty) or "format". The deployment's env wins over agent.json.
	Foreign func() string
	// Progress, if set, is told how far a migration has come; the zero value ends it.
	Progress func(MigrationProgress)
	// Program is the agent's own, which copies when it is called by apart.Word. Without one, disks
	// are copied in this process.
	Program string
	// AfterBoot, if set, defers work that no caller waits for.
	AfterBoot func(func())
	Log       *logrus.Entry
}

// Disks are the disks of one agent. Their methods may be called at the same time; they take turns.
type Disks struct {
	Ephemeral  *Ephemeral
	Persistent *Persistent
	Migration  *Migration
}

// New returns the disks of a machine.
func New(c Config) Disks {
	if c.Reload == nil {
		c.Reload = func(context.Context) error { return nil }
	}
	if c.Foreign == nil {
		c.Foreign = func() string { return "" }
	}
	if c.AfterBoot == nil {
		c.AfterBoot = func(f func()) { f() }
	}
	m := &machine{Dirs: c.Dirs, Log: c.Log,
		rootMount: func() (mount.Entry, bool, error) { return mount.At("/") },
		container: inContainer, memory: memTotal, crashPoint: func(string) {}}
	persistent := &Persistent{machine: m, Options: c.Options, Resolver: c.Resolver, Records: c.Records, Reload: c.Reload, Foreign: c.Foreign}
	return Disks{
		Ephemeral:  &Ephemeral{machine: m, Options: c.Options, Resolver: c.Resolver, Records: c.Records, AfterBoot: c.AfterBoot},
		Persistent: persistent,
		Migration:  &Migration{machine: m, disks: persistent, Options: c.Options, Records: c.Records, Progress: c.Progress, Program: c.Program},
	}
}

// Ephemeral is the ephemeral disk, raw ephemeral disks, and the root disk, which may have to hold the ephemeral data.
type Ephemeral struct {
	*machine
	Options   Options
	Resolver  Resolver
	Records   Records
	AfterBoot func(func())
}

// Persistent are the disks that the Director knows by their CIDs.
type Persistent struct {
	*machine
	Options  Options
	Resolver Resolver
	Records  Records
	Reload   func(context.Context) error
	Foreign  func() string
}

// Migration copies the store from one persistent disk to another.
type Migration struct {
	*machine
	disks    *Persistent
	Options  Options
	Records  Records
	Progress func(MigrationProgress)
	Program  string
}

// machine is what all kinds of disks need: one lock, the record of unfinished work, and thin helpers.
type machine struct {
	Dirs vcap.Dirs
	Log  *logrus.Entry
	mu   sync.Mutex // one disk operation at a time
	made []Change   // by the operation that has the lock

	// For tests: the mount of "/", whether this is a container, RAM, and a call before each step that
	// changes something.
	rootMount  func() (mount.Entry, bool, error)
	container  func() bool
	memory     func() (int64, error)
	crashPoint func(string)
}

// begin takes the lock for one operation; the function it returns gives it back.
func (d *machine) lock() func() {
	d.mu.Lock()
	d.made = nil
	return d.mu.Unlock
}

// note adds a change to those that the operation returns.
func (d *machine) note(c Change) { d.made = append(d.made, c) }

const (
	// nodeLimit bounds the wait for the node of a partition that the kernel was told of.
	nodeLimit = 30 * time.Second
	// unmountLimit is how long a busy mount is waited for, as in cloudfoundry/bosh-agent.
	unmountLimit = 600 * time.Second
)

func hintOf(cid string, h settings.DiskHint) device.Hint {
	return device.Hint{CID: cid, Path: h.Path, VolumeID: h.VolumeID, DeviceID: h.DeviceID, LUN: h.LUN, HostDeviceID: h.HostDeviceID, ISCSI: h.ISCSI != nil}
}

func notThere(err error) bool {
	return errors.Is(err, device.ErrAbsent) || errors.Is(err, device.ErrTimedOut)
}

func (d *machine) announce(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, nodeLimit)
	defer cancel()
	return disk.Announce(ctx, path)
}

// announceState is announce for a table that has just been read.
func (d *machine) announceState(ctx context.Context, s disk.State) error {
	ctx, cancel := context.WithTimeout(ctx, nodeLimit)
	defer cancel()
	return s.Announce(ctx)
}

// mountData mounts a file system that is ours: checked first when it has recorded errors,
// grown afterwards when its device is larger than itself; that it cannot be is no reason to keep its
// data away. One that is mounted already is in use: it is neither checked nor taken away for a moment.
func (d *machine) mountData(ctx context.Context, part string, content filesystem.Content, target string, options []string) error {
	if content.Blank() {
		return fmt.Errorf("%s is blank, there is nothing to mount", part)
	}
	where, err := d.mountedAt(part)
	if err != nil {
		return err
	}
	if content.Errors && where == "" {
		d.Log.WithField("device", part).Warn("file system has recorded errors and is checked")
		if err := filesystem.Check(ctx, part, content.Kind); err != nil {
			return err
		}
	}
	d.crashPoint("mount")
	if err := mount.Device(ctx, part, target, string(content.Kind), options); err != nil {
		return err
	}
	if where == "" {
		d.note(mountChange(part, target, content))
	}
	err = d.growMounted(part, target, content.Kind)
	if err == nil {
		return nil
	}
	if content.Kind != filesystem.Ext4 || !errors.Is(err, unix.EPERM) || where != "" {
		d.Log.WithError(err).Warn("file system cannot be grown; its next mount tries again")
		return nil
	}
	// The kernel wants a capability that some sandboxes withhold. Nobody uses the mount yet.
	d.Log.WithError(err).Warn("file system is grown while it is not mounted")
	if err := mount.Unmount(ctx, target); err != nil {
		return err
	}
	if err := filesystem.GrowUnmounted(ctx, part, content.Kind); err != nil {
		d.Log.WithError(err).Warn("file system cannot be grown; its next mount tries again")
	}
	return mount.Device(ctx, part, target, string(content.Kind), options)
}

func (d *machine) growMounted(part, target string, kind filesystem.Kind) error {
	if kind != filesystem.Ext4 && kind != filesystem.XFS {
		return nil
	}
	grown, err := filesystem.Grow(part, target, kind)
	if err != nil {
		return err
	}
	if grown {
		d.note(Change{Device: part, Proof: "the device is larger", What: "grow file system"})
		d.Log.WithFields(logrus.Fields{"device": part, "mount": target}).Info("file system grown to its device")
	}
	return nil
}

// proveIdle shows that a disk is nobody's: the proof before its table is replaced.
func (d *machine) proveIdle(path string, number blkdev.Number) error {
	root, err := d.rootNumbers()
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

func memTotal() (int64, error) {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for _, line := range strings.Split(string(data), "\n") {
		if fields := strings.Fields(line); len(fields) >= 2 && fields[0] == "MemTotal:" {
			kib, err := strconv.ParseInt(fields[1], 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("/proc/meminfo has no MemTotal")
}

// ensureDir makes a directory with exactly this mode; one that is there is left as it is.
func ensureDir(path string, mode os.FileMode) error {
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
