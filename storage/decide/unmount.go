package decide

import (
	"fmt"
	"slices"
)

// Mounted is an entry of the mount table.
type Mounted struct {
	ID             int
	Source, Target string
	// Device is the device number. OnDevice is set if it is a block device's.
	Device   uint64
	OnDevice bool
	// Owner is the CID of the persistent disk mounted there, if the mount point is the store or the migration target
	// and the disk is known.
	Owner string
}

// Resolved is the result of resolving a persistent disk's hint.
type Resolved struct {
	// Source is the device with its file system, and Device its number, or 0.
	Source string
	Device uint64
	// Err is the error if the device was not found. Missing is set if there is no such device.
	Err     error
	Missing bool
}

// Mounts describes the mount table as observed before a disk is unmounted.
type Mounts struct {
	Surroundings
	// All lists the mounts in the order in which they were made.
	All []Mounted
	// Resolved is used if no mount has the disk as its owner.
	Resolved Resolved
}

// mountsOf returns the mounts of a disk, with bind mounts, and one of them for each device (held). The links to a
// mounted disk may be gone, so owners count first. Without a mount of its own, the disk is where its hint leads, unless
// that device is mounted as another disk.
func (m Mounts) mountsOf(cid string) (own, held []Mounted, err error) {
	owns := func(o Mounted) bool { return o.Owner == cid }
	own = filter(m.All, owns)
	if m.Directories {
		return own, own[:min(len(own), 1)], nil
	}
	if r := m.Resolved; len(own) == 0 {
		switch {
		case r.Err != nil && !r.Missing:
			return nil, nil, r.Err
		case r.Device == 0 || slices.ContainsFunc(m.All, func(o Mounted) bool {
			return o.Device == r.Device && o.Owner != "" // it is mounted as another disk
		}):
			return nil, nil, nil
		}
		own = []Mounted{{Source: r.Source, Device: r.Device}}
	}
	for _, o := range own {
		if !slices.ContainsFunc(held, func(h Mounted) bool { return h.Device == o.Device }) {
			held = append(held, o)
		}
	}
	ofIt := func(o Mounted) bool {
		return slices.ContainsFunc(held, func(h Mounted) bool { return h.Device == o.Device })
	}
	return filter(m.All, ofIt), held, nil
}

func filter(all []Mounted, keep func(Mounted) bool) (kept []Mounted) {
	for _, m := range all {
		if keep(m) {
			kept = append(kept, m)
		}
	}
	return kept
}

// UnmountDisk returns the mounts to unmount, in order, so that none of the disk remains. The latest comes first, since
// it may be inside earlier ones. A mount stacked on another comes before it, as umount requires; if it is of another
// disk, it is an error. held lists the devices that must not be in use afterwards, in any mount namespace.
func UnmountDisk(m Mounts, cid string) (order, held []Mounted, err error) {
	own, held, err := m.mountsOf(cid)
	if err != nil {
		return nil, nil, err
	}
	for _, o := range slices.Backward(own) {
		for _, top := range slices.Backward(m.All) {
			if top.Target != o.Target || slices.Contains(order, top) {
				continue
			}
			if top.OnDevice && top.Device != o.Device {
				return nil, nil, fmt.Errorf("%s is mounted over it on %s: unmount that first", top.Source, o.Target)
			}
			order = append(order, top)
			if top.ID == o.ID {
				break
			}
		}
	}
	return order, held, nil
}

// Noted is a mount of a persistent disk when it was last seen.
type Noted struct {
	Mounted
	OnStore bool
}

// SameDisk reports whether a mount is of the same disk: it has the same device or, if disks are directories, is the
// same mount.
func (n Noted) SameDisk(m Mounted, directories bool) bool {
	if directories {
		return n.ID == m.ID && n.Target == m.Target
	}
	return n.Device == m.Device
}

// ListDisks returns the CIDs of the mounted disks, the one on the store first. all is the mount table; if it is nil,
// all noted mounts count. working is the disk that is about to be mounted, or "".
func ListDisks(all []Mounted, noted []Noted, working string, directories bool) []string {
	listed := []string{}
	for _, n := range noted {
		shows := func(m Mounted) bool { return n.SameDisk(m, directories) }
		switch {
		case all != nil && !slices.ContainsFunc(all, shows):
		case n.OnStore:
			listed = slices.Insert(listed, 0, n.Owner)
		default:
			listed = append(listed, n.Owner)
		}
	}
	if working != "" && !slices.Contains(listed, working) {
		listed = append(listed, working)
	}
	return listed
}
