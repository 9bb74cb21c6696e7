package iaas

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"cambium/internal/atomicfile"
	"cambium/lab/iaas/fabric"
	"cambium/lab/iaas/value"
	"cambium/lab/machine"
)

// Phase is the stage in an object's life. It is recorded before the work that it announces, so that after a crash the
// next holder knows which work was interrupted: it removes an object in creation, since the CID was never answered,
// and finishes a removal.
type Phase string

// The phases.
const (
	Creating Phase = "creating"
	Ready    Phase = "ready"
	Deleting Phase = "deleting"
)

// Base has the fields that the records of all objects share.
type Base struct {
	CID      CID            `json:"cid"`
	Phase    Phase          `json:"phase"`
	Created  time.Time      `json:"created"`
	Director value.Name     `json:"director_uuid,omitzero"` // whose it is
	Metadata value.Metadata `json:"metadata,omitempty"`
}

// Stemcell is an uploaded image under a CID of its own.
type Stemcell struct {
	Base
	Image Digest `json:"image"` // of the bytes, which other stemcells may share
}

// Disk is a persistent disk.
type Disk struct {
	Base
	Size Size `json:"size"`
	VM   CID  `json:"vm,omitzero"` // what it is attached to
}

// Snapshot is a copy of a disk.
type Snapshot struct {
	Base
	Disk CID  `json:"disk"`
	Size Size `json:"size"`
}

// VM is a machine.
type VM struct {
	Base
	AgentID     value.Name `json:"agent_id"`
	Image       Digest     `json:"image"`
	StemcellAPI int        `json:"stemcell_api_version"`
	// Registry means that the agent gets its settings from the registry, as in version 1.
	Registry bool            `json:"registry,omitempty"`
	Shape    Shape           `json:"shape"`
	Networks fabric.Networks `json:"networks"`
	// On means that the VM is meant to run: the next holder switches it on when it starts.
	On bool `json:"on"`
	// Settings is the document handed to the agent. It holds secrets, hence the mode of the file.
	Settings json.RawMessage `json:"settings"`
}

// Shape describes the resources that a VM type asks for.
type Shape struct {
	Engine        string `json:"engine,omitempty"`          // "qemu" or "container"
	CPU           int    `json:"cpu,omitempty"`             // processors
	RAM           int    `json:"ram,omitempty"`             // MiB
	EphemeralDisk int    `json:"ephemeral_disk"`            // MiB, 0 for none
	RootDisk      int    `json:"root_disk,omitempty"`       // MiB
	Source        string `json:"settings_source,omitempty"` // "configdrive", "cdrom" or "http"
	// DiskBus is the bus of all disks, machine.Virtio or machine.SCSI.
	DiskBus  machine.Bus `json:"disk_bus,omitempty"`
	Firmware string      `json:"firmware,omitempty"` // "bios" or "uefi"
	// RawStorage adds a disk that jobs use without a file system.
	RawStorage bool `json:"raw_instance_storage,omitempty"`
}

// store keeps the records: a directory for each object with everything of it.
type store struct{ dir string }

// path is that of an object, or of a file of it.
func (s store) path(cid CID, file ...string) string {
	return filepath.Join(append([]string{s.dir, string(cid.class), cid.String()}, file...)...)
}

const recordName = "record.json"

// put writes a record durably; the object's directory is made with the first.
func (s store) put(cid CID, record any) error {
	data, err := json.MarshalIndent(record, "", "  ")
	if err != nil {
		return err
	}
	dir := s.path(cid)
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
func (s store) remove(cid CID) error {
	dir := s.path(cid)
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

// load reads the records of a class. A directory without a record is of a creation that a crash cut off before anything
// else was made; it is removed. What has a name that is not a CID is left alone.
func load[Record any](s store, class Class) (map[CID]*Record, error) {
	all := map[CID]*Record{}
	if err := os.MkdirAll(filepath.Join(s.dir, string(class)), 0o700); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(filepath.Join(s.dir, string(class)))
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		cid, err := ParseCID(class, e.Name())
		if err != nil {
			continue
		}
		data, err := os.ReadFile(s.path(cid, recordName))
		if errors.Is(err, os.ErrNotExist) {
			if err := os.RemoveAll(s.path(cid)); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		r := new(Record)
		if err := json.Unmarshal(data, r); err != nil {
			return nil, fmt.Errorf("record of %s: %w", cid, err)
		}
		all[cid] = r
	}
	return all, nil
}
