package settings

import (
	"encoding/json"
	"maps"

	"cambium/internal/jsondoc"
	"cambium/internal/report"
	"cambium/internal/secret"
)

// UnmarshalJSON decodes a string or an object. The rules have rejected all other values.
func (h *DiskHint) UnmarshalJSON(data []byte) error {
	*h = DiskHint{}
	if jsondoc.KindOf(string(data)) == jsondoc.String {
		err := json.Unmarshal(data, &h.Path)
		h.VolumeID, h.Bare = h.Path, true
		return err
	}
	type object DiskHint
	return json.Unmarshal(data, (*object)(h))
}

// MarshalJSON encodes the hint without secrets, as a string or an object, whichever the CPI used.
func (h DiskHint) MarshalJSON() ([]byte, error) {
	if h.Bare {
		return json.Marshal(h.Path)
	}
	type object DiskHint
	return json.Marshal(object(h))
}

// record is a disk in persistent_disk_hints.json, whose keys are the field names of cloudfoundry/bosh-agent. S is
// string to encode the password in clear, and secret.String otherwise.
type record[S any] struct {
	ID, DeviceID, VolumeID, Lun, HostDeviceID, Path string
	ISCSISettings                                   struct {
		InitiatorName, Username, Target string
		Password                        S
	}
	FileSystemType string
	MountOptions   []string
	Partitioner    string
}

// RawDisk is a member of raw_ephemeral. ID is the disk's CID.
type RawDisk record[secret.String]

// Hint returns the hint in the record.
func (r RawDisk) Hint() DiskHint {
	h := DiskHint{Path: r.Path, VolumeID: r.VolumeID, DeviceID: r.DeviceID, LUN: r.Lun, HostDeviceID: r.HostDeviceID}
	if iscsi := ISCSI(r.ISCSISettings); iscsi != (ISCSI{}) {
		h.ISCSI = &iscsi
	}
	return h
}

// RawHints returns the hints of the disks in raw_ephemeral.
func (d Disks) RawHints() (hints []DiskHint) {
	for _, r := range d.RawEphemeral {
		hints = append(hints, r.Hint())
	}
	return hints
}

// DecodeHint parses the hint that a CPI returned from attach_disk and the Director passed on: a string, an object or
// null.
func DecodeHint(raw secret.JSON) (h DiskHint, err error) {
	if raw.Empty() {
		return h, nil
	}
	d, _ := jsondoc.Decode("disk hint", raw.Reveal(), &h, jsondoc.Tolerate,
		append(hintRules(""), jsondoc.Rule{Rewrite: func(raw string, say func(report.Severity, string)) string {
			return hint(raw, func(_ report.Severity, message string) { say(report.Error, message) })
		}})...)
	return h, d.Findings().Err()
}

// DecodeHints parses persistent_disk_hints.json.
func DecodeHints(raw secret.JSON) (map[string]PersistentDisk, report.Report) {
	var records map[string]RawDisk
	d, _ := jsondoc.Decode("persistent_disk_hints.json", raw.Reveal(), &records, jsondoc.Tolerate, recordRules("*.")...)
	all := map[string]PersistentDisk{}
	for cid, r := range records {
		all[cid] = PersistentDisk{CID: cid, Hint: r.Hint(), FileSystem: r.FileSystemType, MountOptions: r.MountOptions,
			Partitioner: r.Partitioner}
	}
	return all, d.Findings()
}

// EncodeHints returns the content of persistent_disk_hints.json, with passwords in clear.
func EncodeHints(disks map[string]PersistentDisk) secret.JSON {
	all := map[string]record[string]{}
	for cid, d := range disks {
		h := d.Hint
		r := record[string]{ID: d.CID, DeviceID: h.DeviceID, VolumeID: h.VolumeID, Lun: h.LUN,
			HostDeviceID: h.HostDeviceID,
			Path:         h.Path, FileSystemType: d.FileSystem, MountOptions: d.MountOptions, Partitioner: d.Partitioner}
		if i := h.ISCSI; i != nil {
			to := &r.ISCSISettings
			to.InitiatorName, to.Username, to.Target, to.Password = i.InitiatorName, i.Username, i.Target,
				i.Password.Reveal()
		}
		all[cid] = r
	}
	raw, _ := json.Marshal(all) // strings only
	return secret.NewJSON(raw)
}

// Disk combines a hint with the env values that apply to every persistent disk.
func (s Settings) Disk(cid string, h DiskHint) PersistentDisk {
	return PersistentDisk{
		CID:          cid,
		Hint:         h,
		FileSystem:   s.Env.PersistentDiskFS,
		MountOptions: s.Env.PersistentDiskMountOptions,
		Partitioner:  s.Env.PersistentDiskPartitioner,
	}
}

// PersistentDisks returns the disks of the settings with their env values. Disks in records replace those with the same
// CID: the Director sent them later.
func (s Settings) PersistentDisks(records map[string]PersistentDisk) map[string]PersistentDisk {
	all := make(map[string]PersistentDisk, len(s.Disks.Persistent)+len(records))
	for cid, hint := range s.Disks.Persistent {
		all[cid] = s.Disk(cid, hint)
	}
	maps.Copy(all, records)
	return all
}
