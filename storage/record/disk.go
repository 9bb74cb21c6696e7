package record

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Disk holds the identifiers of a disk.
type Disk struct {
	// FileSystem is the UUID of its file system, which identifies the disk.
	FileSystem string `json:"file_system,omitempty"`
	// Table is the GUID of its GPT or the signature of its DOS table, or "". It only confirms the identity, since a new
	// table may be written around the same file system.
	Table string `json:"table,omitempty"`
	// Bytes is its size. Disks grow and never shrink.
	Bytes int64 `json:"bytes"`
	// Generation is the generation in the disk's statement when it was mounted on the store, or 0 if none could be
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

// Conflict returns the reason why the disk found cannot be the recorded one, or "". Partition tables are compared only
// if one of the two has no file system UUID.
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

// usable reports whether a table has an identifier: a DOS table may have none.
func usable(table string) bool { return strings.Trim(table, "0-") != "" }

// Find returns the record that matches a disk by CID, file system or partition table, in this order. A disk on record
// must not be formatted, whatever it contains.
func (r Record) Find(cid, fileSystem, table string) (of string, d Disk, known bool) {
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

// Put records a disk as found and ends an operator's request about it. Identifiers that could not be read keep their
// recorded values, unless there was a request.
func (r *Record) Put(cid string, d Disk) {
	if have, known := r.Disks[cid]; known && r.Asked[cid] == "" {
		d.FileSystem, d.Table, d.Bytes = cmp.Or(d.FileSystem, have.FileSystem), cmp.Or(d.Table, have.Table),
			cmp.Or(d.Bytes, have.Bytes)
	}
	r.Disks[cid] = d
	r.EndRequest(cid)
}
