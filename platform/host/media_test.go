package host

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"cambium/internal/skiptest"
)

// TestMedia: the machine's drives are restricted to root, and udev keeps them so. Other devices are unchanged.
func TestMedia(t *testing.T) {
	skiptest.WithoutRoot(t, "to give files to root")
	const cdrom = 24
	h, _ := newHost(t, map[string]string{"/run/udev/control": "", "/dev/sda": "", "/dev/sr0": "", "/dev/sr1": "",
		"/dev/fd0": "", "/dev/sg0": "", "/dev/sg1": "", "/sys/class/scsi_generic/sg0/device/type": "0\n",
		"/sys/class/scsi_generic/sg1/device/type": "5\n", "/sys/class/scsi_generic/sg2/device/type": "5\n"})
	nodes := []string{"/dev/fd0", "/dev/sda", "/dev/sg0", "/dev/sg1", "/dev/sr0", "/dev/sr1"}
	for _, path := range nodes {
		if err := os.Chown(h.joinRoot(path), 0, cdrom); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(h.joinRoot(path), 0o660); err != nil {
			t.Fatal(err)
		}
	}
	// A stemcell's hook has been there.
	if err := os.Chown(h.joinRoot("/dev/sr1"), 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("sr0", h.joinRoot("/dev/sr9")); err != nil {
		t.Fatal(err)
	}
	asked := filepath.Join(t.TempDir(), "asked")
	put(t, h, "/bin/udevadm", "#!/bin/sh\ntest -e '"+h.joinRoot(mediaRules)+"' && echo \"$@\" >>'"+asked+"'\n")
	t.Setenv("PATH", h.joinRoot("/bin")+":"+os.Getenv("PATH"))
	if !h.HasDrives() {
		t.Error("the machine has no drives")
	}
	got := converge(t, h, Desired{RootMedia: true})
	want := []string{"restrict /dev/sr0 to root, mode 0600", "restrict /dev/fd0 to root, mode 0600",
		"restrict /dev/sg1 to root, mode 0600", "write " + mediaRules, "make udev apply its rules to the drives"}
	if !slices.Equal(got, want) {
		t.Errorf("changed %q, want %q", got, want)
	}
	for _, path := range nodes {
		info, err := os.Stat(h.joinRoot(path))
		if err != nil {
			t.Fatal(err)
		}
		group, disk := info.Sys().(*syscall.Stat_t).Gid, path == "/dev/sda" || path == "/dev/sg0"
		if disk != (group == cdrom) {
			t.Errorf("%s belongs to group %d", path, group)
		}
	}
	text, err := os.ReadFile(asked)
	if err != nil || string(text) != "control --reload\n"+
		"trigger --action=change --settle /dev/sr0 /dev/sr1 /dev/fd0 /dev/sg1\n" {
		t.Errorf("udev was asked for %q, %v", text, err)
	}
}

// TestInstalledMediaRules: a stemcell that has the rules leaves nothing to do. Other ones are replaced.
func TestInstalledMediaRules(t *testing.T) {
	asset, err := os.ReadFile("../../stemcell-assets/udev/" + mediaRulesName)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ installed, running string }{{string(asset), ""}, {"", mediaRulesText},
		{"# of an older version", ""}, {string(asset), "# of an older version"}} {
		files := map[string]string{"/run/udev/control": "", "/dev/sda": ""}
		if c.installed != "" {
			files[installedMediaRules] = c.installed
		}
		if c.running != "" {
			files[mediaRules] = c.running
		}
		h, _ := newHost(t, files)
		have, err := h.observeMedia()
		if err != nil {
			t.Fatal(err)
		}
		current := c.running == mediaRulesText || c.running == "" && c.installed == mediaRulesText
		if changes := diffMedia(have); current != (len(changes) == 0) {
			t.Errorf("with %+v: changes %v", c, changes)
		}
	}
}

// TestMediaWithoutUdev: without udev there are no rules, and without drives nothing is done.
func TestMediaWithoutUdev(t *testing.T) {
	h, _ := newHost(t, map[string]string{"/dev/sda": "", "/dev/fd/0": ""})
	if got := converge(t, h, Desired{RootMedia: true}); len(got) > 0 || h.HasDrives() {
		t.Errorf("changed %q, has drives %v; want neither", got, h.HasDrives())
	}
}
