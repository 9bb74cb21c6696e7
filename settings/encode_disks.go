package settings

import (
	"cambium/internal/jsontree"
	"cambium/internal/secret"
)

func (w *writer) disks(original jsontree.Value, d Disks) {
	w.object(original,
		always("system", func() { w.text(d.System) }),
		always("ephemeral", func() {
			switch {
			case d.Ephemeral != nil:
				w.hint(original.At("ephemeral"), *d.Ephemeral)
			case original.At("ephemeral").Kind() == jsontree.String:
				w.text("")
			default:
				w.literal("null")
			}
		}),
		always("persistent", func() {
			if d.Persistent == nil {
				w.literal("null")
				return
			}
			var fields []field
			for _, cid := range sortedKeys(d.Persistent) {
				hint := d.Persistent[cid]
				fields = append(fields, always(cid, func() { w.hint(original.At("persistent").Member(cid), hint) }))
			}
			w.object(jsontree.Value{}, fields...)
		}),
		always("raw_ephemeral", func() {
			list(w, d.RawEphemeral, func(h DiskHint) { w.attributes(PersistentDisk{CID: h.CID, Hint: h}) })
		}),
	)
}

// hint keeps the form the CPI used, but with strings for all values: upstream ends the process
// when it meets anything else.
func (w *writer) hint(original jsontree.Value, h DiskHint) {
	if h.Bare {
		w.text(h.Path)
		return
	}
	if h.Empty() && original.Kind() != jsontree.Object {
		w.literal("null")
		return
	}
	text := func(key, value string) field {
		return field{key: key, write: func() { w.text(value) }, only: value != ""}
	}
	w.object(original,
		text("path", h.Path),
		text("volume_id", h.VolumeID),
		text("id", h.DeviceID),
		text("lun", h.LUN),
		text("host_device_id", h.HostDeviceID),
		field{key: "iscsi_settings", only: h.ISCSI != nil, write: func() {
			w.object(original.At("iscsi_settings"),
				always("initiator_name", func() { w.text(h.ISCSI.InitiatorName) }),
				always("username", func() { w.text(h.ISCSI.Username) }),
				always("target", func() { w.text(h.ISCSI.Target) }),
				always("password", func() { w.secret(h.ISCSI.Password) }))
		}},
	)
}

// attributes writes the record form of persistent_disk_hints.json and raw_ephemeral.
func (w *writer) attributes(d PersistentDisk) {
	var iscsi ISCSI
	if d.Hint.ISCSI != nil {
		iscsi = *d.Hint.ISCSI
	}
	w.object(jsontree.Value{},
		always("ID", func() { w.text(d.CID) }),
		always("DeviceID", func() { w.text(d.Hint.DeviceID) }),
		always("VolumeID", func() { w.text(d.Hint.VolumeID) }),
		always("Lun", func() { w.text(d.Hint.LUN) }),
		always("HostDeviceID", func() { w.text(d.Hint.HostDeviceID) }),
		always("Path", func() { w.text(d.Hint.Path) }),
		always("ISCSISettings", func() {
			w.object(jsontree.Value{},
				always("InitiatorName", func() { w.text(iscsi.InitiatorName) }),
				always("Username", func() { w.text(iscsi.Username) }),
				always("Target", func() { w.text(iscsi.Target) }),
				always("Password", func() { w.secret(iscsi.Password) }))
		}),
		always("FileSystemType", func() { w.text(d.FileSystem) }),
		always("MountOptions", func() { w.strings(d.MountOptions) }),
		always("Partitioner", func() { w.text(d.Partitioner) }),
	)
}

// EncodeHints writes persistent_disk_hints.json, in clear.
func EncodeHints(disks map[string]PersistentDisk) secret.JSON {
	w := &writer{}
	var fields []field
	for _, cid := range sortedKeys(disks) {
		d := disks[cid]
		fields = append(fields, always(cid, func() { w.attributes(d) }))
	}
	w.object(jsontree.Value{}, fields...)
	return secret.NewJSON(w.out.Bytes())
}
