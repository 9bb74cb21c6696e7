//go:build root

package configdrive

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cambium/infrastructure/internal/source"
)

func needRoot(t *testing.T, tools ...string) {
	t.Helper()
	missing := ""
	if os.Getuid() != 0 {
		missing = "root"
	}
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			missing = tool
		}
	}
	if missing == "" {
		return
	}
	if os.Getenv("CI") != "" {
		t.Fatalf("needs %s", missing)
	}
	t.Skipf("needs %s", missing)
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// loop attaches an image, writable so that a write would show.
func loop(t *testing.T, image string) string {
	t.Helper()
	device := run(t, "losetup", "--find", "--show", image)
	t.Cleanup(func() { run(t, "losetup", "-d", device) })
	return device
}

func sum(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(data))
}

// mounts returns our own mounts; others of the machine come and go.
func mounts(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var ours []string
	for _, line := range strings.Split(string(data), "\n") {
		if strings.Contains(line, "cambium-medium-") {
			ours = append(ours, line)
		}
	}
	return strings.Join(ours, "\n")
}

func TestRootReadsABlockDevice(t *testing.T) {
	needRoot(t, "losetup")
	image := makeFAT(t, "cambium-cfg", files)
	before := sum(t, image)
	device := loop(t, image)
	for _, path := range []string{device, byLabel + "cambium-cfg"} {
		s := New(Options{DiskPaths: []string{path}, UserDataPath: "ec2/latest/user-data", Log: quiet()})
		answer, err := s.Settings(t.Context())
		if err != nil || string(answer.Raw.Reveal()) != files["ec2/latest/user-data"] {
			t.Errorf("%s: %v", path, err)
		}
	}
	if after := sum(t, image); after != before {
		t.Error("the device was written to")
	}
}

func TestRootOtherFileSystemsAreMounted(t *testing.T) {
	needRoot(t, "losetup", "mkfs.ext4", "debugfs")
	image := filepath.Join(t.TempDir(), "ext4.img")
	tree := t.TempDir()
	if err := os.WriteFile(filepath.Join(tree, "user-data"), []byte(files["env"]), 0o600); err != nil {
		t.Fatal(err)
	}
	// A link that leads out of the medium must not be followed.
	if err := os.Symlink("/etc/hostname", filepath.Join(tree, "outside")); err != nil {
		t.Fatal(err)
	}
	run(t, "mkfs.ext4", "-q", "-L", "config-2", "-d", tree, image, "16m")
	// A journal that wants to be replayed, as after a power cut.
	run(t, "debugfs", "-w", "-R", "feature +needs_recovery", image)
	before, mountedBefore := sum(t, image), mounts(t)
	device := loop(t, image)
	s := New(Options{DiskPaths: []string{device}, UserDataPath: "user-data", Log: quiet()})
	answer, err := s.Settings(t.Context())
	if err != nil || string(answer.Raw.Reveal()) != files["env"] {
		t.Errorf("error %v", err)
	}
	if _, err := New(Options{DiskPaths: []string{device}, UserDataPath: "outside", Log: quiet()}).Settings(t.Context()); source.KindOf(err) != source.Definite {
		t.Errorf("a link out of the medium: error %v, want a final one", err)
	}
	run(t, "blockdev", "--flushbufs", device)
	if sum(t, image) != before {
		t.Error("the device was written to")
	}
	if got := mounts(t); got != mountedBefore {
		t.Errorf("mounts were\n%s\nand are\n%s", mountedBefore, got)
	}
}

func TestRootNewDevicesAreHeardOf(t *testing.T) {
	needRoot(t, "losetup")
	e := &enumeration{root: "/"}
	events, stop := e.listen()
	defer stop()
	loop(t, makeFAT(t, "late", files))
	select {
	case <-events:
	case <-time.After(10 * time.Second):
		t.Error("the kernel's event was not heard")
	}
}

func TestRootUnreadableDevice(t *testing.T) {
	needRoot(t, "losetup")
	image := filepath.Join(t.TempDir(), "zeros.img")
	if err := os.WriteFile(image, bytes.Repeat([]byte{0}, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	before := mounts(t)
	_, err := New(Options{DiskPaths: []string{loop(t, image)}, UserDataPath: "x", Log: quiet()}).Settings(t.Context())
	if source.KindOf(err) != source.Definite {
		t.Errorf("error %v, want a final one", err)
	}
	if mounts(t) != before {
		t.Error("something stayed mounted")
	}
}
