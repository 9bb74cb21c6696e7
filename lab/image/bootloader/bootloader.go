// Package bootloader makes the disks of stemcells bootable, by BIOS and EFI. It neither mounts them nor uses loop
// devices, both of which GRUB's installer needs.
package bootloader

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Disk is a partitioned disk image.
type Disk struct {
	Path     string
	RootUUID string // UUID of the file system with the kernel
	// Signed is the directory with the unpacked Debian packages shim-signed and grub-efi-amd64-signed.
	Signed string
	// EFIStart and EFISize are the offset and the size of the EFI system partition, the first one, in bytes.
	EFIStart, EFISize int64
}

const sectorSize = 512

// loaderDir is the directory of Debian's grub-pc-bin with the parts of the boot loader.
const loaderDir = "/usr/lib/grub/i386-pc"

// config returns the configuration of both boot loaders, which loads the one on partition 2.
func (d Disk) config() []byte {
	return []byte("search.fs_uuid " + d.RootUUID + " root\nsource /boot/grub/grub.cfg\n")
}

// loaderModules lists GRUB's modules for the BIOS boot loader. The signed one contains them all.
var loaderModules = []string{"biosdisk", "part_msdos", "ext2", "linux", "configfile", "normal", "search_fs_uuid",
	"password_pbkdf2"}

// Offsets in GRUB's first sector (nextSector, bootDrive, bootDriveCheck) and second sector (restSector).
const (
	nextSector     = 0x5c
	bootDrive      = 0x64
	bootDriveCheck = 0x66
	restSector     = 0x1f4
	codeSize       = 440 // followed by the partition table
)

// Install makes the disk bootable by both kinds of firmware. It creates temporary files in the directory work.
func (d Disk) Install(ctx context.Context, work string) error {
	return errors.Join(d.installBIOS(ctx, work), d.installEFI(ctx, work))
}

// SignedParts maps files of the EFI system partition to their paths below Disk.Signed. The firmware starts shim, which
// Microsoft signs, from a disk without a boot entry. With Secure Boot, shim and then GRUB start only what Debian has
// signed.
var SignedParts = map[string]string{
	"EFI/BOOT/BOOTX64.EFI": "usr/lib/shim/shimx64.efi.signed",
	"EFI/BOOT/grubx64.efi": "usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed",
}

// efiConfig is the path compiled into Debian's signed GRUB; it does not depend on GRUB's own directory.
const efiConfig = "EFI/debian/grub.cfg"

// installEFI creates the EFI system partition. mtools write to it without a mount. The date and the volume ID are
// fixed, so that builds are reproducible.
func (d Disk) installEFI(ctx context.Context, work string) error {
	partition := fmt.Sprintf("%s@@%d", d.Path, d.EFIStart)
	commands := [][]string{
		{"mkfs.vfat", "-F", "16", "-n", "EFI", "-i", "63616d62", "--invariant", "--offset", fmt.Sprint(d.EFIStart / sectorSize), d.Path, fmt.Sprint(d.EFISize >> 10)},
		{"mmd", "-i", partition, "::EFI", "::EFI/BOOT", "::EFI/debian"},
	}
	contents := map[string][]byte{efiConfig: d.config()}
	for name, source := range SignedParts {
		data, err := os.ReadFile(filepath.Join(d.Signed, source))
		if err != nil {
			return fmt.Errorf("EFI boot loader: %w", err)
		}
		contents[name] = data
	}
	made := time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC) // the earliest that FAT knows
	for _, name := range slices.Sorted(maps.Keys(contents)) {
		path := filepath.Join(work, filepath.Base(name)+".efi")
		defer func() { _ = os.Remove(path) }()
		if err := errors.Join(os.WriteFile(path, contents[name], 0o600), os.Chtimes(path, made, made)); err != nil {
			return err
		}
		commands = append(commands, []string{"mcopy", "-m", "-i", partition, path, "::" + name})
	}
	for _, argv := range commands {
		if err := run(ctx, argv[0], argv[1:]...); err != nil {
			return fmt.Errorf("EFI system partition: %w; install the packages dosfstools and mtools", err)
		}
	}
	return nil
}

// installBIOS writes GRUB for BIOS to the disk: the first sector, and the rest after it, before the first partition. It
// sets the few numbers that GRUB's installer would set.
func (d Disk) installBIOS(ctx context.Context, work string) error {
	config, core := filepath.Join(work, "grub.cfg"), filepath.Join(work, "grub.img")
	defer func() { _, _ = os.Remove(config), os.Remove(core) }()
	if err := os.WriteFile(config, d.config(), 0o600); err != nil {
		return err
	}
	args := append([]string{"-O", "i386-pc", "-d", loaderDir, "-o", core, "-p", "/boot/grub", "-c", config},
		loaderModules...)
	if err := run(ctx, "grub-mkimage", args...); err != nil {
		return fmt.Errorf("boot loader: %w; install the packages grub-common and grub-pc-bin", err)
	}
	first, err := os.ReadFile(filepath.Join(loaderDir, "boot.img"))
	if err != nil {
		return err
	}
	rest, err := os.ReadFile(core)
	if err != nil {
		return err
	}
	if len(first) != sectorSize || len(rest) <= sectorSize || int64(len(rest)) > d.EFIStart-sectorSize {
		return fmt.Errorf("boot loader of %d and %d bytes does not fit before the first partition", len(first), len(rest))
	}
	binary.LittleEndian.PutUint64(first[nextSector:], 1)
	first[bootDrive] = 0xff // the one that the BIOS has started
	binary.LittleEndian.PutUint16(first[bootDriveCheck:], 0x9090)
	binary.LittleEndian.PutUint64(rest[restSector:], 2)
	f, err := os.OpenFile(d.Path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err1 := f.WriteAt(first[:codeSize], 0)
	_, err2 := f.WriteAt(rest, sectorSize)
	return errors.Join(err1, err2, f.Close())
}

func run(ctx context.Context, name string, args ...string) error {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}
