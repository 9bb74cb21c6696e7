// Package identity keeps on record which disk belongs to which CID: the identifiers that a disk had when it became a
// store. A disk on record is never formatted, and a CID is never given another disk than its own. A record that cannot be read
// is an error, never an empty one.
package identity

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"cambium/internal/atomicfile"
	"cambium/internal/vcap"
)

// Disk is what tells a disk from all others.
type Disk struct {
	// FileSystem is the UUID of its file system. It identifies the disk.
	FileSystem string `json:"file_system,omitempty"`
	// Table is the GUID of its GPT or the signature of its DOS table, empty without a table. It confirms the disk: a table may
	// have been written anew around the same file system.
	Table string `json:"table,omitempty"`
	// Bytes is its length; a disk grows and never shrinks.
	Bytes int64 `json:"bytes"`
	// Hardware is its WWN or EUI, or a serial number that holds the CID; empty if it has neither. It tells clones apart.
	Hardware string `json:"hardware,omitempty"`

	// Accepted is set when an operator has asked to take the disk that is there, whatever the record says.
	Accepted bool `json:"-"`
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

// Conflict tells why the disk that was found cannot be the recorded one; empty if it can. A file system's UUID
// decides alone where both have one.
func (d Disk) Conflict(found Disk) string {
	switch {
	case d.FileSystem != "" && found.FileSystem != "" && !strings.EqualFold(d.FileSystem, found.FileSystem):
		return "another file system"
	case (d.FileSystem == "" || found.FileSystem == "") && usable(d.Table) && usable(found.Table) && !strings.EqualFold(d.Table, found.Table):
		return "another partition table"
	case found.Bytes < d.Bytes:
		return "a smaller disk"
	}
	return ""
}

// usable excludes a DOS table without a signature.
func usable(table string) bool { return strings.Trim(table, "0-") != "" }

// Records are the disks on record, by CID.
type Records map[string]Disk

// Known finds a record that a disk matches: by its CID, its file system or its partition table, in this order. Such a disk
// must not be formatted, whatever it looks like.
func (r Records) Known(cid, fileSystem, table string) (of string, d Disk, known bool) {
	if d, known := r[cid]; known {
		return cid, d, true
	}
	for _, of := range slices.Sorted(maps.Keys(r)) {
		if fileSystem != "" && strings.EqualFold(r[of].FileSystem, fileSystem) {
			return of, r[of], true
		}
	}
	for _, of := range slices.Sorted(maps.Keys(r)) {
		if usable(table) && strings.EqualFold(r[of].Table, table) {
			return of, r[of], true
		}
	}
	return "", Disk{}, false
}

// Owners are the CIDs whose record a disk on this machine fits; a clone fits several.
func (r Records) Owners(found Disk) (cids []string) {
	for _, cid := range slices.Sorted(maps.Keys(r)) {
		if d := r[cid]; d.FileSystem != "" && strings.EqualFold(d.FileSystem, found.FileSystem) {
			cids = append(cids, cid)
		}
	}
	exact := slices.DeleteFunc(slices.Clone(cids), func(cid string) bool { return r[cid].Hardware == "" || r[cid].Hardware != found.Hardware })
	if len(exact) > 0 {
		return exact
	}
	return cids
}

// Absent are the CIDs whose recorded file system and table are both not on a disk that has been read.
func (r Records) Absent(found Disk) (cids []string) {
	for _, cid := range slices.Sorted(maps.Keys(r)) {
		d := r[cid]
		table := usable(d.Table) && strings.EqualFold(d.Table, found.Table)
		if d.FileSystem != "" && !strings.EqualFold(d.FileSystem, found.FileSystem) && !table {
			cids = append(cids, cid)
		}
	}
	return cids
}

// errDamaged means that the records are there and cannot be used.
var errDamaged = errors.New("records of disks are damaged")

// version is that of the file. One that is newer may hold what this agent would not honor.
const version = 1

type document struct {
	Version int     `json:"version"`
	Disks   Records `json:"disks"`
}

// File is where the records are kept, and the requests of operators about them.
type File struct {
	path     string
	requests string
}

// In returns the records of the agent with these directories.
func In(dirs vcap.Dirs) File {
	return File{path: dirs.DiskRecords(), requests: dirs.DiskRequests()}
}

// For returns the records for a decision about one disk, with the requests that are pending. Damaged records may have named any disk:
// they are an error unless an operator has accepted this one.
func (f File) For(cid string) (Records, error) {
	records, err := f.All()
	if err != nil || records[cid].Accepted {
		return records, err
	}
	if _, err := f.read(); err != nil {
		return nil, err
	}
	return records, nil
}

// All returns the records, with the requests that are pending. It only reads.
func (f File) All() (Records, error) {
	asked, err := f.pending()
	if err != nil {
		return nil, err
	}
	records, err := f.read()
	accepts := slices.ContainsFunc(asked, func(r request) bool { return r.Action == Accept })
	if errors.Is(err, errDamaged) && accepts {
		records, err = Records{}, nil // what an operator accepts begins new records
	}
	if err != nil {
		return nil, err
	}
	for _, r := range asked {
		switch r.Action {
		case Accept:
			d := records[r.CID]
			d.Accepted = true
			records[r.CID] = d
		case Release:
			delete(records, r.CID)
		}
	}
	return records, nil
}

func (f File) read() (Records, error) {
	data, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return Records{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read records of disks: %w", err)
	}
	var d document
	if err := json.Unmarshal(data, &d); err != nil {
		return nil, damaged(f.path, err)
	}
	if d.Version != version || d.Disks == nil {
		return nil, damaged(f.path, fmt.Errorf("version %d, want %d", d.Version, version))
	}
	return d.Disks, nil
}

func damaged(path string, why error) error {
	return fmt.Errorf("%w: %s: %w: run agent disk accept with the CID of the disk that is to be used", errDamaged, path, why)
}

// Put records a disk and ends a request to accept it. It writes only what is new. Identifiers that could not be read stay on record,
// unless the disk was accepted.
func (f File) Put(cid string, d Disk) error {
	if err := f.setAsideDamaged(cid); err != nil {
		return err
	}
	records, err := f.read()
	if err != nil {
		return err
	}
	d.Accepted = false
	asked := request{Action: Accept, CID: cid}
	_, err = os.Lstat(f.requestPath(asked))
	accepted := !errors.Is(err, fs.ErrNotExist)
	have, known := records[cid]
	if known && !accepted {
		d.FileSystem, d.Table, d.Bytes = cmp.Or(d.FileSystem, have.FileSystem), cmp.Or(d.Table, have.Table), cmp.Or(d.Bytes, have.Bytes)
	}
	if !known || have != d {
		records[cid] = d
		if err := f.write(records); err != nil {
			return err
		}
	}
	if !accepted {
		return nil
	}
	return f.clear(asked)
}

// setAsideDamaged renames damaged records, so that new ones can be written, if an operator has
// accepted this disk.
func (f File) setAsideDamaged(cid string) error {
	if _, err := f.read(); !errors.Is(err, errDamaged) {
		return err
	}
	asked, err := f.pending()
	if err != nil || !slices.Contains(asked, request{Action: Accept, CID: cid}) {
		return err
	}
	if err := os.Rename(f.path, f.path+".damaged"); err != nil {
		return err
	}
	return atomicfile.SyncDir(filepath.Dir(f.path))
}

func (f File) write(records Records) error {
	data, err := json.Marshal(document{Version: version, Disks: records})
	if err != nil {
		return err
	}
	if err := atomicfile.Write(f.path, data, 0o600); err != nil {
		return fmt.Errorf("record disk: %w", err)
	}
	return nil
}
