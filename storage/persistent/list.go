package persistent

import (
	"context"
	"slices"

	"cambium/internal/blkdev"
	"cambium/platform/mount"
	"cambium/storage/decide"
)

// mounted converts a mount for package decide.
func mounted(e mount.Entry, owner string) decide.Mounted {
	return decide.Mounted{ID: e.ID, Source: e.Source, Target: e.Target, Device: uint64(e.Number), OnDevice: onDevice(e),
		Owner: owner}
}

// note records for List where a disk is mounted. The caller holds the lock.
func (d *Disks) note(cid string, e mount.Entry, onStore bool) {
	noted := d.forget(func(n decide.Noted) bool { return n.Owner == cid || n.SameDisk(mounted(e, cid), d.BindMounted) })
	noted = append(noted, decide.Noted{Mounted: mounted(e, cid), OnStore: onStore})
	d.noted.Store(&noted)
}

// forget removes the notes that which selects, and returns the rest. The caller holds the lock.
func (d *Disks) forget(which func(decide.Noted) bool) (rest []decide.Noted) {
	if before := d.noted.Load(); before != nil {
		rest = slices.DeleteFunc(slices.Clone(*before), which)
	}
	d.noted.Store(&rest)
	return rest
}

// formerOwner returns the disk that is mounted on a directory although its device is detached, or "" if that is not
// known.
func (d *Disks) formerOwner(v surroundings, dir string, e mount.Entry) string {
	if noted := d.noted.Load(); noted != nil {
		for _, n := range *noted {
			if n.SameDisk(mounted(e, ""), d.BindMounted) {
				return n.Owner
			}
		}
	}
	rest := slices.DeleteFunc(slices.Clone(v.Known), func(cid string) bool { return cid == v.OnStore })
	switch {
	case !isUnplugged(e):
		return ""
	case dir == v.Store:
		return v.storeDisk()
	case len(rest) == 1:
		return rest[0]
	}
	return ""
}

// isUnplugged reports whether the device of a mount was unplugged.
func isUnplugged(e mount.Entry) bool {
	_, err := blkdev.Lookup("/sys", e.Number)
	return onDevice(e) && err != nil
}

// List returns the CIDs of the mounted persistent disks, the one on the store first; the Director compares them with
// its own record. It compares the mount table with the notes of boot, mount_disk and unmount_disk. It reads no disk and
// waits for nothing, so that it answers while a disk hangs. It never fails, since a Director without an answer, or with
// an empty one, takes a disk in use for a missing one.
func (d *Disks) List(context.Context) ([]string, error) {
	working, _, _ := d.CurrentWork() // about to be mounted
	noted := d.noted.Load()
	if noted == nil {
		noted = d.fromRecord()
	}
	table, err := mount.Table()
	if err != nil {
		d.Machine.Log.WithError(err).Warn("cannot read the mount table; listing the disks that were mounted last")
		return decide.ListDisks(nil, *noted, working, d.BindMounted), nil
	}
	all := []decide.Mounted{} // not nil
	for _, e := range table {
		all = append(all, mounted(e, ""))
	}
	return decide.ListDisks(all, *noted, working, d.BindMounted), nil
}

// fromRecord returns the notes to use before a boot has observed the disks: the disk on record as the store, if
// something that may be that disk is mounted there.
func (d *Disks) fromRecord() *[]decide.Noted {
	r, _ := d.Machine.Record.Read() // without a record, managed_disk_settings.json names it
	told, _ := d.Known.ManagedCID()
	cid, _ := r.StoreDisk(told)
	e, there, err := mount.At(d.Machine.Dirs.Store())
	if cid == "" || err != nil || !there || !d.BindMounted && !onDevice(e) {
		return &[]decide.Noted{}
	}
	return &[]decide.Noted{{Mounted: mounted(e, cid), OnStore: true}}
}
