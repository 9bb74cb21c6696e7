package storage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sort"

	"github.com/sirupsen/logrus"

	"cambium/internal/blkdev"
	"cambium/plan"
	"cambium/platform/device"
	"cambium/platform/disk"
	"cambium/platform/filesystem"
	"cambium/platform/mount"
	"cambium/settings"
)

// Add records the hint of a disk that the CPI has attached.
func (d *Disks) Add(ctx context.Context, cid string, hint settings.DiskHint) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.Reload(ctx); err != nil {
		return err
	}
	return d.Records.PutHint(cid, hint)
}

// Remove forgets a disk. One that is not known is fine.
func (d *Disks) Remove(ctx context.Context, cid string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.Reload(ctx); err != nil {
		return err
	}
	if d.Records.MountedCID() == cid {
		if err := d.Records.ClearMountedCID(); err != nil {
			return err
		}
	}
	for _, key := range []string{cid, migrationIntent} {
		if err := d.done(key); err != nil {
			return err
		}
	}
	return d.Records.RemoveHint(cid)
}

// Mount makes a persistent disk ready and mounts it on the store, or, where another disk is
// there, on the migration target.
func (d *Disks) Mount(ctx context.Context, cid string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.Reload(ctx); err != nil {
		return err
	}
	p, err := d.known(cid)
	if err != nil {
		return err
	}
	dev, err := d.Resolver.Resolve(ctx, hintOf(cid, p.Hint))
	if err != nil {
		return fmt.Errorf("mount disk %s: %w", cid, err)
	}
	if err := d.mountPersistent(ctx, p, dev); err != nil {
		return fmt.Errorf("mount disk %s: %w", cid, err)
	}
	return nil
}

func (d *Disks) known(cid string) (settings.PersistentDisk, error) {
	p, ok := d.Records.Disks()[cid]
	if !ok {
		return p, fmt.Errorf("persistent disk %q is not known", cid)
	}
	return p, nil
}

// part is the device that carries a persistent disk's file system.
func (d *Disks) part(path string) string {
	if d.Options.UsePreformattedPersistentDisk {
		return path
	}
	return device.Partition(path, 1)
}

func (d *Disks) mountPersistent(ctx context.Context, p settings.PersistentDisk, dev device.Device) error {
	if d.Options.BindMountPersistentDisk {
		return d.bindPersistent(ctx, p.CID, dev.Path)
	}
	if dev.Directory {
		return fmt.Errorf("%s is no block device", dev.Path)
	}
	part := d.part(dev.Path)
	switch where, err := d.mountedAt(part); {
	case err != nil:
		return err
	case where == d.Dirs.Store():
		if err := d.afterInterruption(ctx, p, where); err != nil {
			return err
		}
		if err := d.growInUse(ctx, dev.Path, where); err != nil {
			return err
		}
		return d.onStore(p.CID)
	case where == d.Dirs.StoreMigrationTarget():
		return d.afterInterruption(ctx, p, where)
	case where != "":
		return fmt.Errorf("%s is mounted on %s", part, where)
	}
	if !d.Options.UsePreformattedPersistentDisk {
		if err := d.prepare(ctx, p, dev); err != nil {
			return err
		}
	}
	target := d.Dirs.Store()
	_, occupied, err := mount.At(target)
	if err != nil {
		return err
	}
	if occupied {
		target = d.Dirs.StoreMigrationTarget()
	}
	if err := ensureDir(target, 0o700); err != nil {
		return err
	}
	if err := d.mountData(ctx, part, target, p.MountOptions); err != nil {
		return err
	}
	d.Log.WithFields(logrus.Fields{"disk": p.CID, "device": part, "mount": target}).Info("persistent disk mounted")
	if occupied {
		return nil // the record still names the disk that is on the store
	}
	return d.onStore(p.CID)
}

// onStore records the disk after it is on the store: a disk that is only the target of a
// migration must never come back as the store after a reboot.
func (d *Disks) onStore(cid string) error {
	d.step("record mounted disk")
	if d.Records.MountedCID() == cid {
		return nil
	}
	return d.Records.SetMountedCID(cid)
}

// mountedAt tells where a device's file system is mounted; empty means nowhere. A device that
// is not there is mounted nowhere.
func (d *Disks) mountedAt(part string) (string, error) {
	number, err := blkdev.NumberOf(part)
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
	return all[len(all)-1].Target, nil
}

// bindPersistent shows a directory as the store; containers get their disks so.
func (d *Disks) bindPersistent(ctx context.Context, cid, source string) error {
	for _, target := range []string{d.Dirs.Store(), d.Dirs.StoreMigrationTarget()} {
		if err := ensureDir(target, 0o700); err != nil {
			return err
		}
		_, occupied, err := mount.At(target)
		if err != nil {
			return err
		}
		same, err := sameDir(source, target)
		if err != nil {
			return err
		}
		if occupied && !same {
			continue
		}
		if !occupied {
			if err := mount.Bind(ctx, source, target, 0); err != nil {
				return err
			}
		}
		if target == d.Dirs.Store() {
			return d.onStore(cid)
		}
		return nil
	}
	return fmt.Errorf("store and migration target are both in use")
}

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

// prepare partitions and formats what is blank, completes what is ours and unfinished, grows
// what became larger, and refuses the rest.
func (d *Disks) prepare(ctx context.Context, p settings.PersistentDisk, dev device.Device) error {
	judged, err := d.judge(ctx, p, dev.Path)
	if err != nil {
		return err
	}
	kind := filesystem.Ext4
	if p.FileSystem != "" {
		kind = filesystem.Kind(p.FileSystem)
	}
	log := d.Log.WithFields(logrus.Fields{"disk": p.CID, "device": dev.Path, "proof": judged.proof})
	switch judged.verdict {
	case plan.Refuse:
		return &ForeignError{Path: dev.Path, Found: judged.proof}
	case plan.Create:
		if kind != filesystem.Ext4 && kind != filesystem.XFS {
			return fmt.Errorf("persistent_disk_fs %q is not supported, only ext4 and xfs", kind)
		}
		if err := d.proveIdle(dev.Path, dev.Number); err != nil {
			return err
		}
		log.Info("persistent disk will be partitioned and formatted")
		table, err := d.begin(p.CID, judged.label)
		if err != nil {
			return err
		}
		d.step("partition persistent")
		if err := disk.Create(ctx, dev.Path, judged.label, table, plan.NewPersistent(judged.state, judged.label)); err != nil {
			return err
		}
		d.step("announce persistent")
		if err := d.announce(ctx, dev.Path); err != nil {
			return err
		}
		return d.finish(ctx, p.CID, d.part(dev.Path), kind)
	}
	if judged.state.Table.Recovered {
		log.Warn("partition table has only one good copy and is repaired")
		d.step("repair table")
		if err := disk.Repair(ctx, dev.Path); err != nil {
			return err
		}
	}
	if judged.verdict == plan.Format {
		log.Info("persistent disk will be formatted")
		if err := d.beginFormat(p.CID, judged.state.Table.GUID); err != nil {
			return err
		}
		return d.finish(ctx, p.CID, d.part(dev.Path), kind)
	}
	if judged.pending {
		if err := d.resume(ctx, p.CID, d.part(dev.Path), judged.content, kind); err != nil {
			return err
		}
	}
	return d.growPersistent(ctx, judged.state)
}

func (d *Disks) finish(ctx context.Context, cid, part string, kind filesystem.Kind) error {
	d.step("make persistent file system")
	if err := d.makeFileSystem(ctx, part, kind); err != nil {
		return err
	}
	d.step("persistent made")
	return d.done(cid)
}

func (d *Disks) makeFileSystem(ctx context.Context, part string, kind filesystem.Kind) error {
	if err := mount.AwaitIdle(ctx, part); err != nil {
		return err
	}
	return filesystem.Make(ctx, part, kind)
}

// resume deals with a file system whose making is not on record as finished. It was never
// mounted by this agent; if its superblock shows that nobody mounted it and it is not whole,
// it is made again. In any other case it is taken as it is.
func (d *Disks) resume(ctx context.Context, cid, part string, c filesystem.Content, kind filesystem.Kind) error {
	if err := mount.AwaitIdle(ctx, part); err != nil {
		return err
	}
	unfinished := c.Kind == filesystem.XFS && c.Incomplete
	if c.Kind == filesystem.Ext4 && c.NeverMounted {
		sound, err := filesystem.Sound(ctx, part)
		if err != nil {
			return err
		}
		unfinished = !sound
	}
	if unfinished {
		d.Log.WithField("device", part).Warn("file system was not finished before a crash and is made again")
		return d.finish(ctx, cid, part, kind)
	}
	return d.done(cid)
}

// ForeignError refuses a persistent disk, and tells how it can be released.
type ForeignError struct {
	Path  string
	Found string
}

func (e *ForeignError) Error() string {
	return fmt.Sprintf("%s is refused: %s. To use it, remove what is on it (wipefs -a), "+
		"or allow formatting with env.persistent_disk_foreign: format in the deployment manifest", e.Path, e.Found)
}

type judgement struct {
	verdict plan.Verdict
	proof   string
	state   disk.State
	content filesystem.Content // of the only partition
	pending bool
	label   disk.Label
}

// judge looks at a disk and changes nothing on it; the kernel may learn of partitions.
func (d *Disks) judge(ctx context.Context, p settings.PersistentDisk, path string) (judgement, error) {
	j := judgement{label: disk.GPT}
	if p.Partitioner == "sfdisk" || p.Partitioner == "" && d.Options.PartitionerType == "sfdisk" {
		j.label = disk.MBR
	}
	var err error
	j.state, err = disk.Observe(path)
	if errors.Is(err, disk.ErrDamaged) {
		j.verdict, j.proof = plan.Refuse, err.Error()
	} else if err != nil {
		return j, err
	} else {
		if len(j.state.Table.Partitions) == 1 {
			if err := d.announce(ctx, path); err != nil {
				return j, err
			}
			if j.content, err = filesystem.Probe(device.Partition(path, j.state.Table.Partitions[0].Number)); err != nil {
				return j, err
			}
		}
		if j.pending, err = d.pending(p.CID, j.state.Table); err != nil {
			return j, err
		}
		if j.verdict, j.proof, err = plan.Persistent(j.state, j.content, func() (filesystem.Content, error) { return usualPlaces(path) }, j.pending); err != nil {
			return j, err
		}
	}
	if j.verdict == plan.Refuse && d.Foreign() == "format" {
		j.verdict, j.proof = plan.Create, j.proof+"; formatting foreign disks is allowed"
	}
	if j.verdict == plan.Create && j.label == disk.MBR && j.state.Bytes > disk.MBRLimit {
		return j, fmt.Errorf("%s is larger than 2 TiB, which a DOS partition table cannot address: "+
			"set env.persistent_disk_partitioner to parted", path)
	}
	return j, nil
}

// usualPlaces looks where partitions of all ages begin: sector 1, sector 63, 1 MiB.
func usualPlaces(path string) (filesystem.Content, error) {
	f, err := os.Open(path)
	if err != nil {
		return filesystem.Content{}, err
	}
	defer f.Close()
	size, err := blkdev.Size(f)
	if err != nil {
		return filesystem.Content{}, err
	}
	for _, start := range []int64{512, 63 * 512, disk.MiB} {
		if start >= size {
			continue
		}
		c, err := filesystem.Identify(io.NewSectionReader(f, start, size-start), size-start)
		if err != nil {
			return c, err
		}
		// Seen from a little later, the table itself looks like content.
		if c.Data() || !c.Blank() && start == disk.MiB && c.Kind != filesystem.GPT {
			return c, nil
		}
	}
	return filesystem.Content{Kind: filesystem.Blank}, nil
}

// Unmount takes a persistent disk off the store, or the migration target, and says what it
// did in the words the Director knows.
func (d *Disks) Unmount(ctx context.Context, cid string) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, err := d.known(cid)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, unmountLimit, errors.New("still busy after ten minutes"))
	defer cancel()
	targets, err := d.mountsOf(p)
	if err != nil {
		return "", fmt.Errorf("unmount disk %s: %w", cid, err)
	}
	if len(targets) == 0 {
		return fmt.Sprintf("Partition of %s is not mounted", cid), nil
	}
	for i := len(targets) - 1; i >= 0; i-- {
		d.step("unmount")
		if err := mount.UnmountReporting(ctx, targets[i], d.busy(targets[i])); err != nil {
			return "", fmt.Errorf("unmount disk %s: %w", cid, err)
		}
	}
	if err := d.release(p); err != nil {
		return "", fmt.Errorf("unmount disk %s: %w", cid, err)
	}
	return fmt.Sprintf("Unmounted partition of %s", cid), nil
}

// release makes sure that no private mount namespace keeps the file system alive: the IaaS
// takes the disk away next.
func (d *Disks) release(p settings.PersistentDisk) error {
	dev, err := d.Resolver.Look(hintOf(p.CID, p.Hint))
	if notThere(err) || d.Options.BindMountPersistentDisk {
		return nil
	}
	if err != nil {
		return err
	}
	return d.releaseDevice(d.part(dev.Path))
}

func (d *Disks) releaseDevice(part string) error {
	number, err := blkdev.NumberOf(part)
	if err != nil {
		return err
	}
	changed, err := mount.DetachElsewhere(number)
	if len(changed) > 0 {
		d.Log.WithFields(logrus.Fields{"device": part, "processes": fmt.Sprint(changed)}).Warn("mount detached from private namespaces")
	}
	return err
}

// mountsOf lists where anything of a persistent disk is mounted, binds included.
func (d *Disks) mountsOf(p settings.PersistentDisk) ([]string, error) {
	dev, err := d.Resolver.Look(hintOf(p.CID, p.Hint))
	if notThere(err) {
		// Its links may be gone while it is still mounted; the record tells what is on the store.
		if _, occupied, err := mount.At(d.Dirs.Store()); err != nil || !occupied || d.Records.MountedCID() != p.CID {
			return nil, err
		}
		return []string{d.Dirs.Store()}, nil
	}
	if err != nil {
		return nil, err
	}
	if d.Options.BindMountPersistentDisk {
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
	for _, target := range []string{d.Dirs.Store(), d.Dirs.StoreMigrationTarget()} {
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

// List returns the CIDs of the persistent disks that are mounted. It only reads, and so does
// not wait for a migration to end.
func (d *Disks) List(ctx context.Context) ([]string, error) {
	if err := d.Reload(ctx); err != nil {
		return nil, err
	}
	mounted := []string{}
	for cid, p := range d.Records.Disks() {
		targets, err := d.mountsOf(p)
		if err != nil {
			return nil, fmt.Errorf("list disks: %s: %w", cid, err)
		}
		if len(targets) > 0 {
			mounted = append(mounted, cid)
		}
	}
	sort.Strings(mounted)
	return mounted, nil
}

// MountLast brings the persistent disk back after a reboot. A record of a disk that is no
// longer known is no reason not to start; a known disk that is missing is.
func (d *Disks) MountLast(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	cid := d.Records.MountedCID()
	if cid == "" {
		return nil
	}
	p, ok := d.Records.Disks()[cid]
	if !ok {
		d.Log.WithField("disk", cid).Warn("the disk that was mounted last is no longer known; nothing is mounted")
		return nil
	}
	dev, err := d.Resolver.Resolve(ctx, hintOf(cid, p.Hint))
	if err != nil {
		return fmt.Errorf("mount disk %s: %w", cid, err)
	}
	mountable, err := d.mountable(dev)
	if err != nil {
		return fmt.Errorf("mount disk %s: %w", cid, err)
	}
	if !mountable {
		d.Log.WithFields(logrus.Fields{"disk": cid, "device": dev.Path}).Warn("the disk that was mounted last is blank and is left to the Director")
		return nil
	}
	if err := d.mountPersistent(ctx, p, dev); err != nil {
		return fmt.Errorf("mount disk %s: %w", cid, err)
	}
	return nil
}

func (d *Disks) mountable(dev device.Device) (bool, error) {
	if dev.Directory || d.Options.BindMountPersistentDisk {
		return dev.Directory, nil
	}
	s, err := disk.Observe(dev.Path)
	if errors.Is(err, disk.ErrDamaged) {
		return true, nil // mounting it gives the better error
	}
	if d.Options.UsePreformattedPersistentDisk {
		return s.Content.Kind != filesystem.Blank, err
	}
	return s.Table.Label != disk.None || !s.Content.Blank(), err
}
