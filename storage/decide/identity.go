package decide

import (
	"fmt"
	"slices"

	"cambium/platform/filesystem/probe"
	"cambium/storage/record"
)

// identity is what the disk that was found is recorded as.
func (o Persistent) identity() record.Disk {
	d := record.Disk{Table: o.Disk.Table.GUID, Bytes: o.Disk.Bytes, Hardware: o.Hardware}
	if o.Volume.Content.Kind.Managed() {
		d.FileSystem = o.Volume.Content.UUID
	}
	return d
}

// Refusal leaves a disk as it is.
type Refusal struct {
	// Path is the device, and Found why it is not used.
	Path, Found string
	// Remedy is one or more sentences with the command that ends it.
	Remedy string
}

func (r *Refusal) Error() string {
	return fmt.Sprintf("%s is refused: %s. %s", r.Path, r.Found, r.Remedy)
}

// accept ends the remedy of a disk that may be the right one.
func accept(cid string) string { return fmt.Sprintf("run 'agent disk accept %s'", cid) }

// giveUp ends the remedy of a disk whose content may not be needed.
func giveUp(cid string) string { return fmt.Sprintf("run 'agent disk format %s --yes'", cid) }

// checkIdentity refuses a disk that is not the one on record for its CID, unless an operator has decided about it.
func checkIdentity(cid, path string, r record.Record, found record.Disk) error {
	recorded, known := r.Disks[cid]
	if !known || r.Asked[cid] != "" {
		return nil
	}
	if conflict := recorded.Conflict(found); conflict != "" {
		return otherDisk(cid, path, conflict, recorded, found)
	}
	return nil
}

// otherDisk refuses a device that is not the recorded disk of its CID.
func otherDisk(cid, path, conflict string, recorded, found record.Disk) *Refusal {
	return &Refusal{path, fmt.Sprintf("it %s than the disk on record for %s: recorded: %s; found: %s",
		conflict, cid, recorded, found), "Attach the right disk, or, if this is the right one, " + accept(cid)}
}

// refuseFormatting refuses to format a disk that is on record, whatever it looks like and whatever else is allowed.
func (o Persistent) refuseFormatting(found string) error {
	content := probe.Superblock{UUID: o.Volume.Content.UUID}
	for _, s := range append(slices.Clone(o.Superblocks), content) {
		if of, record, known := o.Record.Known(o.CID, s.UUID, o.Disk.Table.GUID); known {
			return &Refusal{o.Disk.Path, fmt.Sprintf("%s, and disk %s is on record with %s: disks on record are "+
				"never formatted", found, of, record),
				"Repair it or attach the right disk; only if its content is not needed, " + giveUp(o.CID)}
		}
	}
	return nil
}

// Claims are what is known of a device that is mounted, or about to be.
type Claims struct {
	// Recorded is the CID on record as the store, if that is where the device is mounted.
	Recorded string
	// ByIdentifier and ByPath are the disks whose hint leads to the device, by an identifier or by a path.
	ByIdentifier, ByPath []string
	// ByRecord are the disks whose recorded identifiers the device carries.
	ByRecord []string
	// Absent are the disks on record whose identifiers the device does not carry: their hints by path are out of date.
	Absent []string
	// Elsewhere are the disks whose hint leads to another device.
	Elsewhere []string
	// Twins are the disks on record with the same identifiers as this one, whose hint leads by a path to a device with
	// these as well: clones, whose paths may have been exchanged.
	Twins []string
}

// Owner is the CID of the disk that a device is; empty if nothing tells. Hints take precedence over identifiers on record, which
// a clone has as well. That the store is on record as a disk tells only where nothing shows that it is another device.
func (c Claims) Owner() string {
	all := slices.Concat(c.ByIdentifier, c.ByPath, c.ByRecord)
	another := slices.Contains(c.Absent, c.Recorded) || slices.Contains(c.Elsewhere, c.Recorded)
	if c.Recorded != "" && (len(all) == 0 && !another || slices.Contains(all, c.Recorded)) {
		return c.Recorded
	}
	// A clone carries the identifiers of several disks; the hint tells which one it is.
	for _, cid := range slices.Concat(c.ByIdentifier, c.ByPath) {
		if slices.Contains(c.ByRecord, cid) {
			return cid
		}
	}
	if len(all) == 0 {
		return ""
	}
	return all[0]
}

// check refuses the device at path, which is about to be mounted for cid, if it is another disk. What an operator has
// accepted is the right one, unless it is in use as another.
func (c Claims) check(cid, path string, accepted bool) error {
	by := c.claimedBy(cid)
	switch {
	case by != "" && c.Recorded != "":
		return &Refusal{path, "it is persistent disk " + by + ", which is mounted",
			"Attach the right disk, or run unmount_disk " + by}
	case by != "" && !accepted:
		return &Refusal{path, "it is persistent disk " + by,
			"Attach the right disk, or, if this is the right one, " + accept(cid)}
	case len(c.Twins) > 0 && c.Recorded == "" && !accepted && !slices.Contains(c.ByIdentifier, cid):
		return &Refusal{path, fmt.Sprintf("it may be disk %s or its clone %s: both are attached with the same "+
			"identifiers, and their hints are only paths, which may have been swapped", cid, c.Twins[0]),
			fmt.Sprintf("If it is %s, %s", cid, accept(cid))}
	}
	return nil
}

// others are the other disks whose hint leads to the device.
func (c Claims) others(cid string) []string {
	return slices.DeleteFunc(slices.Concat(c.ByIdentifier, c.ByPath), func(other string) bool { return other == cid })
}

// claimedBy is the CID of another disk that the device is, which is about to be mounted for cid; empty if there is none.
func (c Claims) claimedBy(cid string) string {
	if c.Recorded != "" { // it is mounted
		if owner := c.Owner(); owner != cid {
			return owner
		}
		return ""
	}
	if slices.Contains(c.ByRecord, cid) {
		return "" // its own identifiers say more than the hint of another disk
	}
	for _, other := range c.ByIdentifier {
		if other != cid {
			return other
		}
	}
	for _, other := range c.ByPath {
		if other != cid && !slices.Contains(c.ByIdentifier, cid) && !slices.Contains(c.Absent, other) {
			return other
		}
	}
	return ""
}
