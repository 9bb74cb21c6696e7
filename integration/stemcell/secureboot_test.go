//go:build nightly

package stemcell

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"cambium/internal/eventually"
	"cambium/lab"
	"cambium/lab/image"
	"cambium/lab/labtest"
	"cambium/lab/machine/qemu"
)

// TestNightlySecureBoot boots the stemcell where the firmware starts only what Microsoft has signed, and looks at every
// line of the hardening profile on that machine. A kernel without a signature is refused there, and boots elsewhere.
func TestNightlySecureBoot(t *testing.T) {
	disk := unpack(t, tarball(t, "qemu"))
	kind := func(secure bool) labtest.Kind {
		k := kind(disk, true)
		k.Engine = qemu.Engine{Image: image.Image{Disk: disk}, UEFI: true, SecureBoot: secure}
		return k
	}
	vm := lab.VM{Source: lab.ConfigDrive, Ephemeral: 2 * lab.GiB}
	t.Run("signed", func(t *testing.T) {
		l := kind(true).Lab(t)
		i := labtest.Start(t, l, vm)
		kind(true).Ready(t, i)
		of := maps.Clone(wantedOfKernel)
		of["secure-boot"] = "1"
		inspectStemcell(t, l, i, wanted, of)
	})
	removeSignature(t, disk)
	t.Run("unsigned", func(t *testing.T) {
		i := labtest.Start(t, kind(true).Lab(t), vm)
		eventually.Nil(t, "the refusal on the console", func() error {
			console, err := os.ReadFile(i.Console())
			if text := string(console); err != nil || !strings.Contains(text, "bad shim signature") {
				return errors.Join(err, fmt.Errorf("the console ends with %q", labtest.Tail(text, 300)))
			}
			return nil
		})
	})
	t.Run("unsigned without Secure Boot", func(t *testing.T) {
		i := labtest.Start(t, kind(false).Lab(t), vm)
		kind(false).Ready(t, i)
	})
}

// removeSignature takes the signature of the kernel on a disk: the program stays as it is, its header names none.
func removeSignature(t *testing.T, disk string) {
	t.Helper()
	kernel, err := image.Extract(t.Context(), disk, "/boot/vmlinuz")
	if err != nil || len(kernel) < 4096 {
		t.Fatalf("a kernel of %d bytes: %v", len(kernel), err)
	}
	// The fifth data directory of the optional header (PE32+) is that of certificates.
	table := int(binary.LittleEndian.Uint32(kernel[0x3c:])) + 24 + 112 + 4*8
	if size := binary.LittleEndian.Uint32(kernel[table+4:]); size == 0 {
		t.Fatal("the stemcell's kernel has no signature")
	}
	clear(kernel[table : table+8])
	path := filepath.Join(t.TempDir(), "vmlinuz")
	if err := os.WriteFile(path, kernel, 0o600); err != nil {
		t.Fatal(err)
	}
	change := exec.CommandContext(t.Context(), "debugfs", "-w", "-f", "-", disk+"?offset=51380224")
	change.Stdin = strings.NewReader("rm /boot/vmlinuz\nwrite " + path + " /boot/vmlinuz\n")
	if out, err := change.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if now, err := image.Extract(t.Context(), disk, "/boot/vmlinuz"); err != nil || string(now) != string(kernel) {
		t.Fatalf("the kernel was not replaced: %v", err)
	}
}
