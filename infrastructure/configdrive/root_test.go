//go:build root

package configdrive

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cambium/infrastructure/internal/source"
	"cambium/internal/skiptest"
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
	skiptest.Skip(t, "needs "+missing)
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

func TestRootExt4IsMounted(t *testing.T) {
	needRoot(t, "losetup", "mkfs.ext4", "debugfs")
	image := extImage(t, t.TempDir())
	before := sum(t, image)
	device := loop(t, image)
	s := New(Options{DiskPaths: []string{device}, UserDataPath: "env", Log: quiet()})
	answer, err := s.Settings(t.Context())
	if err != nil || string(answer.Raw.Reveal()) != files["env"] {
		t.Errorf("error %v", err)
	}
	for _, name := range []string{"outside", "zero"} {
		if _, err := New(Options{DiskPaths: []string{device}, UserDataPath: name, Log: quiet()}).Settings(t.Context()); source.KindOf(err) != source.Definite {
			t.Errorf("%s: error %v, want a final one", name, err)
		}
	}
	run(t, "blockdev", "--flushbufs", device)
	if sum(t, image) != before {
		t.Error("the device was written to")
	}
	unused(t, device)
}

// unused fails if something is mounted from the device, wherever: a mount opens it exclusively.
func unused(t *testing.T, device string) {
	t.Helper()
	f, err := os.OpenFile(device, os.O_RDONLY|unix.O_EXCL, 0)
	if err != nil {
		t.Errorf("still in use: %v", err)
		return
	}
	f.Close()
}

func TestRootNoOtherFileSystemIsMounted(t *testing.T) {
	needRoot(t, "losetup", "mkfs.xfs", "mkfs.btrfs", "mksquashfs")
	for kind, image := range foreignImages(t, t.TempDir()) {
		_, err := New(Options{DiskPaths: []string{loop(t, image)}, UserDataPath: "env", Log: quiet()}).Settings(t.Context())
		if source.KindOf(err) != source.Definite || !errors.Is(err, errNotMountable) {
			t.Errorf("%s: error %v, want a final one that names the file systems", kind, err)
		}
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
		t.Error("no event of the kernel")
	}
}

func TestRootUnreadableDevice(t *testing.T) {
	needRoot(t, "losetup")
	image := filepath.Join(t.TempDir(), "zeros.img")
	if err := os.WriteFile(image, bytes.Repeat([]byte{0}, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	device := loop(t, image)
	_, err := New(Options{DiskPaths: []string{device}, UserDataPath: "x", Log: quiet()}).Settings(t.Context())
	if source.KindOf(err) != source.Definite {
		t.Errorf("error %v, want a final one", err)
	}
	unused(t, device)
}
