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
	"cambium/internal/medium"
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

// loop attaches an image to a loop device. It is writable, so that a write would be noticed.
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

// unused fails the test if the device is mounted anywhere, since a mount opens it exclusively.
func unused(t *testing.T, device string) {
	t.Helper()
	f, err := os.OpenFile(device, os.O_RDONLY|unix.O_EXCL, 0)
	if err != nil {
		t.Errorf("still in use: %v", err)
		return
	}
	f.Close()
}

// TestRootNoOtherFileSystemIsRead: the kernel could mount this file system, but it must not be used.
func TestRootNoOtherFileSystemIsRead(t *testing.T) {
	needRoot(t, "losetup", "mkfs.ext4")
	image := filepath.Join(t.TempDir(), "ext4.img")
	run(t, "mkfs.ext4", "-q", "-L", "config-2", image, "16m")
	device := loop(t, image)
	_, err := New(Options{DiskPaths: []string{device}, UserDataPath: "env", Log: quiet()}).Settings(t.Context())
	if source.KindOf(err) != source.Definite || !errors.Is(err, medium.ErrUnknown) {
		t.Errorf("error %v, want a final one that names the file systems", err)
	}
	unused(t, device)
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
