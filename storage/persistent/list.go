package persistent

import (
	"context"
	"slices"

	"cambium/internal/blkdev"
	"cambium/platform/mount"
	"cambium/storage/decide"
)

// mounted converts a mount to the form that package decide takes.
func mounted(e mount.Entry, owner string) decide.Mounted {
	return decide.Mounted{ID: e.ID, Source: e.Source, Target: e.Target, Device: uint64(e.Number), OnDevice: onDevice(e),
		Owner: owner}
}

// note keeps where a disk is mounted, for List. The caller has the lock.
func (d *Disks) note(cid string, e mount.Entry, onStore bool) {
	noted := d.forget(func(n decide.Noted) bool { return n.Owner == cid || n.Shows(mounted(e, cid), d.BindMounted) })
	noted = append(noted, decide.Noted{Mounted: mounted(e, cid), OnStore: onStore})
	d.noted.Store(&noted)
}

// forget ends what is kept about some disks, and returns the rest. The caller has the lock.
func (d *Disks) forget(which func(decide.Noted) bool) (rest []decide.Noted) {
	if before := d.noted.Load(); before != nil {
		rest = slices.DeleteFunc(slices.Clone(*before), which)
	}
	d.noted.Store(&rest)
	return rest
}

// formerOwner returns the disk that was mounted on a directory and whose device is not attached any more; empty if
// nothing tells.
func (d *Disks) formerOwner(v surroundings, dir string, e mount.Entry) string {
	if noted := d.noted.Load(); noted != nil {
		for _, n := range *noted {
			if n.Shows(mounted(e, ""), d.BindMounted) {
				return n.Owner
			}
		}
	}
	rest := slices.DeleteFunc(slices.Clone(v.Known), func(cid string) bool { return cid == v.OnStore })
	switch {
	case !gone(e):
		return ""
	case dir == v.Store:
		return v.storeDisk()
	case len(rest) == 1:
		return rest[0]
	}
	return ""
}

// gone reports a mount whose device has been unplugged.
func gone(e mount.Entry) bool {
	_, err := blkdev.Lookup("/sys", e.Number)
	return onDevice(e) && err != nil
}

// List returns the CIDs of the persistent disks that are mounted, the one on the store first: the Director compares
// that with its own record. It compares the mount table with what boot, mount_disk and unmount_disk have noted. It
// reads no disk, asks no source and waits for nothing, so that it answers while a disk hangs. It never fails: a
// Director that gets no answer, or an empty one, takes a disk in use for one that is gone.
func (d *Disks) List(context.Context) ([]string, error) {
	working, _, _ := d.Working() // is about to be mounted
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

// fromRecord returns the notes to use until boot has looked: the disk on record as the store, if anything that could be
// it is mounted there.
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
