package machine

import (
	"github.com/sirupsen/logrus"

	"cambium/platform/disk"
	"cambium/platform/filesystem"
	"cambium/platform/filesystem/probe"
	"cambium/platform/mount"
	"cambium/storage/decide"
)

// compare compares a file system with its disk and reports a shortfall. failed is the error of growing it.
func (m *Machine) compare(f decide.SizeCheck, failed error) {
	if f.Directory == "" {
		return
	}
	e, mounted, err := mount.At(f.Directory)
	if err == nil && !mounted {
		return
	}
	o := decide.Sizes{Partition: f.Partition, Failed: failed,
		Persistent: f.Directory == m.Dirs.Store() || f.Directory == m.Dirs.StoreMigrationTarget()}
	if err == nil && f.Partition > 0 {
		o.Disk, err = disk.Inspect(f.Disk)
	}
	if err == nil {
		o.FileSystem, o.Device, err = filesystem.Lengths(f.Device(), f.Directory, probe.Kind(e.Type))
	}
	if err != nil {
		m.Log.WithError(err).WithField("mount", f.Directory).Warn("cannot compare a file system with its disk")
		return
	}
	text := decide.Shortfall(o)
	if text != "" {
		m.Log.WithFields(logrus.Fields{"device": f.Device(), "mount": f.Directory, "reason": text}).
			Warn("a file system is smaller than its disk")
	}
	m.reportShortfall(f.Directory, text)
}

// reportShortfall calls Shortfall. The caller holds the lock.
func (m *Machine) reportShortfall(dir, text string) {
	if m.Shortfall == nil || text == "" && !m.short[dir] {
		return
	}
	m.short[dir] = text != ""
	m.Shortfall(dir, text)
}

// withdrawShortfalls ends the reports about file systems that are no longer mounted. The caller holds the lock.
func (m *Machine) withdrawShortfalls() {
	for dir, short := range m.short {
		if _, mounted, err := mount.At(dir); short && err == nil && !mounted {
			m.reportShortfall(dir, "")
		}
	}
}
