//go:build vm && !root

package storage

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"cambium/lab/testvm"
)

// Sizes, by which the disks of the virtual machine are distinguished.
const (
	vmVirtio  = 65 << 20
	vmOther   = 66 << 20
	vmTarget0 = 67 << 20
	vmTarget2 = 68 << 20
	vmNVMe    = 256 << 20
	vmData    = 200 << 20
	vmLate    = 69 << 20
	vmMapped  = 71 << 20
	vmGrown   = 600 << 20
)

const vmCID = "4d3f2a10-0000-4111-8222-123456789abc"

// TestVMDisks runs guestChecks as the first process of a virtual machine with virtio, SCSI and
// NVMe disks, one of which is plugged in and one of which grows while the machine runs.
func TestVMDisks(t *testing.T) {
	testvm.Needs(t, "mkfs.ext4", "sfdisk", "sgdisk", "ldd", "dmsetup", "kpartx")
	dir := t.TempDir()
	image := func(name string, size int64) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
		return path
	}
	data := image("data", vmData)
	testvm.Host(t, "sh", "-ec", `printf 'label: gpt\nstart=2048, name="bosh-partition-0"\n' | sfdisk -q "$0"; mkfs.ext4 -q -F -E offset=1048576 "$0" 198m`, data)
	qemu := []string{"-device", "virtio-scsi-pci,id=scsi"}
	for _, d := range []struct{ id, file, device string }{
		{"other", image("other", vmOther), "virtio-blk-pci,serial=somebody-else"},
		{"virtio", image("virtio", vmVirtio), "virtio-blk-pci,serial=" + vmCID[:20]},
		{"data", data, "virtio-blk-pci,serial=vol-data"},
		{"mapped", image("mapped", vmMapped), "virtio-blk-pci,serial=vol-below"},
		{"target0", image("target0", vmTarget0), "scsi-hd,bus=scsi.0,channel=0,scsi-id=0,lun=0"},
		{"target2", image("target2", vmTarget2), "scsi-hd,bus=scsi.0,channel=0,scsi-id=2,lun=0"},
		{"nvme", image("nvme", vmNVMe), "nvme,serial=instance"},
	} {
		qemu = append(qemu, "-drive", "if=none,id="+d.id+",format=raw,file="+d.file, "-device", d.device+",drive="+d.id)
	}
	late := image("late", vmLate)
	plugIn := func(id string) []string { // the first one may still have the image open when the second one comes
		return []string{"drive_add 0 if=none,id=" + id + ",format=raw,file.locking=off,file.filename=" + late,
			"device_add virtio-blk-pci,id=" + id + "-disk,drive=" + id + ",serial=vol-late"}
	}
	testvm.Machine{
		Modules: []string{"virtio", "virtio_ring", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci",
			"virtio_blk",
			"scsi_common", "scsi_mod", "virtio_scsi", "sd_mod", "dax", "dm-mod"},
		Programs: []string{"mkfs.ext4", "dmsetup", "kpartx"},
		QEMU:     qemu,
		On: map[string][]string{
			"late":   plugIn("late"),
			"unplug": {"device_del late-disk"},
			"again":  plugIn("again"),
			"grow":   {fmt.Sprintf("block_resize data %dM", vmGrown>>20)},
		},
	}.Run(t, guestChecks)
	// The host's tools judge what the guest has left.
	testvm.Host(t, "sh", "-ec", `sgdisk --verify "$0" | grep -q 'No problems found'; e2fsck -nf "$0?offset=1048576"`, data)
}
