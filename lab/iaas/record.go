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

// Phase is the stage of an object's life. It is recorded before the work that it announces, so that after a crash the
// next holder knows which work was interrupted. It removes an object that was being created, because its CID was not
// returned, and completes a removal.
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
	Director value.Name     `json:"director_uuid,omitzero"` // owner of the object
	Metadata value.Metadata `json:"metadata,omitempty"`
}

// Stemcell is an uploaded image with its own CID.
type Stemcell struct {
	Base
	Image Digest `json:"image"` // digest of the image, which other stemcells may share
}

// Disk is a persistent disk.
type Disk struct {
	Base
	Size Size `json:"size"`
	VM   CID  `json:"vm,omitzero"` // the VM to which it is attached
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
	// Registry means that the agent reads its settings from the registry, as in version 1.
	Registry bool            `json:"registry,omitempty"`
	Shape    Shape           `json:"shape"`
	Networks fabric.Networks `json:"networks"`
	// On means that the VM should run: the next holder starts it.
	On bool `json:"on"`
	// Settings is the document for the agent. It contains secrets, so the record has mode 0600.
	Settings json.RawMessage `json:"settings"`
}

// Shape has the resources of a VM type.
type Shape struct {
	Engine        string `json:"engine,omitempty"`          // "qemu" or "container"
	CPU           int    `json:"cpu,omitempty"`             // number of processors
	RAM           int    `json:"ram,omitempty"`             // in MiB
	EphemeralDisk int    `json:"ephemeral_disk"`            // in MiB; 0 means none
	RootDisk      int    `json:"root_disk,omitempty"`       // in MiB
	Source        string `json:"settings_source,omitempty"` // "configdrive", "cdrom" or "http"
	// DiskBus is the bus of all disks: machine.Virtio or machine.SCSI.
	DiskBus  machine.Bus `json:"disk_bus,omitempty"`
	Firmware string      `json:"firmware,omitempty"` // "bios" or "uefi"
	// RawStorage adds a disk without a file system for jobs.
	RawStorage bool `json:"raw_instance_storage,omitempty"`
}

// store stores the records. Each object has a directory with all of its files.
type store struct{ dir string }

// path returns the path of an object's directory, or of a file in it.
func (s store) path(cid CID, file ...string) string {
	return filepath.Join(append([]string{s.dir, string(cid.class), cid.String()}, file...)...)
}

const recordName = "record.json"

// put writes a record durably, and creates the object's directory if needed.
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

// remove removes an object with all of its files. It removes the record last, because that says that the object is
// being removed.
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

// load reads the records of a class. It removes a directory without a record, which a crash during creation has left
// before anything else was written. It ignores names that are not CIDs.
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
