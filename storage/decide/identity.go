package decide

import (
	"fmt"
	"slices"

	"cambium/platform/filesystem/probe"
	"cambium/storage/record"
)

// identity returns the identifiers under which the disk is recorded.
func (o Persistent) identity() record.Disk {
	d := record.Disk{Table: o.Disk.Table.GUID, Bytes: o.Disk.Bytes}
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
func accept(cid string) string { return fmt.Sprintf("run 'agent disk accept %s --yes'", cid) }

// giveUp is the last sentence of a remedy: it destroys the content of the disk.
func giveUp(cid string) string {
	return fmt.Sprintf("DESTRUCTIVE: to lose its content and use it empty, run 'agent disk format %s --yes'", cid)
}

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
				"Attach the right disk, or repair this one. " + giveUp(o.CID)}
		}
	}
	return nil
}
