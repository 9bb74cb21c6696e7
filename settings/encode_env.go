package settings

import (
	"strconv"

	"cambium/internal/jsontree"
)

func (w *writer) env(original jsontree.Value, e Env) {
	w.object(original,
		always("bosh", func() { w.boshEnv(original.At("bosh"), e.Bosh) }),
		always("persistent_disk_fs", func() { w.text(e.PersistentDiskFS) }),
		always("persistent_disk_mount_options", func() { w.strings(e.PersistentDiskMountOptions) }),
		always("persistent_disk_partitioner", func() { w.text(e.PersistentDiskPartitioner) }),
		field{key: "persistent_disk_foreign", write: func() { w.text(e.PersistentDiskForeign) }, only: e.PersistentDiskForeign != ""},
		field{key: "persistent_disk_blank", write: func() { w.text(e.PersistentDiskBlank) }, only: e.PersistentDiskBlank != ""},
	)
}

func (w *writer) boshEnv(original jsontree.Value, b BoshEnv) {
	nested := func(at jsontree.Value, key string, write func()) { w.object(at, always(key, write)) }
	w.object(original,
		always("agent", func() {
			agent := original.At("agent")
			w.object(agent,
				always("settings", func() {
					nested(agent.At("settings"), "tmpfs", func() { w.bool(b.SettingsTmpfs) })
				}),
				field{key: "task_answer_hold", only: b.TaskAnswerHoldSeconds != nil, write: func() {
					w.literal(strconv.FormatUint(*b.TaskAnswerHoldSeconds, 10))
				}},
				field{key: "early_pings", only: b.EarlyPings != nil, write: func() { w.bool(*b.EarlyPings) }},
				field{key: "firewall", only: b.Firewall != nil, write: func() { w.bool(*b.Firewall) }},
				field{key: "persistent_disk_foreign", only: b.PersistentDiskForeign != "", write: func() { w.text(b.PersistentDiskForeign) }})
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
