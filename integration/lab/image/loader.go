package image

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// loaderDir is where Debian's grub-pc-bin has the parts of the boot loader.
const loaderDir = "/usr/lib/grub/i386-pc"

// loaderConfig is built into the boot loader: where its configuration is.
const loaderConfig = `set root=(hd0,msdos1)
source /boot/grub/grub.cfg
`

// bootConfig is the configuration, in the root file system: the agent edits it there, for IPv6.
const bootConfig = `linux /boot/vmlinuz root=UUID=` + rootUUID + ` rw net.ifnames=0 biosdevname=0 console=tty0 console=ttyS0,115200n8 cgroup_enable=memory swapaccount=1 panic=30 quiet
initrd /boot/initrd
boot
`

var loaderModules = []string{"biosdisk", "part_msdos", "ext2", "linux", "configfile", "normal"}

// Where GRUB's first sector says which sector is next, and which drive that is on; and where
// its second one says the same of the rest.
const (
	nextSector     = 0x5c
	bootDrive      = 0x64
	bootDriveCheck = 0x66
	restSector     = 0x1f4
	sectorSize     = 512
	codeSize       = 440 // the partition table's own bytes follow
)

// installLoader writes GRUB for BIOS machines into a disk: its first sector, and the rest behind it, in front of the
// first partition. GRUB's own installer wants a device; the few numbers that it fills in are filled in here.
func installLoader(ctx context.Context, work, disk string) error {
	config, core := filepath.Join(work, "grub.cfg"), filepath.Join(work, "grub.img")
	defer func() { _, _ = os.Remove(config), os.Remove(core) }()
	if err := os.WriteFile(config, []byte(loaderConfig), 0o600); err != nil {
		return err
	}
	args := append([]string{"-O", "i386-pc", "-d", loaderDir, "-o", core, "-p", "/boot/grub", "-c", config}, loaderModules...)
	if err := run(ctx, "grub-mkimage", args...); err != nil {
		return fmt.Errorf("boot loader: %w; packages grub-common and grub-pc-bin have it", err)
	}
	first, err := os.ReadFile(filepath.Join(loaderDir, "boot.img"))
	if err != nil {
		return err
	}
	rest, err := os.ReadFile(core)
	if err != nil {
		return err
	}
	if len(first) != sectorSize || len(rest) <= sectorSize || int64(len(rest)) > rootStart-sectorSize {
		return fmt.Errorf("boot loader of %d and %d bytes", len(first), len(rest))
	}
	binary.LittleEndian.PutUint64(first[nextSector:], 1)
	first[bootDrive] = 0xff // the one that the BIOS has started
	binary.LittleEndian.PutUint16(first[bootDriveCheck:], 0x9090)
	binary.LittleEndian.PutUint64(rest[restSector:], 2)
	f, err := os.OpenFile(disk, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err1 := f.WriteAt(first[:codeSize], 0)
	_, err2 := f.WriteAt(rest, sectorSize)
	return errors.Join(err1, err2, f.Close())
}
