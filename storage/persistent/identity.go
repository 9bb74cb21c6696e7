package persistent

import (
	"errors"
	"maps"
	"os"
	"slices"
	"strings"

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
	"cambium/storage/identity"
	"cambium/storage/internal/machine"
	"cambium/storage/record"
)

// hint returns the hint to find the device of a persistent disk.
func (d *Disks) hint(p settings.PersistentDisk) device.Hint {
	h := machine.HintOf(p.CID, p.Hint)
	for cid := range d.Known.Disks() {
		if cid != p.CID {
			h.Others = append(h.Others, cid)
		}
	}
	slices.Sort(h.Others)
	return h
}

// applyReleases removes the records of the disks that operators have released.
func (d *Disks) applyReleases() error {
	r, err := d.Machine.ReadRecord()
	if err != nil {
		return err
	}
	for cid, asked := range r.Asked {
		if asked != record.Release {
			continue
		}
		_, named := d.Known.Disks()[cid]
		if told, err := d.Known.ManagedCID(); err == nil && told == cid && !named {
			if err := d.Known.ClearManagedCID(); err != nil {
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

// identify reads the identifiers of a disk, which may be mounted. If some cannot be read, it returns the others with an
// error.
func (d *Disks) identify(path string) (record.Disk, error) {
	s, err := d.inspect(path)
	return d.identity(s, err)
}

// inspect reads the partition table of a disk. Preformatted disks have none.
func (d *Disks) inspect(path string) (layout.State, error) {
	if d.Preformatted {
		return layout.State{Path: path}, nil
	}
	return disk.Inspect(path)
}

// identity reads the identifiers of a disk whose table was read by inspect.
func (d *Disks) identity(s layout.State, inspectErr error) (found record.Disk, err error) {
	number, err := blkdev.NumberOf(s.Path)
	if err == nil {
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

// splitByHint returns the known disks whose hints lead to a device, and the others, including those whose hints lead
// nowhere.
func (v surroundings) splitByHint(number blkdev.Number, path string) (here, elsewhere []string) {
	for _, cid := range v.Known {
		if l := v.resolved[cid]; l.err == nil && (number != 0 && l.Number == number || l.Path == path) {
			here = append(here, cid)
		} else {
			elsewhere = append(elsewhere, cid)
		}
	}
	return here, elsewhere
}

// duplicateUUID reports whether a file system of the same kind and UUID is mounted from another device.
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

// diskOf returns the path and number of the disk that contains the mounted device: the device itself, or the disk of a
// partition.
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

// owner returns the persistent disk that is mounted on a directory. Its statement decides, then the hints, then the
// record; if none of these helps, the CID is empty.
func (d *Disks) owner(v surroundings, dir string, e mount.Entry) (on decide.Disk) {
	if d.BindMounted {
		on.CID, on.Path = v.ownerOfBind(dir), dir
		on.Statement, _ = readStatementAt(dir, on.FileSystem) // unreadable counts as absent
		return on
	}
	if !onDevice(e) {
		return on
	}
	path, number, err := d.diskOf(e)
	if err != nil {
		path, number = e.Source, e.Number
	}
	on.Path = path
	if c, err := filesystem.Probe(e.Source); err == nil && c.Kind.Managed() {
		on.FileSystem = c.UUID
	}
	if top, there, err := mount.At(dir); err == nil && there && top.ID == e.ID {
		on.Statement, _ = readStatementAt(dir, on.FileSystem)
	}
	if on.CID = v.ownerOf(dir, number, on); on.CID == "" {
		on.CID = d.formerOwner(v, dir, e)
	}
	return on
}

// ownerOf returns the CID of the disk with this number that is mounted on a directory, or "".
func (v surroundings) ownerOf(dir string, number blkdev.Number, on decide.Disk) string {
	if cid := on.Statement.CID; slices.Contains(v.Known, cid) && (dir == v.Store || cid != v.OnStore) {
		return cid
	}
	recorded := v.storeDisk()
	here, _ := v.splitByHint(number, on.Path)
	if dir == v.Store && slices.Contains(here, recorded) {
		return recorded
	}
	for _, cid := range here {
		if dir == v.Store || cid != v.OnStore {
			return cid
		}
	}
	known := v.Record.Disks[recorded].FileSystem
	if l := v.resolved[recorded]; dir == v.Store && recorded != "" &&
		(l.err != nil || !slices.Contains(v.Known, recorded)) &&
		identity.SameFileSystem(known, on.FileSystem) {
		return recorded
	}
	for _, cid := range slices.Sorted(maps.Keys(v.Record.Disks)) {
		if known := v.Record.Disks[cid].FileSystem; known != "" && strings.EqualFold(known, on.FileSystem) &&
			cid != v.OnStore {
			return cid
		}
	}
	return ""
}

// onDevice reports whether a block device is mounted. File systems without one, such as tmpfs, have major number 0.
func onDevice(e mount.Entry) bool { return unix.Major(uint64(e.Number)) != 0 }

func (v surroundings) ownerOfBind(dir string) string {
	recorded := v.storeDisk()
	for _, cid := range v.Known {
		if v.resolved[cid].err != nil {
			continue // it may be one of the others
		}
		same, err := sameDir(v.resolved[cid].Path, dir)
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
