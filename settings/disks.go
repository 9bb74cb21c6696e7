package settings

import (
	"encoding/json"
	"maps"
	"slices"

	"cambium/internal/jsontree"
	"cambium/internal/report"
	"cambium/internal/secret"
)

func decodeDisks(v jsontree.Value, d *Disks) {
	f := v.Fields()
	system := f.Get("system")
	if system.Kind() == jsontree.Object {
		// The documentation of CPI API v2 shows an object here, upstream wants a string.
		path := system.Fields()
		scalar(path.Get("path"), &d.System)
	} else {
		scalar(system, &d.System)
	}
	if ephemeral := decodeHint(f.Get("ephemeral")); !ephemeral.Empty() {
		d.Ephemeral = &ephemeral
	}
	if persistent := f.Get("persistent"); persistent.Present() {
		d.Persistent = map[string]DiskHint{}
		for cid, value := range persistent.Fields().All() {
			d.Persistent[cid] = decodeHint(value)
			if cid == "" {
				value.Warnf("a disk without CID cannot be mounted")
			}
		}
	}
	raw := f.Get("raw_ephemeral")
	for _, item := range raw.Items() {
		d.RawEphemeral = append(d.RawEphemeral, decodeRawEphemeral(item))
	}
	f.Done(jsontree.Tolerate)
}

// DecodeHint reads what a CPI returned from attach_disk and the Director passes on: a string,
// an object or null.
func DecodeHint(raw secret.JSON) (DiskHint, error) {
	var rep report.Report
	if raw.Empty() {
		return DiskHint{}, nil
	}
	v := jsontree.Parse("disk hint", raw.Reveal(), &rep)
	if v.Kind() == jsontree.List || v.Kind() == jsontree.Bool {
		v.Expected("a string or an object")
	}
	h := decodeHint(v)
	return h, rep.Err()
}

func decodeHint(v jsontree.Value) (h DiskHint) {
	switch v.Kind() {
	case jsontree.Absent, jsontree.Null:
	case jsontree.String, jsontree.Number:
		scalar(v, &h.Path)
		h.VolumeID, h.Bare = h.Path, true
	case jsontree.Object:
		f := v.Fields()
		scalar(f.Get("path"), &h.Path)
		scalar(f.Get("volume_id"), &h.VolumeID)
		scalar(f.Get("id"), &h.DeviceID)
		scalar(f.Get("lun"), &h.LUN)
		scalar(f.Get("host_device_id"), &h.HostDeviceID)
		iscsi := f.Get("iscsi_settings")
		switch iscsi.Kind() {
		case jsontree.Object:
			h.ISCSI = decodeISCSI(iscsi, "initiator_name", "username", "target", "password")
		case jsontree.Absent, jsontree.Null:
		default:
			iscsi.Warnf("expected an object, got %s; ignored", iscsi.Kind())
		}
		f.Done(jsontree.Tolerate)
		// Upstream reads all members of a hint, known or not, and could not read a cached copy with such a number.
		if json.Unmarshal(v.Raw(), new(any)) != nil {
			v.Errorf("holds a number that is out of range")
		}
	default:
		v.Warnf("expected a string or an object, got %s; taken as an empty hint", v.Kind())
	}
	return h
}

func decodeISCSI(v jsontree.Value, initiator, username, target, password string) *ISCSI {
	var i ISCSI
	f := v.Fields()
	scalar(f.Get(initiator), &i.InitiatorName)
	scalar(f.Get(username), &i.Username)
	scalar(f.Get(target), &i.Target)
	var clear string
	scalar(f.Get(password), &clear)
	i.Password = secret.New(clear)
	f.Done(jsontree.Tolerate)
	return &i
}

// decodeRawEphemeral reads upstream's spelling without underscores, which its cached copy has,
// and the one with, which it silently drops.
func decodeRawEphemeral(v jsontree.Value) (h DiskHint) {
	if v.Kind() != jsontree.Object {
		return decodeHint(v)
	}
	h, _ = decodeAttributes(v)
	return h
}

// decodeAttributes reads a disk record in the form of persistent_disk_hints.json.
func decodeAttributes(v jsontree.Value) (h DiskHint, d PersistentDisk) {
	f := v.Fields()
	scalar(f.Get("ID"), &h.CID)
	scalar(f.Get("Path"), &h.Path)
	scalar(f.Get("Lun"), &h.LUN)
	either(f, "DeviceID", "device_id", &h.DeviceID)
	either(f, "VolumeID", "volume_id", &h.VolumeID)
	either(f, "HostDeviceID", "host_device_id", &h.HostDeviceID)
	if iscsi := f.Get("ISCSISettings"); iscsi.Present() {
		if got := decodeISCSI(iscsi, "InitiatorName", "Username", "Target", "Password"); *got != (ISCSI{}) {
			h.ISCSI = got
		}
	}
	scalar(f.Get("FileSystemType"), &d.FileSystem)
	f.Get("MountOptions").Strings(&d.MountOptions)
	scalar(f.Get("Partitioner"), &d.Partitioner)
	f.Done(jsontree.Tolerate)
	d.CID, d.Hint = h.CID, h
	d.Hint.CID = ""
	return h, d
}

// either reads a member under two spellings. Upstream's files hold the first one even when it
// is empty, which must not hide the second.
func either(f *jsontree.Fields, first, second string, into *string) {
	scalar(f.Get(second), into)
	var got string
	if scalar(f.Get(first), &got); got != "" {
		*into = got
	}
}

// DecodeHints reads persistent_disk_hints.json.
func DecodeHints(raw secret.JSON) (map[string]PersistentDisk, report.Report) {
	var rep report.Report
	all := map[string]PersistentDisk{}
	root := jsontree.Parse("persistent_disk_hints.json", raw.Reveal(), &rep)
	if root.Kind() == jsontree.Absent {
		return all, rep
	}
	if root.Kind() != jsontree.Object && root.Kind() != jsontree.Null {
		root.Expected("an object")
	}
	for cid, value := range root.Fields().All() {
		_, d := decodeAttributes(value)
		d.CID = cid
		all[cid] = d
	}
	rep.Sort()
	return all, rep
}

// Disk completes a hint with the env values that apply to every persistent disk.
func (s Settings) Disk(cid string, h DiskHint) PersistentDisk {
	return PersistentDisk{
		CID:          cid,
		Hint:         h.clone(),
		FileSystem:   s.Env.PersistentDiskFS,
		MountOptions: slices.Clone(s.Env.PersistentDiskMountOptions),
		Partitioner:  s.Env.PersistentDiskPartitioner,
	}
}

// PersistentDisks returns the disks of the document with their env values, overlaid by the
// given records, which win completely: they are newer, since the Director sent them.
func (s Settings) PersistentDisks(records map[string]PersistentDisk) map[string]PersistentDisk {
	all := make(map[string]PersistentDisk, len(s.Disks.Persistent)+len(records))
	for cid, hint := range s.Disks.Persistent {
		all[cid] = s.Disk(cid, hint)
	}
	for cid, d := range records {
		all[cid] = d.clone()
	}
	return all
}

func (h DiskHint) clone() DiskHint {
	if h.ISCSI != nil {
		copied := *h.ISCSI
		h.ISCSI = &copied
	}
	return h
}

func (d PersistentDisk) clone() PersistentDisk {
	d.Hint = d.Hint.clone()
	d.MountOptions = slices.Clone(d.MountOptions)
	return d
}

// sortedKeys makes output that does not depend on map order.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
