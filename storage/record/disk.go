package record

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Disk identifies one disk among all others.
type Disk struct {
	// FileSystem is the UUID of its file system. It identifies the disk.
	FileSystem string `json:"file_system,omitempty"`
	// Table is the GUID of its GPT or the signature of its DOS table, empty without a table. It confirms the disk: a
	// table may have been written anew around the same file system.
	Table string `json:"table,omitempty"`
	// Bytes is its length; a disk grows and never shrinks.
	Bytes int64 `json:"bytes"`
	// Generation is the one in the disk's own statement when the disk was mounted on the store; 0 if none could be
	// written.
	Generation uint64 `json:"generation,omitempty"`
}

func (d Disk) String() string {
	parts := []string{"no file system"}
	if d.FileSystem != "" {
		parts[0] = "file system " + d.FileSystem
	}
	if usable(d.Table) {
		parts = append(parts, "table "+d.Table)
	}
	return strings.Join(append(parts, fmt.Sprintf("%d bytes", d.Bytes)), ", ")
}

// Conflict shows why the disk that was found cannot be the recorded one; empty if it can. A file system's UUID
// decides alone where both have one.
func (d Disk) Conflict(found Disk) string {
	switch {
	case d.FileSystem != "" && found.FileSystem != "" && !strings.EqualFold(d.FileSystem, found.FileSystem):
		return "has a different file system"
	case (d.FileSystem == "" || found.FileSystem == "") && usable(d.Table) && usable(found.Table) &&
		!strings.EqualFold(d.Table, found.Table):
		return "has a different partition table"
	case found.Bytes < d.Bytes:
		return "is smaller"
	}
	return ""
}

// usable excludes a DOS table without a signature.
func usable(table string) bool { return strings.Trim(table, "0-") != "" }

// Known finds a record that a disk matches: by its CID, its file system or its partition table, in this order. Such a
// disk must not be formatted, whatever it looks like.
func (r Record) Known(cid, fileSystem, table string) (of string, d Disk, known bool) {
	if d, known := r.Disks[cid]; known {
		return cid, d, true
	}
	for _, of := range slices.Sorted(maps.Keys(r.Disks)) {
		if fileSystem != "" && strings.EqualFold(r.Disks[of].FileSystem, fileSystem) {
			return of, r.Disks[of], true
		}
	}
	for _, of := range slices.Sorted(maps.Keys(r.Disks)) {
		if usable(table) && strings.EqualFold(r.Disks[of].Table, table) {
			return of, r.Disks[of], true
		}
	}
	return "", Disk{}, false
}

// Put records a disk as it was found, and ends an operator's request about it. Identifiers that could not be read stay
// on record, unless there was one.
func (r *Record) Put(cid string, d Disk) {
	if have, known := r.Disks[cid]; known && r.Asked[cid] == "" {
		d.FileSystem, d.Table, d.Bytes = cmp.Or(d.FileSystem, have.FileSystem), cmp.Or(d.Table, have.Table),
			cmp.Or(d.Bytes, have.Bytes)
	}
	r.Disks[cid] = d
	r.Done(cid)
}
