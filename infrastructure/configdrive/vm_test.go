//go:build vm

package configdrive

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"cambium/lab/testvm"
)

// TestVMDrives runs guestChecks as the first process of a virtual machine with a CD drive and a config drive: with a
// real sr driver, tray and block devices, and without udev.
func TestVMDrives(t *testing.T) {
	testvm.Needs(t, "genisoimage", "mkfs.vfat")
	dir := t.TempDir()
	cd := filepath.Join(dir, "env.iso")
	tree := filepath.Join(dir, "tree")
	if err := os.Mkdir(tree, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(tree, "env"), []byte(files["env"]), 0o600); err != nil {
		t.Fatal(err)
	}
	testvm.Host(t, "genisoimage", "-quiet", "-o", cd, tree)
	drive, late := makeFAT(t, "config-2", files), makeFAT(t, "late", files)
	images := []string{cd, drive, late}
	var before []string
	for _, image := range images {
		before = append(before, fileSum(t, image))
	}
	testvm.Machine{
		Modules: []string{"virtio", "virtio_ring", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci",
			"virtio_blk",
			"scsi_common", "scsi_mod", "virtio_scsi", "cdrom", "sr_mod"},
		QEMU: []string{"-device", "virtio-scsi-pci", "-drive", "if=none,id=cd,media=cdrom,readonly=on,file=" + cd, "-device",
			"scsi-cd,drive=cd",
			"-drive", "if=none,id=drive,format=raw,file=" + drive, "-device", "virtio-blk-pci,drive=drive"},
		On: map[string][]string{"late": {"drive_add 0 if=none,id=late,format=raw,file=" + late,
			"device_add virtio-blk-pci,drive=late"}},
	}.Run(t, guestChecks)
	for i, image := range images {
		if fileSum(t, image) != before[i] {
			t.Errorf("%s was written to", filepath.Base(image))
		}
	}
}

func fileSum(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(data))
}
