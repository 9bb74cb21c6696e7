//go:build root

package writes

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cambium/internal/secret"
	"cambium/settings"
)

const mib = 1 << 20

// rootDisk has the agent's own files.
var rootDisk = disk{name: "root", size: 16 * mib}

// operations are those whose writes are recorded.
var operations = []*operation{firstBoot, mountDisk, mountElsewhere, applySpec, migrateDisk, updateSettings,
	growing("ext4", 24*mib, 144*mib), growing("xfs", 304*mib, 432*mib)}

// firstBoot: a machine that has never run an agent, and its first persistent disk.
var firstBoot = &operation{
	name: "first boot", bootRecorded: true, source: "v1",
	disks: []disk{rootDisk, {name: "data", size: 48 * mib}, {name: "vol-1", size: 32 * mib}},
	do: func(m *machine) error {
		m.mark("booted")
		m.writePrecious(m.dirs.Data())
		m.mark("data kept")
		return m.mountVolume()
	},
	booted: func(m *machine, reached map[string]bool) {
		m.wantMounts(map[string]string{m.dirs.Data(): "data 2"})
		if reached["data kept"] {
			m.wantPrecious(m.dirs.Data())
		}
		m.volumeBooted(reached)
	},
	ended: func(m *machine) {
		m.wantMounts(map[string]string{m.dirs.Data(): "data 2", m.dirs.Store(): "vol-1 1"})
		m.wantPrecious(m.dirs.Data())
		m.wantPrecious(m.dirs.Store())
	},
}

var mountDisk = &operation{
	name: "mount_disk", source: "v1",
	disks:   []disk{rootDisk, {name: "vol-1", size: 32 * mib}},
	prepare: func(m *machine) { m.ok(m.boot("v1")) },
	do:      (*machine).mountVolume,
	booted:  (*machine).volumeBooted,
	ended: func(m *machine) {
		m.wantMounts(map[string]string{m.dirs.Store(): "vol-1 1"})
		m.wantPrecious(m.dirs.Store())
	},
}

// mountElsewhere: the VM is lost with the power, and another one finishes the preparation of its disk.
var mountElsewhere = &operation{
	name: "mount_disk on another VM", source: "v1", lost: true, partitioner: "sfdisk",
	disks:   []disk{rootDisk, {name: "vol-1", size: 32 * mib}},
	prepare: func(m *machine) { m.ok(m.boot("v1")) },
	do:      (*machine).mountVolume,
	booted:  func(*machine, map[string]bool) {},
	ended: func(m *machine) {
		m.wantMounts(map[string]string{m.dirs.Store(): "vol-1 1"})
		m.wantPrecious(m.dirs.Store())
	},
}

// mountVolume mounts the disk at the Director's request; then a job writes to its store.
func (m *machine) mountVolume() error {
	if err := m.disks.Persistent.Mount(m.t.Context(), "vol-1"); err != nil {
		return err
	}
	m.mark("mounted")
	m.writePrecious(m.dirs.Store())
	m.mark("kept")
	return nil
}

func (m *machine) volumeBooted(reached map[string]bool) {
	m.t.Helper()
	if reached["mounted"] {
		m.wantMounts(map[string]string{m.dirs.Store(): "vol-1 1"})
	}
	if reached["kept"] {
		m.wantPrecious(m.dirs.Store())
	}
}

// migrateDisk: at every moment the store is one of the disks, with every file.
var migrateDisk = &operation{
	name: "migrate_disk", source: "v1",
	disks: []disk{rootDisk, {name: "old", size: 24 * mib}, {name: "new", size: 32 * mib}},
	prepare: func(m *machine) {
		m.ok(m.boot("v1"))
		m.ok(m.disks.Persistent.Mount(m.t.Context(), "old"))
		m.fill(m.dirs.Store())
	},
	do: func(m *machine) error {
		// The Director asks which disk is there before it goes on.
		if on, err := m.current.ManagedCID(); err != nil || on != "new" {
			for _, cid := range []string{"old", "new"} {
				if err := m.disks.Persistent.Mount(m.t.Context(), cid); err != nil {
					return err
				}
			}
		}
		if err := m.disks.Migration.Migrate(m.t.Context(), "old", "new"); err != nil {
			return err
		}
		m.mark("migrated")
		return nil
	},
	booted: func(m *machine, reached map[string]bool) {
		if got := m.source(m.dirs.Store()); got != "new 1" && (got != "old 1" || reached["migrated"]) {
			m.t.Errorf("after the boot the store is %q", got)
		}
		m.filled(m.dirs.Store())
	},
	ended: func(m *machine) {
		m.wantMounts(map[string]string{m.dirs.Store(): "new 1", m.dirs.StoreMigrationTarget(): ""})
		m.filled(m.dirs.Store())
	},
}

// growing: a disk that became larger while the machine was off. Where the kernel does not let a mounted ext4 be grown,
// resize2fs does it, which does not know the journal; an xfs is grown while it is mounted.
func growing(kind string, size, grown int64) *operation {
	check := func(m *machine) {
		m.t.Helper()
		m.wantMounts(map[string]string{m.dirs.Store(): "vol-1 1"})
		m.filled(m.dirs.Store())
		var st unix.Statfs_t
		m.ok(unix.Statfs(m.dirs.Store(), &st))
		if have := int64(st.Blocks) * st.Bsize; have < size+(grown-size)/4 {
			m.t.Errorf("the store has %d MiB, want those of its disk of %d", have/mib, grown/mib)
		}
	}
	return &operation{
		name: "growth, " + kind, bootRecorded: true, source: "v1", fileSystem: kind,
		disks: []disk{rootDisk, {name: "vol-1", size: size, grown: grown}},
		prepare: func(m *machine) {
			m.ok(m.boot("v1"))
			m.ok(m.disks.Persistent.Mount(m.t.Context(), "vol-1"))
			m.fill(m.dirs.Store())
		},
		do:     func(*machine) error { return nil }, // the boot has done it
		booted: func(m *machine, _ map[string]bool) { check(m) },
		ended:  check,
	}
}

// fill makes a user's files.
func (m *machine) fill(dir string) {
	m.t.Helper()
	for path, content := range userFiles() {
		path = filepath.Join(dir, path)
		m.ok(errors.Join(os.MkdirAll(filepath.Dir(path), 0o750), os.WriteFile(path, content, 0o640)))
	}
}

func userFiles() map[string][]byte {
	files := map[string][]byte{}
	for i := range 40 {
		files[filepath.Join("d"+strconv.Itoa(i%5), "f"+strconv.Itoa(i))] = bytes.Repeat([]byte(strconv.Itoa(i)), 1000*i)
	}
	return files
}

// filled compares the user's files: no more, no less, no other content.
func (m *machine) filled(dir string) {
	m.t.Helper()
	left := userFiles()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		data, err := os.ReadFile(path)
		if want, ours := left[rel]; !ours || !bytes.Equal(data, want) {
			m.t.Errorf("%s is not the user's file", path)
		}
		delete(left, rel)
		return err
	})
	m.ok(err)
	if len(left) > 0 {
		m.t.Errorf("%d of the user's files are gone", len(left))
	}
}

// updateSettings: the source has another document, then the Director an update. After the cut the source is away: the
// settings on the disk are in force.
var updateSettings = &operation{
	name:    "update_settings",
	disks:   []disk{rootDisk},
	prepare: func(m *machine) { m.ok(m.boot("v1")); m.ok(m.update("v1")) },
	do: func(m *machine) error {
		for _, version := range []string{"v2", "v3"} {
			m.version = version
			if _, err := m.current.Load(m.t.Context()); err != nil {
				return err
			}
			m.mark("loaded " + version)
			if err := m.update(version); err != nil {
				return err
			}
			m.mark("updated " + version)
		}
		m.version = ""
		return nil
	},
	booted: func(m *machine, reached map[string]bool) {
		e := m.current.Effective()
		got := fmt.Sprint(e.NTP, " ", strings.TrimSuffix(e.TrustedCerts, padding))
		want := []string{"[v1] v1", "[v2] v1", "[v2] v2", "[v3] v2", "[v3] v3"}
		for i, mark := range []string{"loaded v2", "updated v2", "loaded v3", "updated v3"} {
			if reached[mark] {
				want[i] = ""
			}
		}
		for _, w := range want {
			if got == w {
				return
			}
		}
		m.t.Errorf("the settings in force are %q, want one of %q", got, want)
	},
	ended: func(m *machine) {
		if e := m.current.Effective(); fmt.Sprint(e.NTP) != "[v3]" || e.TrustedCerts != "v3"+padding {
			m.t.Errorf("the settings in force are %v", e.NTP)
		}
	},
}

// padding makes updates longer than a block.
var padding = strings.Repeat("\n# certificate", 1000)

func (m *machine) update(version string) error {
	u, report := settings.DecodeUpdate("update", secret.NewJSON(fmt.Appendf(nil,
		`{"trusted_certs": %q, "mbus": {"cert": {"private_key": %q}}}`, version+padding, canary)))
	if err := report.Err(); err != nil {
		return err
	}
	return m.current.Preview(u).Commit(m.t.Context())
}

func sum(data []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(data)) }
