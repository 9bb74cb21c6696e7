//go:build ns

package tree

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"cambium/internal/nstest"
	"cambium/internal/vcap"
	"cambium/platform"
	"cambium/platform/platformtest"

	"golang.org/x/sys/unix"
)

// stemcell creates a root directory on a tmpfs, with accounts.
func stemcell(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, "size=64m,mode=0755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(root, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	for _, dir := range []string{"etc", "tmp", "var/tmp", "var/log", "opt", "home", "dev/shm", "var/vcap/data"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range map[string]string{
		"etc/passwd": "root:x:0:0::/root:/bin/sh\nvcap:x:1000:1000::/home/vcap:/bin/bash\n" +
			"_chrony:x:110:111::/:/bin/false\n",
		"etc/group":            "root:x:0:\nvcap:x:1000:\nsyslog:x:105:\nutmp:x:43:\n_chrony:x:111:\n",
		"var/log/in-the-image": "hidden",
	} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"dev/shm", "var/vcap/data"} {
		if err := unix.Mount("tmpfs", filepath.Join(root, dir), "tmpfs", 0, "mode=0755"); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestNSWholeTree(t *testing.T) { nstest.Run(t, wholeTree) }

func wholeTree(t *testing.T) {
	root := stemcell(t)
	// A volume below /home must not disappear behind the new mount.
	if err := os.Mkdir(root+"/home/vcap", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", root+"/home/vcap", "tmpfs", 0, "mode=0755"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(root+"/home/vcap/own", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	k := &Kernel{Root: root, Log: platformtest.Quiet()}
	want := Table(vcap.New(""), Options{JobDirTmpfs: true, SettingsTmpfs: true})
	if _, err := platform.Converge(t.Context(), k, Diff, want); err != nil {
		t.Fatal(err)
	}

	for _, tc := range []struct {
		path     string
		mode     fs.FileMode
		uid, gid uint32
		flags    string // of the mount, as mountinfo has them; "-" is not a mount point
		kind     string
	}{
		{"/var/vcap/data/sys", 0o750, 0, 1000, "-", ""},
		{"/var/vcap/data/sys/run", 0o770 | fs.ModeSticky, 0, 1000, "rw,relatime", "tmpfs"},
		{"/var/vcap/data/jobs", 0o750, 0, 1000, "rw,relatime", "tmpfs"},
		{"/var/vcap/data/sensitive_blobs", 0o700, 0, 1000, "rw,relatime", "tmpfs"},
		{"/var/vcap/bosh/settings", 0o700, 0, 0, "rw,nosuid,nodev,noexec,relatime", "tmpfs"},
		{"/var/vcap/bosh/canrestart", 0o740, 0, 1000, "rw,nosuid,nodev,noexec,relatime", "tmpfs"},
		{"/tmp", 0o777 | fs.ModeSticky, 0, 1000, "rw,nosuid,nodev,noexec,relatime", ""},
		{"/var/tmp", 0o777 | fs.ModeSticky, 0, 1000, "rw,nosuid,nodev,noexec,relatime", ""},
		{"/var/log", 0o771, 0, 105, "rw,nosuid,nodev,noexec,relatime", ""},
		{"/var/log/chrony", 0o700, 110, 111, "-", ""},
		{"/opt", 0o755, 0, 0, "rw,nodev,relatime", ""},
		{"/var/opt", 0o755, 0, 0, "rw,nodev,relatime", ""},
		{"/home", 0o755, 0, 0, "rw,nosuid,nodev,relatime", ""},
		{"/dev/shm", 0o770, 0, 1000, "rw,nosuid,nodev,noexec,relatime", "tmpfs"},
	} {
		info, err := os.Stat(root + tc.path)
		if err != nil {
			t.Error(err)
			continue
		}
		st := info.Sys().(*syscall.Stat_t)
		if info.Mode() != fs.ModeDir|tc.mode || st.Uid != tc.uid || st.Gid != tc.gid {
			t.Errorf("%s: got %v %d:%d, want %v %d:%d", tc.path, info.Mode(), st.Uid, st.Gid, tc.mode, tc.uid, tc.gid)
		}
		if got := mountFlags(t, root+tc.path); got != tc.flags {
			t.Errorf("%s: got mount %q, want %q", tc.path, got, tc.flags)
		}
	}
	if _, err := os.Stat(root + "/var/log/in-the-image"); err == nil {
		t.Error("/var/log still shows what the image had")
	}

	if _, err := os.Stat(root + "/home/vcap/own"); err != nil {
		t.Errorf("what was mounted below /home is hidden: %v", err)
	}

	// A program in /tmp does not run, one in /opt does.
	copyTrue(t, root+"/tmp/true")
	copyTrue(t, root+"/opt/true")
	if _, err := syscall.ForkExec(root+"/tmp/true", []string{"true"}, nil); err != syscall.EACCES {
		t.Errorf("running a program in /tmp: got %v, want EACCES", err)
	}
	if pid, err := syscall.ForkExec(root+"/opt/true", []string{"true"}, nil); err != nil {
		t.Errorf("running a program in /opt: %v", err)
	} else if _, err := syscall.Wait4(pid, nil, 0, nil); err != nil {
		t.Error(err)
	}

	second, err := platform.Converge(t.Context(), k, Diff, want)
	if err != nil || len(second) != 0 {
		t.Errorf("second run: got %q, %v, want nothing to do", platformtest.Texts(second), err)
	}

	// What is under the mounts is right as well.
	for _, path := range []string{"/tmp", "/var/tmp"} {
		if err := unix.Unmount(root+path, 0); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(root + path); err != nil || info.Mode() != fs.ModeDir|fs.ModeSticky|0o777 {
			t.Errorf("%s underneath: got %v, %v, want 1777", path, info.Mode(), err)
		}
	}
	got, err := platform.Converge(t.Context(), k, Diff, want)
	if err != nil || len(got) != 2 {
		t.Errorf("after unmounting two: got %q, %v, want the two binds", platformtest.Texts(got), err)
	}
}

func mountFlags(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	flags := "-"
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); f[4] == path {
			flags = f[5]
		}
	}
	return flags
}

func copyTrue(t *testing.T, to string) {
	t.Helper()
	data, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, data, 0o755); err != nil {
		t.Fatal(err)
	}
}
