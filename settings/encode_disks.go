package settings

import (
	"strconv"

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

// Encode writes update_settings.json, in clear.
func (u Update) Encode() secret.JSON {
	w := &writer{}
	fields := []field{
		always("blobstores", func() { w.blobstores(u.at("blobstores"), u.Blobstores) }),
		always("disk_associations", func() {
			list(w, u.Associations, func(a DiskAssociation) {
				w.object(jsontree.Value{},
					always("name", func() { w.text(a.Name) }),
					always("cid", func() { w.text(a.CID) }))
			})
		}),
		always("mbus", func() { w.bus(u.at("mbus"), u.Mbus) }),
		always("trusted_certs", func() { w.text(u.TrustedCerts) }),
	}
	for _, m := range u.unknownMembers() {
		fields = append(fields, always(m.key, func() { w.out.Write(m.raw.Reveal()) }))
	}
	w.object(jsontree.Value{}, fields...)
	return secret.NewJSON(w.out.Bytes())
}

func (u Update) at(key string) jsontree.Value {
	if u.document == nil {
		return jsontree.Value{}
	}
	return u.document.root.At(key)
}

// unknownMembers are those of the decoded document, or those that Apply collected.
func (u Update) unknownMembers() []unknownMember {
	if u.document == nil {
		return u.unknown
	}
	known := []field{{key: "blobstores"}, {key: "disk_associations"}, {key: "mbus"}, {key: "trusted_certs"}}
	return unknownMembers(u.document.root, known)
}

func mergeUnknown(older, newer []unknownMember) (all []unknownMember) {
	for _, m := range append(older[:len(older):len(older)], newer...) {
		replaced := false
		for i := range all {
			if all[i].key == m.key {
				all[i], replaced = m, true
			}
		}
		if !replaced {
			all = append(all, m)
		}
	}
	return all
}

func (w *writer) env(original jsontree.Value, e Env) {
	w.object(original,
		always("bosh", func() { w.boshEnv(original.At("bosh"), e.Bosh) }),
		always("persistent_disk_fs", func() { w.text(e.PersistentDiskFS) }),
		always("persistent_disk_mount_options", func() { w.strings(e.PersistentDiskMountOptions) }),
		always("persistent_disk_partitioner", func() { w.text(e.PersistentDiskPartitioner) }),
		field{key: "persistent_disk_foreign", write: func() { w.text(e.PersistentDiskForeign) }, only: e.PersistentDiskForeign != ""},
	)
}

func (w *writer) boshEnv(original jsontree.Value, b BoshEnv) {
	nested := func(at jsontree.Value, key string, write func()) { w.object(at, always(key, write)) }
	w.object(original,
		always("agent", func() {
			agent := original.At("agent")
			nested(agent, "settings", func() {
				nested(agent.At("settings"), "tmpfs", func() { w.bool(b.SettingsTmpfs) })
			})
		}),
		always("password", func() { w.secret(b.Password) }),
		always("keep_root_password", func() { w.bool(b.KeepRootPassword) }),
		always("remove_dev_tools", func() { w.bool(b.RemoveDevTools) }),
		always("remove_static_libraries", func() { w.bool(b.RemoveStaticLibraries) }),
		always("authorized_keys", func() { w.strings(b.AuthorizedKeys) }),
		always("swap_size", func() {
			if b.SwapSizeMiB == nil {
				w.literal("null")
				return
			}
			w.literal(strconv.FormatUint(*b.SwapSizeMiB, 10))
		}),
		always("mbus", func() { w.bus(original.At("mbus"), b.Mbus) }),
		always("ipv6", func() { nested(original.At("ipv6"), "enable", func() { w.bool(b.IPv6Enable) }) }),
		always("job_dir", func() {
			w.object(original.At("job_dir"),
				always("tmpfs", func() { w.bool(b.JobDirTmpfs) }),
				always("tmpfs_size", func() { w.text(b.JobDirTmpfsSize) }))
		}),
		always("run_dir", func() {
			nested(original.At("run_dir"), "tmpfs_size", func() { w.text(b.RunDirTmpfsSize) })
		}),
		always("blobstores", func() { w.blobstores(original.At("blobstores"), b.Blobstores) }),
		// Upstream leaves an empty list out and so forgets that it was explicit; it reads both.
		field{key: "ntp", write: func() { w.strings(b.NTP) }, only: b.NTP != nil},
		always("parallel", func() { w.literal(strconv.Itoa(b.Parallel)) }),
	)
}
