package decide

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"cambium/storage/identity"
	"cambium/storage/record"
)

// Said is a disk's statement about itself.
type Said struct {
	identity.Store // zero if it says nothing
	// Strange says why a part of the statement is not understood.
	Strange error
}

// Disk is a persistent disk that was looked at, with what it says.
type Disk struct {
	CID, Path string
	// FileSystem is the identifier of its file system, empty for a directory.
	FileSystem string
	Said       Said
}

// used reports a disk that has been a store under its CID.
func (d Disk) used() bool { return d.Said.Strange == nil && d.Said.CID == d.CID && d.Said.Used() }

// unused reports a complete copy that has never been the store.
func (d Disk) unused() bool {
	return d.Said.Strange == nil && d.Said.CID == d.CID && !d.Said.Incomplete && d.Said.Generation == 0
}

// copyOf reports whether d was copied from a disk that has not been mounted on the store since.
func (d Disk) copyOf(source Disk) bool {
	return d.Said.Strange == nil && d.Said.CID == d.CID && d.Said.Of(source.CID, source.FileSystem) &&
		d.Said.Origin.Generation >= source.Said.Generation
}

// Choice gathers the facts by which to decide whether a disk may become the store: it is about to be mounted on the
// empty store.
type Choice struct {
	Disk
	Surroundings
	// New is set if the disk is prepared first. Then it says nothing about itself.
	New bool
	// Identified is set if its hint finds it by an identifier, not by a path.
	Identified bool
	// Elsewhere are the disks that settings or hints name and whose hint does not lead to this device.
	Elsewhere []string
	// Others are the other candidates that have a file system, with what they say.
	Others []Disk
}

// Outranked refuses a disk because another one is the store.
type Outranked struct {
	*Refusal
	By string
}

func (o *Outranked) Unwrap() error { return o.Refusal }

// Choose refuses a disk that is not the newest complete store, or not known to be it. The rules are those of the table
// in docs/adr/0036-a-store-says-who-it-is.md, the first one that matches.
func Choose(c Choice) error {
	if asked := c.Surroundings.Record.Asked[c.CID]; asked == record.Accept || asked == record.Format {
		return nil
	}
	if err := CheckCopy(c.CID, c.Path, c.Said); err != nil {
		return err
	}
	if x := c.Said.CID; x != "" && x != c.CID && slices.Contains(c.Elsewhere, x) {
		return c.refuse("it says that it is persistent disk "+x, "Attach the right disk, or")
	}
	for _, rule := range []func(Disk) error{c.isAt, c.copiedTo, c.sourceOf} {
		for _, o := range c.Others {
			if err := rule(o); err != nil {
				return err
			}
		}
	}
	return c.chooseByRecord()
}

// refuse leaves the disk as it is. The remedy ends with what an operator can do.
func (c Choice) refuse(found, remedy string) *Refusal {
	return &Refusal{c.Path, found, fmt.Sprintf("%s, if this is the right one, %s", remedy, accept(c.CID))}
}

// isAt refuses a disk if another candidate says that it is this one.
func (c Choice) isAt(o Disk) error {
	switch {
	case o.Said.Strange != nil || o.Said.CID != c.CID || !o.Said.Used():
		return nil
	case c.Said.CID != c.CID:
	case o.Said.Generation < c.Said.Generation, o.Said.Generation == c.Said.Generation && c.Identified:
		return nil
	}
	return c.refuse(fmt.Sprintf("%s, where the hint of %s leads, says that it is %s as well, and was the store at least "+
		"as late: the paths in their hints may have been exchanged", o.Path, o.CID, c.CID), "Attach the right disk, or")
}

// copiedTo refuses a disk of which a candidate is a copy that has been the store since.
func (c Choice) copiedTo(o Disk) error {
	if !o.used() || !o.copyOf(c.Disk) {
		return nil
	}
	return &Outranked{c.refuse(fmt.Sprintf("it was copied to %s (%s), which has been the store since", o.CID, o.Path),
		fmt.Sprintf("Run mount_disk %s, or", o.CID)), o.CID}
}

// sourceOf refuses a disk that has never been the store while one with a file system is there.
func (c Choice) sourceOf(o Disk) error {
	switch {
	case !c.New && !c.unused(), o.Said.Incomplete:
		return nil
	case c.unused() && c.Said.Of(o.CID, o.FileSystem):
		return &Outranked{c.refuse(fmt.Sprintf("it is a copy of %s (%s) and has never been the store", o.CID, o.Path),
			fmt.Sprintf("Run mount_disk %s, mount_disk %s and migrate_disk, or", o.CID, c.CID)), o.CID}
	case o.unused():
		return nil
	}
	return c.refuse(fmt.Sprintf("it has never been the store, and %s (%s) may be the store", o.CID, o.Path),
		fmt.Sprintf("Run mount_disk %s first, or", o.CID))
}

// chooseByRecord decides by what is on record on the machine.
func (c Choice) chooseByRecord() error {
	recorded, byOther := c.Surroundings.Record.StoreDisk(c.ManagedCID)
	source := c.Surroundings.Record.Disks[c.Said.Origin.CID]
	if c.unused() && recorded == c.Said.Origin.CID && source.Generation > c.Said.Origin.Generation &&
		c.Said.Of(recorded, source.FileSystem) {
		return c.refuse(fmt.Sprintf("it is a copy of %s, which has been the store since", recorded),
			fmt.Sprintf("Run mount_disk %s, mount_disk %s and migrate_disk, or", recorded, c.CID))
	}
	if recorded == c.CID {
		if byOther && !c.used() {
			return c.doubt()
		}
		return nil
	}
	for _, o := range c.Others {
		if o.used() && !(c.used() && c.copyOf(o)) {
			return c.refuse(fmt.Sprintf("%s (%s) has been a store as well, and nothing shows that it is the older one",
				o.CID, o.Path), fmt.Sprintf("Run mount_disk %s if that is the right one, or", o.CID))
		}
	}
	return nil
}

// doubt refuses the disk that was mounted last where it may be half a copy: cloudfoundry/bosh-agent records a new disk
// before the store is copied to it. What that agent has mounted on the store is the store, and so is a new disk whose
// old one is in neither settings nor hints.
func (a Surroundings) doubt() error {
	if a.OnStore != "" || a.Directories || len(a.Known) < 2 {
		return nil
	}
	accepts := make([]string, len(a.Known))
	for i, cid := range a.Known {
		accepts[i] = "'agent disk accept " + cid + " --yes'"
	}
	return fmt.Errorf("settings and hints name the persistent disks %s, and %s, which another agent recorded as "+
		"mounted last, may be an incomplete copy: this agent never mounted it on the store. For the disk that holds all data, run %s",
		strings.Join(a.Known, " and "), a.ManagedCID, strings.Join(accepts, " or "))
}

// CheckCopy refuses the disk at path as the store if it is an incomplete copy.
func CheckCopy(cid, path string, s Said) error {
	if s.Strange != nil {
		return &Refusal{path, fmt.Sprintf("what it says about itself is not understood (%v): it may be an incomplete copy",
			s.Strange), "Use the agent that wrote it, or, if it is complete, " + accept(cid)}
	}
	if !s.Incomplete {
		return nil
	}
	from := cmp.Or(s.Origin.CID, "another disk")
	return &Refusal{path, "it holds an incomplete copy of " + from, fmt.Sprintf("Run mount_disk %s, mount_disk %s and "+
		"migrate_disk, or, to use it as it is if that disk is gone, %s", from, cid, accept(cid))}
}

// CheckMounted refuses a disk that is on the store while this agent's record names another one, unless that one is
// known to be older. others are the candidates.
func CheckMounted(on Disk, a Surroundings, others []Disk) error {
	if err := CheckCopy(on.CID, on.Path, on.Said); err != nil && a.Record.Asked[on.CID] != record.Accept {
		return err
	}
	recorded, byOther := a.Record.StoreDisk(a.ManagedCID)
	if recorded == "" || recorded == on.CID || byOther || a.ManagedCID == on.CID || a.Record.Asked[on.CID] == record.Accept {
		return nil
	}
	for _, o := range others {
		if o.CID == recorded && (o.Said.Incomplete || o.unused() || on.copyOf(o)) {
			return nil
		}
	}
	return &Refusal{on.Path, fmt.Sprintf("%s is mounted on %s, but %s is on record as the store", on.CID, a.Store, recorded),
		fmt.Sprintf("Run unmount_disk %s and mount_disk %s, or, if it is the right one, %s", on.CID, recorded,
			accept(on.CID))}
}

// Chosen returns the statement that is written to a disk when it is mounted on the store.
func Chosen(d Disk) identity.Store {
	s := identity.Store{CID: d.CID, FileSystem: d.FileSystem, Generation: 1}
	if d.Said.Strange == nil && d.Said.CID != "" {
		s.Generation = d.Said.Generation + 1
		if d.Said.CID == d.CID {
			s.Origin = d.Said.Origin
		}
	}
	return s
}

// Reverted describes a disk that says less than is on record for it; empty if it does not. A disk has been set back to
// an older snapshot; of a directory, the volume is not mounted.
func Reverted(d Disk, r record.Record) string {
	was := r.Disks[d.CID].Generation
	if was == 0 || d.Said.Strange != nil || d.Said.CID == d.CID && d.Said.Generation >= was {
		return ""
	}
	return fmt.Sprintf("generation %d is on record, and it says %d", was, d.Said.Generation)
}
