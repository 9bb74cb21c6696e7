//go:build ns

package store

import (
	"context"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cambium/internal/atomicfile"
	"cambium/internal/nstest"
	"cambium/platform/mount"
	"cambium/settings"
)

// TestNSSettingsOnARealTmpfs: files are removed from the disk, a restarted agent finds everything on the tmpfs, and the
// secrets are lost with the tmpfs, as at a reboot.
func TestNSSettingsOnARealTmpfs(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		options := m.options()
		options.MountTmpfs = func(_ context.Context, path string) error {
			if _, mounted, err := mount.At(path); err != nil || mounted {
				return err
			}
			return unix.Mount("tmpfs", path, "tmpfs", 0, "size=16m,mode=0700")
		}
		start := func() *Current {
			c, err := Open(m.dirs, options)
			if err != nil {
				t.Fatal(err)
			}
			m.load(t, c)
			return c
		}
		m.answer = doc("a-1")
		c := start()
		if err := commit(t, c, `{"trusted_certs":"T"}`); err != nil {
			t.Fatal(err)
		}
		m.answer = doc("a-1", tmpfsOn)
		m.load(t, c)
		if err := c.PutHint("d-1", settings.DiskHint{Path: "/dev/x"}); err != nil {
			t.Fatal(err)
		}
		if _, mounted, err := mount.At(m.dirs.SettingsTmpfs()); err != nil || !mounted {
			t.Fatalf("no tmpfs at %s: %v", m.dirs.SettingsTmpfs(), err)
		}
		c = start()
		if c.Effective().TrustedCerts != "T" || len(c.Disks()) != 1 {
			t.Errorf("after a restart: %q, %v", c.Effective().TrustedCerts, c.Disks())
		}
		entries, err := mount.Table()
		if err != nil {
			t.Fatal(err)
		}
		count := 0
		for _, e := range entries {
			if strings.HasSuffix(e.Target, "/bosh/settings") {
				count++
			}
		}
		if count != 1 {
			t.Errorf("%d mounts at bosh/settings after a second start, want 1", count)
		}
		if err := mount.Unmount(t.Context(), m.dirs.SettingsTmpfs()); err != nil {
			t.Fatal(err)
		}
		for _, file := range m.tree(t) {
			data, err := os.ReadFile(m.dirs.Base() + "/" + file)
			if err != nil {
				t.Fatal(err)
			}
			t.Errorf("%s with %d bytes is on the disk", file, len(data))
		}
		// The machine rebooted: everything comes from the source again.
		c = start()
		if c.Effective().TrustedCerts != "" || string(c.Place()) != m.dirs.SettingsTmpfs() ||
			atomicfile.Exists(m.settingsFile()) {
			t.Errorf("after a reboot: %q in %s", c.Effective().TrustedCerts, c.Place())
		}
		if err := mount.Unmount(t.Context(), m.dirs.SettingsTmpfs()); err != nil {
			t.Error(err)
		}
	})
}
