package iaas

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"cambium/internal/atomicfile"
	"cambium/lab/iaas/fabric"
	"cambium/lab/machine"
)

// Phase is how far an object is. It is written before the work that it announces, so that after a
// crash the next holder knows what was under way: what was being made is removed, since its
// CID was never answered, and a removal is finished.
type Phase string

// The phases.
const (
	Creating Phase = "creating"
	Ready    Phase = "ready"
	Deleting Phase = "deleting"
)

// Base is what the records of all objects have.
type Base struct {
	CID      string            `json:"cid"`
	Phase    Phase             `json:"phase"`
	Created  time.Time         `json:"created"`
	Director string            `json:"director_uuid,omitempty"` // whose it is
	Metadata map[string]string `json:"metadata,omitempty"`
}

// Stemcell is an uploaded image under a CID of its own.
type Stemcell struct {
	Base
	Image      string          `json:"image"` // digest of the bytes, which other stemcells may share
	Properties json.RawMessage `json:"cloud_properties,omitempty"`
}

// Disk is a persistent disk.
type Disk struct {
	Base
	Size       int             `json:"size"` // MiB
	Properties json.RawMessage `json:"cloud_properties,omitempty"`
	VM         string          `json:"vm,omitempty"` // what it is attached to
}

// Snapshot is a copy of a disk.
type Snapshot struct {
	Base
	Disk string `json:"disk"`
	Size int    `json:"size"` // MiB
}

// VM is a machine.
type VM struct {
	Base
	AgentID     string `json:"agent_id"`
	Image       string `json:"image"`
	StemcellAPI int    `json:"stemcell_api_version"`
	// Registry is whether the agent gets its settings from the registry, as in version 1.
	Registry bool                      `json:"registry,omitempty"`
	Shape    Shape                     `json:"shape"`
	Networks map[string]fabric.Network `json:"networks"`
	// On is whether it is meant to run: a holder that starts switches it on then.
	On bool `json:"on"`
	// Settings are what the agent is handed. They hold secrets, hence the mode of the file.
	Settings json.RawMessage `json:"settings"`
}

// Shape is what a VM type asks for.
type Shape struct {
	Engine        string `json:"engine,omitempty"`          // "qemu" or "container"
	CPU           int    `json:"cpu,omitempty"`             // processors
	RAM           int    `json:"ram,omitempty"`             // MiB
	EphemeralDisk int    `json:"ephemeral_disk,omitempty"`  // MiB
	RootDisk      int    `json:"root_disk,omitempty"`       // MiB
	Source        string `json:"settings_source,omitempty"` // "configdrive", "cdrom" or "http"
	// DiskBus is what all disks are connected with, machine.Virtio or machine.SCSI.
	DiskBus  machine.Bus `json:"disk_bus,omitempty"`
	Firmware string      `json:"firmware,omitempty"` // "bios" or "uefi"
}

// The kinds of objects, which are also the directories of their records.
const (
	stemcells = "stemcells"
	vms       = "vms"
	disks     = "disks"
	snapshots = "snapshots"
	networks  = "networks"
)

// newCID makes a name that is never used twice. The digits of a disk's fill what a virtio serial
// number holds, so that the name is unique there too.
func newCID(kind string) string {
	prefix := map[string]string{stemcells: "sc-", vms: "vm-", disks: "d-", snapshots: "snap-", networks: "net-"}[kind]
	var random [9]byte
	_, _ = rand.Read(random[:]) // never fails, see its documentation
	return prefix + hex.EncodeToString(random[:])
}

// store keeps the records: a directory for each object with everything of it.
type store struct{ dir string }

func (s store) path(kind, cid string, more ...string) string {
	return filepath.Join(append([]string{s.dir, kind, cid}, more...)...)
}

const recordName = "record.json"

// put writes a record durably; the object's directory is made with the first.
func (s store) put(kind, cid string, record any) error {
	data, err := json.MarshalIndent(record, "", "  ")
	if err != nil {
		return err
	}
	dir := s.path(kind, cid)
	if err := os.Mkdir(dir, 0o700); err == nil {
		err = atomicfile.SyncDir(filepath.Dir(dir))
		if err != nil {
			return err
		}
	} else if !errors.Is(err, os.ErrExist) {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, recordName), append(data, '\n'), 0o600)
}

// remove removes an object and everything of it. The record goes last: as long as it is there, it
// says that the object is being removed.
func (s store) remove(kind, cid string) error {
	dir := s.path(kind, cid)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() == recordName {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return atomicfile.SyncDir(filepath.Dir(dir))
}

// load reads the records of a kind. A directory without a record is of a creation that a crash
// cut off before anything else was made; it is removed.
func load[Record any](s store, kind string) (map[string]*Record, error) {
	all := map[string]*Record{}
	if err := os.MkdirAll(filepath.Join(s.dir, kind), 0o700); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(filepath.Join(s.dir, kind))
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		data, err := os.ReadFile(s.path(kind, e.Name(), recordName))
		if errors.Is(err, os.ErrNotExist) {
			if err := os.RemoveAll(s.path(kind, e.Name())); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		r := new(Record)
		if err := json.Unmarshal(data, r); err != nil {
			return nil, fmt.Errorf("record of %s: %w", e.Name(), err)
		}
		all[e.Name()] = r
	}
	return all, nil
}
