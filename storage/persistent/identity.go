package persistent

import (
	"errors"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"cambium/internal/blkdev"
	"cambium/platform/device"
	"cambium/platform/disk"
	"cambium/platform/disk/layout"
	"cambium/platform/filesystem"
	"cambium/platform/filesystem/probe"
	"cambium/platform/mount"
	"cambium/settings"
	"cambium/storage/decide"
	"cambium/storage/internal/machine"
	"cambium/storage/record"
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

// applyReleases forgets what operators have released.
func (d *Disks) applyReleases() error {
	r, err := d.Machine.Record.Read()
	if err != nil {
		return err
	}
	for cid, asked := range r.Asked {
		if asked != record.Release {
			continue
		}
		_, named := d.Records.Disks()[cid]
		if told, err := d.Records.MountedCID(); err == nil && told == cid && !named {
			if err := d.Records.ClearMountedCID(); err != nil {
				return err
			}
		}
		if err := d.Machine.Record.Update(func(r *record.Record) { r.Release(cid, named) }); err != nil {
			return err
		}
		d.Machine.Log.WithField("cid", cid).Warn("an operator has released the disk: it is no longer on record")
	}
	return nil
}

// foundFor is what the disk at path is recorded as under a CID.
func (d *Disks) foundFor(cid, path string) (record.Disk, error) {
	found, _ := d.identify(path) // what cannot be read stays as it is on record
	number, err := blkdev.NumberOf(path)
	found.Hardware = machine.HardwareOf(number, cid)
	return found, err
}

// identify reads the identifiers of a disk, which may be mounted. Those that cannot be read are missing, and the error says why.
func (d *Disks) identify(path string) (record.Disk, error) {
	s, err := d.inspect(path)
	return d.identity(s, err)
}

// inspect reads the partition table of a disk; preformatted ones have none.
func (d *Disks) inspect(path string) (layout.State, error) {
	if d.Preformatted {
		return layout.State{Path: path}, nil
	}
	return disk.Inspect(path)
}

// identity is identify for a disk that was inspected.
func (d *Disks) identity(s layout.State, inspectErr error) (found record.Disk, err error) {
	number, err := blkdev.NumberOf(s.Path)
	if err == nil {
		found.Hardware = machine.Hardware(number)
		var info blkdev.Info
		info, err = blkdev.Lookup("/sys", number)
		found.Bytes = info.Size
	}
	found.Table = s.Table.GUID
	c, probeErr := filesystem.Probe(d.part(s.Path))
	if probeErr == nil && c.Kind.Managed() {
		found.FileSystem = c.UUID
	}
	if d.Preformatted || inspectErr != nil || len(s.Table.Partitions) > 0 { // otherwise there is nothing to read
		err = errors.Join(err, probeErr)
	}
	return found, errors.Join(err, inspectErr)
}

// claims tells which disks the device at path may be. found is what it was found to be, and unread why that is not all.
func (d *Disks) claims(v view, path string, number blkdev.Number, onStore bool, found record.Disk,
	unread error) (c decide.Claims) {
	for _, cid := range v.Known {
		switch l := v.leads[cid]; {
		case l.err != nil:
		case l.Number != number && l.Path != path:
			c.Elsewhere = append(c.Elsewhere, cid)
		case l.Identified:
			c.ByIdentifier = append(c.ByIdentifier, cid)
		default:
			c.ByPath = append(c.ByPath, cid)
		}
	}
	if onStore {
		c.Recorded = v.storeDisk()
	}
	c.ByRecord = v.Record.Owners(found)
	if unread == nil {
		c.Absent = v.Record.Absent(found)
	}
	if len(c.ByRecord) > 1 {
		c.Twins = d.twins(v, c, found)
	}
	return c
}

// twins are the disks on record with the identifiers of this one whose path leads to another device with them.
func (d *Disks) twins(v view, c decide.Claims, found record.Disk) (twins []string) {
	for _, cid := range c.ByRecord {
		l := v.leads[cid]
		if !slices.Contains(c.Elsewhere, cid) || l.Identified || cid == v.OnStore || cid == v.OnTarget {
			continue // a disk that is mounted is where its hint leads
		}
		if other, err := d.identify(l.Path); err == nil && other.FileSystem == found.FileSystem {
			twins = append(twins, cid)
		}
	}
	return twins
}

// duplicateUUID reports whether another device with a file system of this kind and UUID is mounted.
func duplicateUUID(part string, c probe.Content) (bool, error) {
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
		if seen[m.Number] || m.Type != string(c.Kind) {
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
		if parent, _, isPart := layout.SplitPath(e.Source); isPart && !d.Preformatted {
			if number, err := blkdev.NumberOf(parent); err == nil { // device-mapper, whose partitions are mappings
				return parent, number, nil
			}
		}
		return e.Source, e.Number, nil
	}
	path = "/dev/" + info.Disk
	if parent, _, isPart := layout.SplitPath(e.Source); isPart {
		path = parent
	}
	number, err = blkdev.NumberOf(path)
	return path, number, err
}

// owner is the CID of the disk that is mounted on a directory, by the identifiers on the device and by the hints, empty
// if nothing tells; and the disk that is mounted, unless it is a directory or its device is gone.
func (d *Disks) owner(v view, dir string, e mount.Entry) (cid, path string, found record.Disk) {
	if d.BindMounted {
		return v.ownerOfBind(dir), "", found
	}
	if !onDevice(e) {
		return "", "", found
	}
	path, number, err := d.diskOf(e)
	if err == nil {
		var unread error // without what cannot be read, the other claims count
		found, unread = d.identify(path)
		cid = d.claims(v, path, number, dir == v.Store, found, unread).Owner()
	}
	if cid == "" {
		cid = d.formerOwner(v, dir, e)
	}
	return cid, path, found
}

// onDevice reports a mount of a block device. File systems without one, such as tmpfs, have numbers with major 0.
func onDevice(e mount.Entry) bool { return unix.Major(uint64(e.Number)) != 0 }

func (v view) ownerOfBind(dir string) string {
	recorded := v.storeDisk()
	for _, cid := range v.Known {
		if v.leads[cid].err != nil {
			continue // it may be one of the others
		}
		same, err := sameDir(v.leads[cid].Path, dir)
		if err == nil && same {
			return cid
		}
		if err == nil && cid == recorded {
			recorded = "" // its directory is another one
		}
	}
	if dir == v.Store {
		return recorded
	}
	return ""
}
