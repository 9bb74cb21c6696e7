// Package record holds the agent's knowledge about disks beyond settings and hints, as one value: which disk is the
// store, which disk belongs to which CID, what is unfinished, and what an operator has asked. It reads and writes no
// file; package recordfile does.
package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Ephemeral is the key of the ephemeral disk among CIDs, which never begin with a dot.
const Ephemeral = ".ephemeral"

// version is the version of the file. A newer one may hold what this agent would not honor.
const version = 1

// Record is all that is on record about the disks of one agent.
type Record struct {
	Version int `json:"version"`
	// Store is the CID of the disk that this agent had on the store last; empty if there is none.
	Store string `json:"store,omitempty"`
	// Published is set when managed_disk_settings.json, which other agents read and write, names it as well.
	Published bool `json:"published,omitempty"`
	// Disks are the disks that have been a store, by CID. Such a disk is never formatted, and a CID is never given
	// a disk other than its own.
	Disks map[string]Disk `json:"disks,omitempty"`
	// Unfinished identifies what is being prepared for the ephemeral data: a partition table, or partitions after the
	// root partition. It never applies to others.
	Unfinished string `json:"unfinished,omitempty"`
	// ReadOnly is set while the store is read-only because of a migration.
	ReadOnly bool `json:"read_only,omitempty"`
	// Asked holds the operator's requests about disks, by CID.
	Asked map[string]Action `json:"asked,omitempty"`
	// Shown identifies the disk that the operator was shown, by CID: the request applies to no other one.
	Shown map[string]string `json:"shown,omitempty"`
}

// Action is an operator's request about a disk. The agent acts upon it at its next decision about that disk.
type Action string

// The actions.
const (
	Accept  Action = "accept"  // take the disk that is there for this CID, and record it
	Release Action = "release" // forget what is on record about this CID
	Format  Action = "format"  // prepare the disk anew, once, whatever is on it
)

// Actions lists them.
var Actions = []Action{Accept, Release, Format}

// New is an empty record.
func New() Record {
	return Record{Version: version, Disks: map[string]Disk{}, Asked: map[string]Action{}, Shown: map[string]string{}}
}

// Decode reads a record. It is read whole or not at all.
func Decode(data []byte) (Record, error) {
	r := New()
	r.Version = 0
	decoder := json.NewDecoder(bytes.NewReader(data))
	if err := decoder.Decode(&r); err != nil {
		return Record{}, err
	}
	if decoder.More() {
		return Record{}, errors.New("unexpected data after the document")
	}
	if r.Version != version || r.Disks == nil || r.Asked == nil || r.Shown == nil {
		return Record{}, fmt.Errorf("version %d, want %d", r.Version, version)
	}
	for cid, a := range r.Asked {
		if !slices.Contains(Actions, a) {
			return Record{}, fmt.Errorf("unknown request %q for disk %s", a, cid)
		}
	}
	return r, nil
}

// Encode writes a record.
func (r Record) Encode() ([]byte, error) { return json.Marshal(r) }

// StoreDisk returns the disk that was on the store last. told is the one that managed_disk_settings.json names: another
// agent has written it there unless this agent has published it.
func (r Record) StoreDisk(told string) (cid string, byOther bool) {
	if r.Store != "" && (!r.Published || told == r.Store || told == "") {
		return r.Store, false // a file that is lost names no other disk
	}
	return told, told != ""
}

// Accepted is the CID of the only disk that an operator has accepted; empty if there is none, or several.
func (r Record) Accepted() (cid string) {
	for of, a := range r.Asked {
		if a == Accept {
			if cid != "" {
				return ""
			}
			cid = of
		}
	}
	return cid
}

// Done ends a request about a disk.
func (r *Record) Done(cid string) {
	delete(r.Asked, cid)
	delete(r.Shown, cid)
}

// Lapsed reports a request about a disk other than the one that was found.
func (r Record) Lapsed(cid, found string) bool {
	shown, known := r.Shown[cid]
	return known && r.Asked[cid] != "" && shown != found
}

// Remove forgets a disk that is no longer attached. Its identity stays: it is never formatted.
func (r *Record) Remove(cid string) {
	r.Done(cid)
	if r.Store == cid {
		r.Store, r.Published, r.ReadOnly = "", false, false
	}
}

// Release forgets the identity of a disk, too. One that settings or hints name stays the store: otherwise jobs would
// begin with an empty directory.
func (r *Record) Release(cid string, named bool) {
	store, published := r.Store, r.Published
	r.Remove(cid)
	delete(r.Disks, cid)
	if named {
		r.Store, r.Published = store, published
	}
}

// Pending reports whether the preparation of exactly this table is unfinished.
func (r Record) Pending(table string) bool {
	return r.Unfinished != "" && strings.EqualFold(r.Unfinished, table)
}
