package persistent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/sirupsen/logrus"

	"cambium/platform/device"
	"cambium/platform/disk"
	"cambium/platform/mount"
	"cambium/settings"
	"cambium/storage/decide"
	"cambium/storage/internal/intent"
	"cambium/storage/internal/machine"
)

// Mount makes a persistent disk ready and mounts it on the store, or, where another disk is
// there, on the migration target.
func (d *Disks) Mount(ctx context.Context, cid string) error {
	d.Machine.Lock()
	defer d.Machine.Unlock()
	if err := d.Reload(ctx); err != nil {
		return err
	}
	if err := d.applyRequests(); err != nil {
		return err
	}
	p, err := d.known(cid)
	if err != nil {
		return err
	}
	_, err = d.resolveAndMount(ctx, p)
	return err
}

// PutBack mounts a disk that a migration has unmounted. The caller has the lock.
func (d *Disks) PutBack(ctx context.Context, cid string) error {
	p, err := d.known(cid)
	if err != nil {
		return err
	}
	_, err = d.resolveAndMount(ctx, p)
	return err
}

func (d *Disks) resolveAndMount(ctx context.Context, p settings.PersistentDisk) ([]decide.Change, error) {
	dev, err := d.Resolver.Resolve(ctx, d.hint(p))
	if err != nil {
		return nil, mountError(p.CID, err)
	}
	made, err := d.mount(ctx, p, dev, false)
	return made, mountError(p.CID, err)
}

// mountError names the disk that cannot be mounted. One that is refused may be the wrong one, hence the list of all.
func mountError(cid string, err error) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("mount disk %s: %w", cid, err)
	if refused := decide.Refusal(nil); errors.As(err, &refused) {
		err = fmt.Errorf("%w; %s", err, device.There("/"))
	}
	return err
}

// mount mounts a disk that was found. At boot it formats nothing: the disk held a store.
func (d *Disks) mount(ctx context.Context, p settings.PersistentDisk, dev device.Device, atBoot bool) ([]decide.Change, error) {
	if d.BindMounted {
		return d.bind(ctx, p, dev.Path)
	}
	if dev.Directory {
		return nil, fmt.Errorf("%s is no block device", dev.Path)
	}
	// Locked until it is mounted: udev would have the partitions taken away for a moment.
	release, err := disk.Hold(ctx, dev.Path)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := d.checkClaims(p.CID, dev); err != nil {
		return nil, err
	}
	at, err := d.place(p.CID, dev.Path)
	if err != nil {
		return nil, err
	}
	if !at.RecordAsStore {
		if err := d.correctRecord(p.CID); err != nil {
			return nil, err
		}
	}
	if at.Mounted {
		return d.mountedBefore(ctx, p, dev.Path, at)
	}
	if err := d.leave(ctx, at); err != nil {
		return nil, err
	}
	o, err := d.observe(ctx, p, dev, true)
	if err != nil {
		return nil, err
	}
	plan, notGrown, err := decide.MountPersistent(o, at.Directory)
	if err != nil {
		return nil, err
	}
	if atBoot {
		if err := checkUnformatted(p.CID, plan.Changes); err != nil {
			return nil, err
		}
	}
	d.warnNotGrown(dev.Path, notGrown)
	if err := d.enter(at); err != nil {
		return nil, err
	}
	made, err := d.Machine.Apply(ctx, p.CID, plan)
	if err != nil {
		return made, err
	}
	if err := d.checkMark(p.CID, at); err != nil {
		return nil, errors.Join(err, mount.Detach(at.Directory, d.Busy(at.Directory)))
	}
	d.Machine.Log.WithFields(logrus.Fields{"cid": p.CID, "device": o.Part(), "mount": at.Directory}).Info("persistent disk mounted")
	if err := d.recordIdentity(p.CID, dev.Path, at.RecordAsStore); err != nil {
		return made, err
	}
	return made, d.record(p.CID, at)
}

// leave unmounts a disk from the migration target that goes to the store.
func (d *Disks) leave(ctx context.Context, at decide.Placement) error {
	if at.Leaves == "" {
		return nil
	}
	return mount.UnmountReporting(ctx, at.Leaves, d.Busy(at.Leaves))
}

// enter prepares a directory for a disk.
func (d *Disks) enter(at decide.Placement) error {
	if at.ForgetMigrated {
		if err := d.Machine.Intents.Clear(intent.Migrated); err != nil {
			return err
		}
	}
	return machine.EnsureDir(at.Directory, 0o700)
}

// record names the disk on the store, after it is there.
func (d *Disks) record(cid string, at decide.Placement) error {
	if !at.RecordAsStore {
		return nil
	}
	return d.recordStore(cid)
}

func (d *Disks) recordStore(cid string) error {
	d.Machine.CrashPoint("record mounted disk")
	if d.recorded() == cid {
		return nil
	}
	return d.Records.SetMountedCID(cid)
}

// place observes the directories and decides where the disk at path goes.
func (d *Disks) place(cid, path string) (decide.Placement, error) {
	o, err := d.placing(cid)
	if err != nil {
		return decide.Placement{}, err
	}
	if o.MountedOn, err = machine.MountedAt(d.part(path), o.Store, o.MigrationTarget); err != nil {
		return decide.Placement{}, err
	}
	for dir, taken := range map[string]*bool{o.Store: &o.StoreTaken, o.MigrationTarget: &o.TargetTaken} {
		if _, *taken, err = mount.At(dir); err != nil {
			return decide.Placement{}, err
		}
	}
	return decide.Place(o)
}

// placing observes what does not depend on the device of the disk.
func (d *Disks) placing(cid string) (o decide.Placing, err error) {
	o = decide.Placing{CID: cid, Store: d.Machine.Dirs.Store(), MigrationTarget: d.Machine.Dirs.StoreMigrationTarget()}
	if o.LastStore, err = d.lastStore(); err != nil {
		return o, err
	}
	e, there, err := mount.At(o.Store)
	if err != nil || !there {
		return o, err
	}
	if o.OnStore = d.owner(o.Store, e); o.OnStore == "" {
		o.Foreign = fmt.Sprintf("%s (%s)", e.Source, e.Type)
	}
	return o, nil
}

// mountedBefore completes what an interruption left undone on a disk that is where it may be.
func (d *Disks) mountedBefore(ctx context.Context, p settings.PersistentDisk, path string, at decide.Placement) ([]decide.Change, error) {
	if err := d.enter(at); err != nil {
		return nil, err
	}
	if err := d.checkMark(p.CID, at); err != nil {
		return nil, err
	}
	if err := d.confirmIdentity(p.CID, path, at.RecordAsStore); err != nil {
		return nil, err
	}
	if err := d.resume(ctx, at.Directory); err != nil {
		return nil, err
	}
	made, err := d.growMounted(ctx, path, at.Directory)
	if err != nil {
		return made, err
	}
	return made, d.record(p.CID, at)
}

// correctRecord names the disk that is on the store where the disk for the migration target is recorded as it: cloudfoundry/bosh-agent
// records a disk before the store has been copied to it. After a reboot that disk would become the store, and migrate_disk refuses to
// copy over what is recorded as the store.
func (d *Disks) correctRecord(cid string) error {
	store, owner, err := d.DiskOn(d.Machine.Dirs.Store())
	if d.recorded() != cid || err != nil || owner == "" || owner == cid {
		return nil // a disk on the store that is not known cannot be recorded
	}
	if !d.BindMounted {
		path, _, err := d.diskOf(store)
		if err == nil {
			err = d.confirmIdentity(owner, path, true)
		}
		if err != nil {
			return err
		}
	}
	d.Machine.Log.WithFields(logrus.Fields{"cid": owner, "recorded": cid}).Warn("another agent has recorded the disk for the migration target as the store")
	return d.recordStore(owner)
}

// placeBind observes the directories and decides where the directory of a disk is bound.
func (d *Disks) placeBind(cid, source string) (decide.Placement, error) {
	o, err := d.placing(cid)
	if err != nil {
		return decide.Placement{}, err
	}
	for dir, taken := range map[string]*bool{o.Store: &o.StoreTaken, o.MigrationTarget: &o.TargetTaken} {
		_, occupied, err := mount.At(dir)
		if err != nil {
			return decide.Placement{}, err
		}
		if !occupied {
			continue
		}
		same, err := sameDir(source, dir)
		if err != nil {
			return decide.Placement{}, err
		}
		*taken = !same
		if same && o.MountedOn != o.Store {
			o.MountedOn = dir
		}
	}
	return decide.Place(o)
}

// bind shows a directory as the store; containers get their disks so.
func (d *Disks) bind(ctx context.Context, p settings.PersistentDisk, source string) ([]decide.Change, error) {
	at, err := d.placeBind(p.CID, source)
	if err != nil {
		return nil, err
	}
	if !at.RecordAsStore {
		if err := d.correctRecord(p.CID); err != nil {
			return nil, err
		}
	}
	if err := d.enter(at); err != nil {
		return nil, err
	}
	if at.Mounted {
		if err := d.checkMark(p.CID, at); err != nil {
			return nil, err
		}
		if err := d.resume(ctx, at.Directory); err != nil {
			return nil, err
		}
		return nil, d.record(p.CID, at)
	}
	if err := d.leave(ctx, at); err != nil {
		return nil, err
	}
	d.Machine.CrashPoint("bind")
	if err := mount.Bind(ctx, source, at.Directory, 0); err != nil {
		return nil, err
	}
	if err := d.checkMark(p.CID, at); err != nil {
		return nil, errors.Join(err, mount.Detach(at.Directory, d.Busy(at.Directory)))
	}
	if err := d.Machine.Identities.EndAccept(p.CID); err != nil {
		return nil, err
	}
	return []decide.Change{bindChange(p.CID, source, at)}, d.record(p.CID, at)
}

func bindChange(cid, source string, at decide.Placement) decide.Change {
	return decide.Change{Op: decide.BindMount, Device: source, Proof: "persistent disk " + cid, What: "bind to " + at.Directory, Target: at.Directory}
}

// MountLast brings the persistent disk back after a reboot. A known disk that is missing is an error, and so is one that is blank:
// it held a store.
func (d *Disks) MountLast(ctx context.Context) (made []decide.Change, warning string, err error) {
	d.Machine.Lock()
	defer d.Machine.Unlock()
	if err := d.applyRequests(); err != nil {
		return nil, "", err
	}
	p, mounts, warning, err := d.lastMounted()
	if err != nil || !mounts {
		return nil, warning, err
	}
	dev, err := d.Resolver.Resolve(ctx, d.hint(p))
	if err != nil {
		return nil, "", mountError(p.CID, err)
	}
	blank, err := d.blank(p, dev)
	if err != nil {
		return nil, "", mountError(p.CID, err)
	}
	if blank {
		return nil, "", blankError(p.CID, dev.Path)
	}
	made, err = d.mount(ctx, p, dev, true)
	return made, "", mountError(p.CID, err)
}

// checkUnformatted returns an error for a disk that was mounted last and would be formatted: jobs would begin with an empty store.
func checkUnformatted(cid string, changes []decide.Change) error {
	for _, c := range changes {
		if c.Op == decide.CreateTable || c.Op == decide.MakeFileSystem {
			return fmt.Errorf("persistent disk %s was mounted last and would have to be formatted, which a boot does not do (%s: %s): "+
				"attach the right disk, or run mount_disk to begin with an empty one; %s", cid, c.Device, c.Proof, device.There("/"))
		}
	}
	return nil
}

func blankError(cid, path string) error {
	return fmt.Errorf("persistent disk %s was mounted last and %s is blank: attach the right disk, or run 'agent disk release %s' and mount_disk to begin with an empty one; %s",
		cid, path, cid, device.There("/"))
}

func (d *Disks) lastMounted() (p settings.PersistentDisk, mounts bool, warning string, err error) {
	if _, err := d.Records.MountedCID(); err != nil {
		accepted, acceptErr := d.Machine.Identities.Accepted()
		if acceptErr != nil || accepted == "" {
			return p, false, "", err
		}
		p, mounts = d.Records.Disks()[accepted] // an operator has named the disk
		if !mounts {
			return p, false, "", err
		}
		return p, true, "", nil
	}
	last, err := d.lastStore()
	if err != nil {
		return p, false, "", err
	}
	cid, warning, err := decide.MountLast(last)
	return d.Records.Disks()[cid], cid != "" && err == nil, warning, err
}

// lastStore observes what is known about the disk that was mounted last. Without a record there is none.
func (d *Disks) lastStore() (last decide.LastStore, err error) {
	last = decide.LastStore{Recorded: d.recorded(), Known: slices.Sorted(maps.Keys(d.Records.Disks())),
		Directories: d.BindMounted}
	records, err := d.Machine.Identities.All()
	if err != nil {
		return last, err
	}
	_, last.OnRecord = records[last.Recorded]
	if last.Accepted, err = d.Machine.Identities.Accepted(); err != nil {
		return last, err
	}
	e, there, err := mount.At(d.Machine.Dirs.Store())
	last.Mounted = err == nil && there && d.owner(d.Machine.Dirs.Store(), e) != ""
	return last, err
}

// blank says whether the disk that was mounted last holds nothing.
func (d *Disks) blank(p settings.PersistentDisk, dev device.Device) (bool, error) {
	if dev.Directory || d.BindMounted {
		return !dev.Directory, nil
	}
	o, err := d.observeDisk(p, dev)
	return err == nil && decide.LeftToDirector(o), err
}
