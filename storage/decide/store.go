package decide

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"cambium/storage/identity"
	"cambium/storage/record"
)

// Statement is a disk's statement about itself.
type Statement struct {
	identity.Store // zero if the disk has no statement
	// Err is set if a part of the statement cannot be understood.
	Err error
}

// Disk is a persistent disk whose statement was read.
type Disk struct {
	CID, Path string
	// FileSystem is the UUID of its file system, or "" for a directory.
	FileSystem string
	Statement  Statement
}

// used reports whether the disk has been the store under its CID.
func (d Disk) used() bool {
	return d.Statement.Err == nil && d.Statement.CID == d.CID && d.Statement.Used()
}

// unused reports whether the disk is a complete copy that has never been the store.
func (d Disk) unused() bool {
	return d.Statement.Err == nil && d.Statement.CID == d.CID && !d.Statement.Incomplete && d.Statement.Generation == 0
}

// copyOf reports whether d is a copy of source, and source has not been mounted on the store since.
func (d Disk) copyOf(source Disk) bool {
	return d.Statement.Err == nil && d.Statement.CID == d.CID && d.Statement.IsCopyOf(source.CID, source.FileSystem) &&
		d.Statement.Origin.Generation >= source.Statement.Generation
}

// Choice holds the facts to decide whether a disk may become the store. Nothing is mounted on the store yet.
type Choice struct {
	Disk
	Surroundings
	// New is set if the disk will be formatted first. It has no statement then.
	New bool
	// Identified is set if the disk's hint contains an identifier rather than a path.
	Identified bool
	// Elsewhere lists the CIDs of other disks in settings and hints whose hints do not lead to this device.
	Elsewhere []string
	// Others lists the other candidates that have a file system.
	Others []Disk
}

// Outranked is the refusal of a disk because another one, By, is the store.
type Outranked struct {
	*Refusal
	By string
}

func (o *Outranked) Unwrap() error { return o.Refusal }

// CheckChoice refuses a disk unless it is the newest complete store as far as is known. The first matching rule of the
// table in docs/adr/0036-a-store-says-who-it-is.md applies.
func CheckChoice(c Choice) error {
	if asked := c.Record.Asked[c.CID]; asked == record.Accept || asked == record.Format {
		return nil
	}
	if err := CheckCopy(c.CID, c.Path, c.Statement); err != nil {
		return err
	}
	if x := c.Statement.CID; x != "" && x != c.CID && slices.Contains(c.Elsewhere, x) {
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

// refuse returns a refusal whose remedy ends with the command to accept the disk.
func (c Choice) refuse(found, remedy string) *Refusal {
	return &Refusal{c.Path, found, fmt.Sprintf("%s, if this is the right one, %s", remedy, accept(c.CID))}
}

// isAt refuses the disk if candidate o identifies itself as this disk.
func (c Choice) isAt(o Disk) error {
	switch {
	case o.Statement.Err != nil || o.Statement.CID != c.CID || !o.Statement.Used():
		return nil
	case c.Statement.CID != c.CID:
	case o.Statement.Generation < c.Statement.Generation,
		o.Statement.Generation == c.Statement.Generation && c.Identified:
		return nil
	}
	return c.refuse(
		fmt.Sprintf("%s, where the hint of %s leads, says that it is %s as well, and was the store at least "+
			"as late: the paths in their hints may have been exchanged", o.Path, o.CID, c.CID),
		"Attach the right disk, or",
	)
}

// copiedTo refuses the disk if candidate o is a copy of it and has been the store since.
func (c Choice) copiedTo(o Disk) error {
	if !o.used() || !o.copyOf(c.Disk) {
		return nil
	}
	return &Outranked{c.refuse(fmt.Sprintf("it was copied to %s (%s), which has been the store since", o.CID, o.Path),
		fmt.Sprintf("Run mount_disk %s, or", o.CID)), o.CID}
}

// sourceOf refuses a disk that has never been the store if candidate o may be the store.
func (c Choice) sourceOf(o Disk) error {
	switch {
	case !c.New && !c.unused(), o.Statement.Incomplete:
		return nil
	case c.unused() && c.Statement.IsCopyOf(o.CID, o.FileSystem):
		return &Outranked{c.refuse(fmt.Sprintf("it is a copy of %s (%s) and has never been the store", o.CID, o.Path),
			fmt.Sprintf("Run mount_disk %s, mount_disk %s and migrate_disk, or", o.CID, c.CID)), o.CID}
	case o.unused():
		return nil
	}
	return c.refuse(fmt.Sprintf("it has never been the store, and %s (%s) may be the store", o.CID, o.Path),
		fmt.Sprintf("Run mount_disk %s first, or", o.CID))
}

// chooseByRecord decides by the records on the machine.
func (c Choice) chooseByRecord() error {
	recorded, byOther := c.Record.StoreDisk(c.ManagedCID)
	source := c.Record.Disks[c.Statement.Origin.CID]
	if c.unused() && recorded == c.Statement.Origin.CID && source.Generation > c.Statement.Origin.Generation &&
		c.Statement.IsCopyOf(recorded, source.FileSystem) {
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

// doubt refuses the disk mounted last if it may be an incomplete copy, since cloudfoundry/bosh-agent records a new disk
// before it copies the store there. It accepts a disk that is mounted on the store, and one without other known disks.
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

// CheckCopy refuses the disk at path as the store if it is an incomplete copy, or may be one.
func CheckCopy(cid, path string, s Statement) error {
	if s.Err != nil {
		return &Refusal{
			path,
			fmt.Sprintf("what it says about itself is not understood (%v): it may be an incomplete copy",
				s.Err),
			"Use the agent that wrote it, or, if it is complete, " + accept(cid),
		}
	}
	if !s.Incomplete {
		return nil
	}
	from := cmp.Or(s.Origin.CID, "another disk")
	return &Refusal{path, "it holds an incomplete copy of " + from, fmt.Sprintf("Run mount_disk %s, mount_disk %s and "+
		"migrate_disk, or, to use it as it is if that disk is gone, %s", from, cid, accept(cid))}
}

// CheckMounted refuses the disk mounted on the store if this agent's record names another one, unless that is known to
// be older. others lists the candidates.
func CheckMounted(on Disk, a Surroundings, others []Disk) error {
	if err := CheckCopy(on.CID, on.Path, on.Statement); err != nil && a.Record.Asked[on.CID] != record.Accept {
		return err
	}
	recorded, byOther := a.Record.StoreDisk(a.ManagedCID)
	if recorded == "" || recorded == on.CID || byOther || a.ManagedCID == on.CID ||
		a.Record.Asked[on.CID] == record.Accept {
		return nil
	}
	for _, o := range others {
		if o.CID == recorded && (o.Statement.Incomplete || o.unused() || on.copyOf(o)) {
			return nil
		}
	}
	return &Refusal{
		on.Path,
		fmt.Sprintf("%s is mounted on %s, but %s is on record as the store", on.CID, a.Store, recorded),
		fmt.Sprintf("Run unmount_disk %s and mount_disk %s, or, if it is the right one, %s", on.CID, recorded,
			accept(on.CID)),
	}
}

// NextStatement returns the statement to write to a disk when it is mounted on the store.
func NextStatement(d Disk) identity.Store {
	s := identity.Store{CID: d.CID, FileSystem: d.FileSystem, Generation: 1}
	if d.Statement.Err == nil && d.Statement.CID != "" {
		s.Generation = d.Statement.Generation + 1
		if d.Statement.CID == d.CID {
			s.Origin = d.Statement.Origin
		}
	}
	return s
}

// DescribeReverted describes a disk whose statement is older than its record, or returns "". Such a disk was reset to
// an earlier snapshot; if disks are directories, their volume is not mounted.
func DescribeReverted(d Disk, r record.Record) string {
	was := r.Disks[d.CID].Generation
	if was == 0 || d.Statement.Err != nil || d.Statement.CID == d.CID && d.Statement.Generation >= was {
		return ""
	}
	return fmt.Sprintf("generation %d is on record, and it says %d", was, d.Statement.Generation)
}
