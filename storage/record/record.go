// Package record holds the agent's records about disks in one value: which disk is the store, which disk has which CID,
// what is unfinished, and the requests of operators. Package recordfile reads and writes it.
package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Ephemeral is the key of the ephemeral disk. CIDs never begin with a dot.
const Ephemeral = ".ephemeral"

// version is the version of the file. Newer versions are refused, since they may contain facts that this agent would
// ignore.
const version = 1

// Record holds all records about the disks of one agent.
type Record struct {
	Version int `json:"version"`
	// Store is the CID of the disk that this agent last mounted on the store, or "".
	Store string `json:"store,omitempty"`
	// Published is set if managed_disk_settings.json, which other agents read and write, names it, too.
	Published bool `json:"published,omitempty"`
	// Disks holds the disks that have been a store, by CID. They are never formatted, and a CID is never used for
	// another disk.
	Disks map[string]Disk `json:"disks,omitempty"`
	// Unfinished identifies a partition table, or partitions after the root partition, that are being prepared for the
	// ephemeral data. It does not apply to any others.
	Unfinished string `json:"unfinished,omitempty"`
	// ReadOnly is set while a migration keeps the store read-only.
	ReadOnly bool `json:"read_only,omitempty"`
	// Asked holds the requests of operators, by CID.
	Asked map[string]Action `json:"asked,omitempty"`
	// Shown identifies, by CID, the disk that an operator was shown. The request applies only to that disk.
	Shown map[string]string `json:"shown,omitempty"`
}

// Action is an operator's request about a disk. The agent follows it at its next decision about that disk.
type Action string

// Requests of operators.
const (
	Accept  Action = "accept"  // use the disk found for this CID, and record it
	Release Action = "release" // delete the record of this CID
	Format  Action = "format"  // format the disk once, whatever it contains
)

// Actions lists all actions.
var Actions = []Action{Accept, Release, Format}

// New returns an empty record.
func New() Record {
	return Record{Version: version, Disks: map[string]Disk{}, Asked: map[string]Action{}, Shown: map[string]string{}}
}

// Decode parses a record. It returns an error, and no record, if any part is invalid.
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

// Encode returns the content of the file.
func (r Record) Encode() ([]byte, error) { return json.Marshal(r) }

// StoreDisk returns the CID of the disk that was last mounted on the store. managedCID is the one in
// managed_disk_settings.json. If this agent has recorded none, or has published its own and the file now names another
// disk, another agent wrote the file: then managedCID is returned, and byOther is set.
func (r Record) StoreDisk(managedCID string) (cid string, byOther bool) {
	if r.Store != "" && (!r.Published || managedCID == r.Store || managedCID == "") {
		return r.Store, false // a lost file names no other disk
	}
	return managedCID, managedCID != ""
}

// Accepted returns the CID of the disk that an operator has accepted, or "" if there is none or more than one.
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

// EndRequest removes the request about a disk.
func (r *Record) EndRequest(cid string) {
	delete(r.Asked, cid)
	delete(r.Shown, cid)
}

// Lapsed reports whether the request was made about a disk other than the one found.
func (r Record) Lapsed(cid, found string) bool {
	shown, known := r.Shown[cid]
	return known && r.Asked[cid] != "" && shown != found
}

// Remove records that a disk is no longer attached. Its identity stays on record, so that it is never formatted.
func (r *Record) Remove(cid string) {
	r.EndRequest(cid)
	if r.Store == cid {
		r.Store, r.Published, r.ReadOnly = "", false, false
	}
}

// Release removes all records of a disk, including its identity. If settings or hints still name it, it stays on record
// as the store: otherwise jobs would start with an empty directory.
func (r *Record) Release(cid string, named bool) {
	store, published := r.Store, r.Published
	r.Remove(cid)
	delete(r.Disks, cid)
	if named {
		r.Store, r.Published = store, published
	}
}

// Pending reports whether the preparation of this very table is unfinished.
func (r Record) Pending(table string) bool {
	return r.Unfinished != "" && strings.EqualFold(r.Unfinished, table)
}
