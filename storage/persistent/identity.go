package persistent

import (
	"errors"
	"maps"
	"os"
	"slices"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"cambium/internal/blkdev"
	"cambium/platform/device"
	"cambium/platform/disk"
	"cambium/platform/filesystem"
	"cambium/platform/mount"
	"cambium/settings"
	"cambium/storage/decide"
	"cambium/storage/identity"
	"cambium/storage/internal/intent"
	"cambium/storage/internal/machine"
)

// hint is what finds the device of a persistent disk.
func (d *Disks) hint(p settings.PersistentDisk) device.Hint {
	h := machine.HintOf(p.CID, p.Hint)
	for cid := range d.Records.Disks() {
		if cid != p.CID {
			h.Others = append(h.Others, cid)
		}
	}
	slices.Sort(h.Others)
	return h
}

// applyRequests applies the requests of operators.
func (d *Disks) applyRequests() error {
	released, err := d.Machine.Identities.ApplyReleases()
	for _, cid := range released {
		d.Machine.Log.WithField("cid", cid).Warn("an operator has released the disk: its identity is no longer on record")
	}
	if err != nil {
		return err
	}
	if _, err := d.Machine.Intents.All(); errors.Is(err, intent.ErrDamaged) {
		accepted, acceptErr := d.Machine.Identities.Accepted()
		if acceptErr != nil || accepted == "" {
			return err
		}
		d.Machine.Log.WithError(err).WithField("cid", accepted).Warn("an operator has accepted the disk as it is: unfinished work is forgotten")
		return d.Machine.Intents.SetAside()
	}
	return nil
}

// confirmIdentity puts a disk that was mounted before on record, unless another one is on record for its CID.
func (d *Disks) confirmIdentity(cid, path string, store bool) error {
	records, err := d.Machine.Identities.For(cid)
	if err != nil {
		return err
	}
	found, _ := d.identify(path) // what cannot be read does not differ
	if err := decide.CheckIdentity(cid, path, records, found); err != nil {
		return err
	}
	return d.recordIdentity(cid, path, store)
}

// recordIdentity puts the disk that is mounted for a CID on record. One on the migration target is not a store: only if
// it was one before, its record is kept up to date.
func (d *Disks) recordIdentity(cid, path string, store bool) error {
	d.Machine.CrashPoint("record identity")
	found, _ := d.identify(path) // what cannot be read stays as it is on record
	number, err := blkdev.NumberOf(path)
	if err != nil {
		return err
	}
	found.Hardware = machine.HardwareOf(number, cid)
	records, err := d.Machine.Identities.All()
	if err != nil {
		return err
	}
	before, known := records[cid]
	if wasStore := known && before.Bytes > 0; !store && !wasStore {
		return d.Machine.Identities.EndAccept(cid)
	}
	if known && before.Accepted {
		d.Machine.Log.WithFields(logrus.Fields{"cid": cid, "recorded": before.String(), "accepted": found.String()}).Warn("an operator has accepted the disk that is attached")
	}
	return d.Machine.Identities.Put(cid, found)
}

// identify reads the identifiers of a disk, which may be mounted. Those that cannot be read are missing, and the error says why.
func (d *Disks) identify(path string) (found identity.Disk, err error) {
	number, err := blkdev.NumberOf(path)
	if err == nil {
		found.Hardware = machine.Hardware(number)
		var info blkdev.Info
		info, err = blkdev.Lookup("/sys", number)
		found.Bytes = info.Size
	}
	partitioned := d.Preformatted
	if !d.Preformatted {
		s, inspectErr := disk.Inspect(path)
		err = errors.Join(err, inspectErr)
		found.Table, partitioned = s.Table.GUID, inspectErr != nil || len(s.Table.Partitions) > 0
	}
	c, probeErr := filesystem.Probe(d.part(path))
	if probeErr == nil && c.Kind.Managed() {
		found.FileSystem = c.UUID
	}
	if partitioned { // otherwise there is nothing to read
		err = errors.Join(err, probeErr)
	}
	return found, err
}

// claims observes which disks the device at path may be.
func (d *Disks) claims(path string, number blkdev.Number, onStore bool) decide.Claims {
	var c decide.Claims
	found, unread := d.identify(path) // without it, the other claims count
	known := d.Records.Disks()
	for _, cid := range slices.Sorted(maps.Keys(known)) {
		dev, err := d.Resolver.Look(d.hint(known[cid]))
		switch {
		case err != nil:
		case dev.Number != number && dev.Path != path:
			c.Elsewhere = append(c.Elsewhere, cid)
		case dev.Identified:
			c.ByIdentifier = append(c.ByIdentifier, cid)
		default:
			c.ByPath = append(c.ByPath, cid)
		}
	}
	if onStore {
		c.Recorded = d.recorded()
	}
	if records, err := d.Machine.Identities.All(); err == nil {
		c.ByRecord = records.Owners(found)
		if unread == nil {
			c.Absent = records.Absent(found)
		}
	}
	return c
}

// checkClaims refuses a device that is another persistent disk than the one it was found for.
func (d *Disks) checkClaims(cid string, dev device.Device) error {
	store := d.Machine.Dirs.Store()
	where, err := machine.MountedAt(d.part(dev.Path), store)
	if err != nil {
		return err
	}
	return d.claims(dev.Path, dev.Number, where == store).Check(cid, dev.Path)
}

// recorded is the disk on record as the store; empty if there is none, or the record is damaged.
func (d *Disks) recorded() string {
	cid, err := d.Records.MountedCID()
	if err != nil {
		return ""
	}
	return cid
}

// duplicateUUID reports whether another device with a file system of this kind and UUID is mounted.
func duplicateUUID(part string, c filesystem.Content) (bool, error) {
	own, err := blkdev.NumberOf(part)
	if c.UUID == "" || errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	all, err := mount.Table()
	if err != nil {
		return false, err
	}
	seen := map[blkdev.Number]bool{own: true}
	for _, m := range all {
		if seen[m.Number] || m.Type != c.Kind.MountType() {
			continue
		}
		seen[m.Number] = true
		if other, err := filesystem.Probe(m.Source); err == nil && other.UUID == c.UUID {
			return true, nil
		}
	}
	return false, nil
}

// diskOf is the disk of the device that is mounted, by path: the device itself, or the disk that it is a partition of.
func (d *Disks) diskOf(e mount.Entry) (path string, number blkdev.Number, err error) {
	info, err := blkdev.Lookup("/sys", e.Number)
	if err != nil {
		return "", 0, err
	}
	if info.Partition == 0 {
		if parent, _, isPart := device.SplitPartition(e.Source); isPart && !d.Preformatted {
			if number, err := blkdev.NumberOf(parent); err == nil { // device-mapper, whose partitions are mappings
				return parent, number, nil
			}
		}
		return e.Source, e.Number, nil
	}
	path = "/dev/" + info.Disk
	if parent, _, isPart := device.SplitPartition(e.Source); isPart {
		path = parent
	}
	number, err = blkdev.NumberOf(path)
	return path, number, err
}

// owner is the CID of the disk that is mounted on a directory, by the identifiers on the device and by the hints; empty if
// nothing tells.
func (d *Disks) owner(dir string, e mount.Entry) string {
	if d.BindMounted {
		return d.ownerOfBind(dir)
	}
	if !onDevice(e) {
		return ""
	}
	path, number, err := d.diskOf(e)
	if err != nil {
		path, number = e.Source, e.Number // the device is gone
	}
	return d.claims(path, number, dir == d.Machine.Dirs.Store()).Owner()
}

// onDevice reports a mount of a block device. File systems without one, such as tmpfs, have numbers with major 0.
func onDevice(e mount.Entry) bool { return unix.Major(uint64(e.Number)) != 0 }

func (d *Disks) ownerOfBind(dir string) string {
	recorded := d.recorded()
	for cid, p := range d.Records.Disks() {
		dev, err := d.Resolver.Look(d.hint(p))
		if err != nil {
			continue // it may be one of the others
		}
		same, err := sameDir(dev.Path, dir)
		if err == nil && same {
			return cid
		}
		if err == nil && cid == recorded {
			recorded = "" // its directory is another one
		}
	}
	if dir == d.Machine.Dirs.Store() {
		return recorded
	}
	return ""
}
