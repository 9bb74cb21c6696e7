package decide

import (
	"fmt"
	"slices"
)

// Mounted is one mount of this machine.
type Mounted struct {
	ID             int
	Source, Target string
	// Device is the number of what is mounted, and OnDevice is set when that is a block device.
	Device   uint64
	OnDevice bool
	// Owner is the persistent disk that is mounted, on the store or the migration target; empty elsewhere, or if
	// nothing tells.
	Owner string
}

// Resolved is the result of following the hint of a persistent disk.
type Resolved struct {
	// Source is the device that carries its file system, and Device its number; 0 if there is none.
	Source string
	Device uint64
	// Err says why the device was not found. Missing is set when it is not there.
	Err     error
	Missing bool
}

// Mounts describes this machine's mounts as observed before a disk is unmounted.
type Mounts struct {
	Surroundings
	// All lists the mounts in the order in which they were made.
	All []Mounted
	// Resolved is the disk's own, if the disk owns no mount.
	Resolved Resolved
}

// of returns the mounts of a disk, binds included, and what is held by them: one mount of each device. The disk's
// links may be gone while it is mounted; where its hint leads counts if it is not on the store or the migration target.
func (m Mounts) of(cid string) (own, held []Mounted, err error) {
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

// UnmountDisk decides what is unmounted, in order, so that nothing of a disk is mounted any more: the last one first,
// since what is on top of it or inside it came later, and before each what is on top of it, as umount does. Another
// disk on top is refused. Of what was held, nothing may be in use afterwards, in any mount namespace.
func UnmountDisk(m Mounts, cid string) (order, held []Mounted, err error) {
	own, held, err := m.of(cid)
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

// Noted is a mount of a persistent disk as it was seen last.
type Noted struct {
	Mounted
	OnStore bool
}

// Shows reports that a mount is of the same disk: of the same device, or, if disks are directories, the same mount.
func (n Noted) Shows(m Mounted, directories bool) bool {
	if directories {
		return n.ID == m.ID && n.Target == m.Target
	}
	return n.Device == m.Device
}

// ListDisks are the disks that are mounted, the one on the store first. all is the mount table; without one, what was
// noted counts. working is the disk that is about to be mounted; empty if there is none.
func ListDisks(all []Mounted, noted []Noted, working string, directories bool) []string {
	listed := []string{}
	for _, n := range noted {
		shows := func(m Mounted) bool { return n.Shows(m, directories) }
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
