package machine

import (
	"os"
	"strings"

	"cambium/platform/filesystem"
	"cambium/platform/mount"
	"cambium/storage/decide"
	"cambium/storage/internal/intent"
)

// MigrationMark names the mount that is on the migration target. Directories have no superblock that tells of it.
func (m *Machine) MigrationMark(directories bool) (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	var content filesystem.Content
	if !directories {
		e, there, err := mount.At(m.Dirs.StoreMigrationTarget())
		if err != nil || !there {
			return "", err
		}
		if content, err = filesystem.Probe(e.Source); err != nil {
			return "", err
		}
	}
	return decide.MigrationMark(content, strings.TrimSpace(string(boot))), nil
}

// Remark mounts a disk. If that is the target of an interrupted migration, its mark is recorded again, provided that nothing else has mounted
// it since; there is none from before it is mounted until then. before is what was found on the disk.
func (m *Machine) Remark(cid string, before filesystem.Content, mountIt func() error) error {
	all, err := m.Intents.All()
	if err != nil {
		return err
	}
	open := all[intent.Migration]
	if open.Mark == "" || !open.Moves(cid) {
		return mountIt()
	}
	onlyMarked := decide.OnlyMarked(open, before)
	open.Mark = ""
	if err := m.Intents.Set(intent.Migration, open); err != nil {
		return err
	}
	if err := mountIt(); err != nil || !onlyMarked {
		return err
	}
	m.CrashPoint("mark migration target")
	if open.Mark, err = m.MigrationMark(false); err != nil {
		return err
	}
	return m.Intents.Set(intent.Migration, open)
}
