package decide

import (
	"fmt"
	"slices"

	"cambium/platform/filesystem/probe"
	"cambium/storage/record"
)

// identity returns the identifiers to record for the disk.
func (o Persistent) identity() record.Disk {
	d := record.Disk{Table: o.Disk.Table.GUID, Bytes: o.Disk.Bytes}
	if o.Volume.Content.Kind.Managed() {
		d.FileSystem = o.Volume.Content.UUID
	}
	return d
}

// Refusal is the error of a disk that is not used and not changed.
type Refusal struct {
	// Path is the device, and Found the reason for the refusal.
	Path, Found string
	// Remedy contains one or more sentences, with the command that resolves it.
	Remedy string
}

func (r *Refusal) Error() string {
	return fmt.Sprintf("%s is refused: %s. %s", r.Path, r.Found, r.Remedy)
}

// accept returns the end of a remedy for a disk that may be the right one.
func accept(cid string) string { return fmt.Sprintf("run 'agent disk accept %s --yes'", cid) }

// giveUp returns the last sentence of a remedy, which destroys the content of the disk.
func giveUp(cid string) string {
	return fmt.Sprintf("DESTRUCTIVE: to lose its content and use it empty, run 'agent disk format %s --yes'", cid)
}

// checkIdentity refuses a disk other than the one recorded for its CID, unless an operator has made a request about it.
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

// otherDisk returns the refusal of a device that is not the disk recorded for its CID.
func otherDisk(cid, path, conflict string, recorded, found record.Disk) *Refusal {
	return &Refusal{path, fmt.Sprintf("it %s than the disk on record for %s: recorded: %s; found: %s",
		conflict, cid, recorded, found), "Attach the right disk, or, if this is the right one, " + accept(cid)}
}

// refuseFormatting returns a refusal if the disk is on record: such a disk is never formatted, whatever it contains and
// whatever the settings allow.
func (o Persistent) refuseFormatting(r record.Record, found string) error {
	content := probe.Superblock{UUID: o.Volume.Content.UUID}
	for _, s := range append(slices.Clone(o.Superblocks), content) {
		if of, record, known := r.Find(o.CID, s.UUID, o.Disk.Table.GUID); known {
			return &Refusal{o.Disk.Path, fmt.Sprintf("%s, and disk %s is on record with %s: disks on record are "+
				"never formatted", found, of, record),
				"Attach the right disk, or repair this one. " + giveUp(o.CID)}
		}
	}
	return nil
}
