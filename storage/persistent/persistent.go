// Package persistent keeps the disks that the Director knows by their CIDs: recording their hints, preparing and mounting
// them, growing, unmounting and listing them. It observes, lets package decide decide, and acts. Nothing is
// formatted that was not proven blank or ours; everything else is refused with what was found.
package persistent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"cambium/internal/blkdev"
	"cambium/platform/device"
	"cambium/platform/disk"
	"cambium/platform/mount"
	"cambium/settings"
	"cambium/storage/decide"
	"cambium/storage/internal/intent"
	"cambium/storage/internal/machine"
)

// Resolver finds devices.
type Resolver interface {
	Resolve(ctx context.Context, h device.Hint) (device.Device, error)
	Look(h device.Hint) (device.Device, error)
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

// Disks are the persistent disks of a machine.
type Disks struct {
	Machine  *machine.Machine
	Resolver Resolver
	Records  Records
	// Reload reads the settings from their source again; hints of some CPIs come that way.
	Reload func(context.Context) error
	// Foreign says what to do with a disk that carries something which is not ours: "refuse" (or empty) or "format".
	Foreign func() string

	// BindMounted disks are directories; containers get their disks so.
	BindMounted bool
	// Preformatted disks carry their file system without a table, and are neither partitioned nor formatted.
	Preformatted bool
	// Label is that of a new table, unless the disk's settings name a partitioner.
	Label disk.Label
}

// Add records the hint of a disk that the CPI has attached.
func (d *Disks) Add(ctx context.Context, cid string, hint settings.DiskHint) error {
	d.Machine.Lock()
	defer d.Machine.Unlock()
	if err := d.Reload(ctx); err != nil {
		return err
	}
	return d.Records.PutHint(cid, hint)
}

// Remove forgets a disk. One that is not known is fine.
func (d *Disks) Remove(ctx context.Context, cid string) error {
	d.Machine.Lock()
	defer d.Machine.Unlock()
	if err := d.Reload(ctx); err != nil {
		return err
	}
	if d.Records.MountedCID() == cid {
		if err := d.Records.ClearMountedCID(); err != nil {
			return err
		}
	}
	all, err := d.Machine.Intents.All()
	if err != nil {
		return err
	}
	keys := []string{cid}
	if all[intent.Migration].Concerns(cid) {
		keys = append(keys, intent.Migration)
	}
	for _, key := range keys {
		if err := d.Machine.Intents.Clear(key); err != nil {
			return err
		}
	}
	return d.Records.RemoveHint(cid)
}

func (d *Disks) known(cid string) (settings.PersistentDisk, error) {
	p, ok := d.Records.Disks()[cid]
	if !ok {
		return p, fmt.Errorf("persistent disk %q is not known", cid)
	}
	return p, nil
}

// part is the device that carries the file system of the disk at path.
func (d *Disks) part(path string) string { return decide.PersistentPart(path, d.Preformatted) }

// Unmount takes a persistent disk off the store, or the migration target, and says what it
// did in the words the Director knows.
func (d *Disks) Unmount(ctx context.Context, cid string) (string, error) {
	d.Machine.Lock()
	defer d.Machine.Unlock()
	p, err := d.known(cid)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, machine.UnmountLimit, errors.New("still busy after ten minutes"))
	defer cancel()
	targets, err := d.mountsOf(p)
	if err != nil {
		return "", fmt.Errorf("unmount disk %s: %w", cid, err)
	}
	if len(targets) == 0 {
		return fmt.Sprintf("Partition of %s is not mounted", cid), nil
	}
	for i := len(targets) - 1; i >= 0; i-- {
		d.Machine.CrashPoint("unmount")
		if err := mount.UnmountReporting(ctx, targets[i], d.Busy(targets[i])); err != nil {
			return "", fmt.Errorf("unmount disk %s: %w", cid, err)
		}
	}
	if err := d.release(p); err != nil {
		return "", fmt.Errorf("unmount disk %s: %w", cid, err)
	}
	return fmt.Sprintf("Unmounted partition of %s", cid), nil
}

// Busy logs which processes use a mount that is waited for.
func (d *Disks) Busy(target string) func([]mount.Process) {
	return func(users []mount.Process) {
		d.Machine.Log.WithFields(logrus.Fields{"mount": target, "users": fmt.Sprint(users)}).Warn("persistent disk is busy")
	}
}

// release makes sure that no private mount namespace keeps the file system alive: the IaaS
// takes the disk away next.
func (d *Disks) release(p settings.PersistentDisk) error {
	dev, err := d.Resolver.Look(machine.HintOf(p.CID, p.Hint))
	if machine.Missing(err) || d.BindMounted {
		return nil
	}
	if err != nil {
		return err
	}
	return d.ReleaseDevice(d.part(dev.Path))
}

// ReleaseDevice detaches the mounts of a device from private mount namespaces.
func (d *Disks) ReleaseDevice(part string) error {
	// An O_EXCL open succeeds only if the device is not mounted; then no process has to be asked.
	if f, err := os.OpenFile(part, os.O_RDONLY|unix.O_EXCL, 0); err == nil {
		return f.Close()
	}
	number, err := blkdev.NumberOf(part)
	if err != nil {
		return err
	}
	changed, err := mount.DetachElsewhere(number)
	if len(changed) > 0 {
		d.Machine.Log.WithFields(logrus.Fields{"device": part, "processes": fmt.Sprint(changed)}).Warn("mount detached from private namespaces")
	}
	return err
}

// mountsOf lists where anything of a persistent disk is mounted, binds included.
func (d *Disks) mountsOf(p settings.PersistentDisk) ([]string, error) {
	dev, err := d.Resolver.Look(machine.HintOf(p.CID, p.Hint))
	if machine.Missing(err) {
		// Its links may be gone while it is still mounted; the record tells what is on the store.
		store := d.Machine.Dirs.Store()
		if _, occupied, err := mount.At(store); err != nil || !occupied || d.Records.MountedCID() != p.CID {
			return nil, err
		}
		return []string{store}, nil
	}
	if err != nil {
		return nil, err
	}
	if d.BindMounted {
		return d.bindsOf(dev.Path)
	}
	number, err := blkdev.NumberOf(d.part(dev.Path))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	all, err := mount.Table()
	if err != nil {
		return nil, err
	}
	var targets []string
	for _, m := range all {
		if m.Number == number {
			targets = append(targets, m.Target)
		}
	}
	return targets, nil
}

func (d *Disks) bindsOf(source string) (targets []string, err error) {
	for _, target := range []string{d.Machine.Dirs.Store(), d.Machine.Dirs.StoreMigrationTarget()} {
		_, occupied, err := mount.At(target)
		if err != nil {
			return nil, err
		}
		if !occupied {
			continue
		}
		same, err := sameDir(source, target)
		if err != nil {
			return nil, err
		}
		if same {
			targets = append(targets, target)
		}
	}
	return targets, nil
}

// sameDir compares what two paths lead to.
func sameDir(a, b string) (bool, error) {
	ia, err := os.Stat(a)
	if err != nil {
		return false, err
	}
	ib, err := os.Stat(b)
	if err != nil {
		return false, err
	}
	return os.SameFile(ia, ib), nil
}

// DiskOn returns the CID of the disk that is mounted on a directory; it is empty where none is.
func (d *Disks) DiskOn(dir string) (mount.Entry, string, error) {
	e, there, err := mount.At(dir)
	if err != nil || !there {
		return e, "", err
	}
	for cid, p := range d.Records.Disks() {
		dev, err := d.Resolver.Look(machine.HintOf(cid, p.Hint))
		if err != nil {
			continue // it may be one of the others
		}
		if d.BindMounted {
			if same, err := sameDir(dev.Path, dir); err == nil && same {
				return e, cid, nil
			}
			continue
		}
		if n, err := blkdev.NumberOf(d.part(dev.Path)); err == nil && n == e.Number {
			return e, cid, nil
		}
	}
	return e, "", fmt.Errorf("%s on %s is none of the known persistent disks", e.Source, dir)
}

// List returns the CIDs of the persistent disks that are mounted, the one on the store first: the
// Director compares that with its own record. It only reads, and so does not wait for a migration to end.
func (d *Disks) List(ctx context.Context) ([]string, error) {
	if err := d.Reload(ctx); err != nil {
		return nil, err
	}
	mounted := []string{}
	onStore := ""
	for cid, p := range d.Records.Disks() {
		targets, err := d.mountsOf(p)
		if err != nil {
			return nil, fmt.Errorf("list disks: %s: %w", cid, err)
		}
		if len(targets) > 0 {
			mounted = append(mounted, cid)
		}
		for _, target := range targets {
			if target == d.Machine.Dirs.Store() {
				onStore = cid
			}
		}
	}
	sort.Slice(mounted, func(i, j int) bool {
		if a, b := mounted[i] == onStore, mounted[j] == onStore; a != b {
			return a
		}
		return mounted[i] < mounted[j]
	})
	return mounted, nil
}

// ourPath returns one of the directories instead of the path without links by which the kernel knows it.
func ourPath(path string, directories ...string) string {
	for _, dir := range directories {
		if real, err := filepath.EvalSymlinks(dir); err == nil && real == path {
			return dir
		}
	}
	return path
}
