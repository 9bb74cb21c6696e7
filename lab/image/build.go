package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"cambium/lab/guest"
	"cambium/lab/image/bootloader"
	"cambium/lab/tree"
	assets "cambium/stemcell-assets"
)

// The layout. Boot loaders are at the start of the disk, so that the root partition can grow. A stemcell has an EFI
// system partition of upstream's size, with GRUB for BIOS before it. The lab's image has a smaller GPT partition for
// GRUB.
const (
	sectorSize = 512
	mib        = int64(1) << 20
	bootStart  = 1 * mib
	bootSize   = 1 * mib
	efiSize    = 48 * mib
	rootStart  = bootStart + efiSize
)

type builder struct {
	tree, guest, work string
	kernel            Kernel
	// stemcell builds an image that boots by itself and contains nothing of the lab.
	stemcell bool
	hardened bool   // with the settings that audits require
	loaders  string // directory of the signed boot loaders
	iaas     string // the IaaS whose agent.json is used
	files    []file // files to write in addition to the agent
}

// file is a small file in the root file system.
type file struct{ path, content string }

func (b builder) build(ctx context.Context) error {
	var fallback []string
	if b.stemcell {
		fallback = cloudModules
	}
	ram, err := ramDisk(b.guest, b.kernel, fallback...)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(b.work, "initrd"), ram, 0o644); err != nil {
		return err
	}
	if err := run(ctx, "cp", b.kernel.Image, filepath.Join(b.work, "kernel")); err != nil {
		return err
	}
	layer := tree.Layer{Tree: b.tree, Dir: filepath.Join(b.work, "layer")}
	if err := layer.Make(); err != nil {
		return err
	}
	err = layer.Mounted(func(root string) error {
		if err := b.fill(ctx, root); err != nil {
			return err
		}
		table := labTable
		if b.stemcell {
			table = stemcellTable
		}
		return makeDisk(ctx, root, filepath.Join(b.work, "disk"), table)
	})
	if err == nil && b.stemcell {
		err = bootloader.Disk{Path: filepath.Join(b.work, "disk"), RootUUID: rootUUID, Signed: b.loaders,
			EFIStart: bootStart, EFISize: efiSize}.Install(ctx, b.work)
	}
	return errors.Join(err, os.RemoveAll(layer.Dir))
}

// fill writes the kernel's modules, the stemcell's assets and, for the lab's machines, the guest program to the root.
func (b builder) fill(ctx context.Context, root string) error {
	modules := filepath.Join(root, "usr/lib/modules")
	if b.kernel.Image == "" {
		return b.install(ctx, root)
	}
	if err := os.MkdirAll(modules, 0o755); err != nil {
		return err
	}
	if err := run(ctx, "cp", "-r", b.kernel.Modules, modules); err != nil {
		return err
	}
	if err := run(ctx, "chroot", root, "depmod", b.kernel.Version); err != nil {
		return err
	}
	return b.install(ctx, root)
}

func (b builder) install(ctx context.Context, root string) error {
	installer, err := assets.Unpack(filepath.Join(b.work, "assets"))
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(filepath.Join(b.work, "assets")) }()
	// Any file will do for the agent here: bake replaces it.
	args := []string{"--agent", b.guest}
	if b.iaas != "" {
		args = append(args, "--iaas", b.iaas)
	}
	if !b.stemcell {
		args = append(args, "--log", "journal") // which the lab reads
	}
	install := exec.CommandContext(ctx, installer, args...)
	install.Env = append(os.Environ(), "DESTDIR="+root)
	if out, err := install.CombinedOutput(); err != nil {
		return fmt.Errorf("install: %w: %s", err, strings.TrimSpace(string(out)))
	}
	if b.stemcell {
		return b.fillStemcell(ctx, root)
	}
	dir, err := os.OpenRoot(root)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	if err := copyInto(dir, b.guest, strings.TrimPrefix(GuestProgram, "/")); err != nil {
		return err
	}
	const units = "etc/systemd/system"
	for _, name := range sandboxed {
		drops := filepath.Join(units, name+".service.d")
		if err := dir.MkdirAll(drops, 0o755); err != nil {
			return err
		}
		if err := dir.WriteFile(filepath.Join(drops, "lab.conf"), []byte(noSandbox), 0o644); err != nil {
			return err
		}
	}
	if err := dir.WriteFile(units+"/cambium-guest.service", guest.Unit(GuestProgram), 0o644); err != nil {
		return err
	}
	return run(ctx, "systemctl", "--root="+root, "--quiet", "enable", "cambium-guest.service")
}

// sandboxed lists Debian's services whose sandboxes cost an emulated machine a second each, and time at every system
// call. The lab's machines run them without a sandbox; stemcells keep it.
var sandboxed = []string{"systemd-journald", "systemd-udevd", "systemd-networkd", "systemd-resolved",
	"systemd-timesyncd", "systemd-hostnamed"}

const noSandbox = `[Service]
SystemCallFilter=
SystemCallArchitectures=
RestrictAddressFamilies=
RestrictNamespaces=no
RestrictRealtime=no
RestrictSUIDSGID=no
LockPersonality=no
MemoryDenyWriteExecute=no
NoNewPrivileges=no
PrivateDevices=no
PrivateNetwork=no
PrivateTmp=no
ProtectClock=no
ProtectControlGroups=no
ProtectHome=no
ProtectHostname=no
ProtectKernelLogs=no
ProtectKernelModules=no
ProtectKernelTunables=no
ProtectProc=default
ProtectSystem=no
IPAddressDeny=
DeviceAllow=
`

// rootUUID is the UUID of the root file system. It is fixed, because the boot loader names it and builds are
// reproducible.
const rootUUID = "63616d62-6975-6d20-8073-74656d63656c"

// bootConfig returns the path of the boot loader's configuration in the root file system, where the agent edits it for
// IPv6.
func (b builder) bootConfig() string {
	protection, audit := "", ""
	if b.hardened {
		// Without the limit the kernel keeps 64 records for auditd, which starts when its directory is mounted.
		protection, audit = bootPassword(), " audit=1 audit_backlog_limit=8192"
	}
	return protection + "linux /boot/vmlinuz root=UUID=" + rootUUID +
		" rw net.ifnames=0 biosdevname=0 console=tty0 console=ttyS0,115200n8 cgroup_enable=memory swapaccount=1" + audit + " panic=30 quiet\n" +
		"initrd /boot/initrd\nboot\n"
}

// labTable is a GPT. The lab's machines find the partition by its name. stemcellTable is an MBR with the partitions of
// upstream's EFI stemcells. BIOS machines can boot it, too, because their boot loader is before both partitions.
const (
	labTable      = "label: gpt\n14 : start=%[1]d, size=%[2]d, type=21686148-6449-6E6F-744E-656564454649, name=boot\n1 : start=%[3]d, size=%[4]d, type=L, name=" + guest.RootName + "\n"
	stemcellTable = "label: dos\nlabel-id: 0x63616d62\n1 : start=%[1]d, size=%[5]d, type=ef, bootable\n2 : start=%[3]d, size=%[4]d, type=83\n"
)

// makeDisk creates a partitioned disk with an ext4 that contains a copy of root.
func makeDisk(ctx context.Context, root, disk, table string) error {
	used, err := treeSize(root)
	if err != nil {
		return err
	}
	// Room for inodes, the journal, bigger agents and first steps of a machine.
	size := (used*5/4 + 160*mib) / mib * mib
	f, err := os.OpenFile(disk, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	err = f.Truncate(rootStart + size + mib) // the copy of the table is at the end
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	sfdisk := exec.CommandContext(ctx, "sfdisk", "--quiet", disk)
	sfdisk.Stdin = strings.NewReader(fmt.Sprintf(table, bootStart/sectorSize, bootSize/sectorSize, rootStart/sectorSize,
		size/sectorSize, efiSize/sectorSize))
	if out, err := sfdisk.CombinedOutput(); err != nil {
		return fmt.Errorf("sfdisk: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return run(ctx, "mke2fs", "-q", "-F", "-t", "ext4", "-L", "root", "-U", rootUUID, "-E",
		fmt.Sprintf("offset=%d", rootStart), "-d", root, disk, fmt.Sprintf("%dk", size>>10))
}

// treeSize returns the disk space that the files of a tree use, in bytes.
func treeSize(root string) (size int64, err error) {
	err = filepath.WalkDir(root, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			size += st.Blocks * 512
		}
		return nil
	})
	return size, err
}

// bake copies a disk, and writes the agent and the files to the copy.
func bake(ctx context.Context, from, to, agent string, files []file) error {
	if err := run(ctx, "cp", "--sparse=always", "--reflink=auto", from, to); err != nil {
		return err
	}
	if err := putInto(ctx, to, agent, agentPath, 0o755); err != nil {
		return err
	}
	// The file is a new one: its second name has to be made again. debugfs leaves the count of names to its caller.
	if out, err := debugfs(ctx, to, fmt.Sprintf("rm %[2]s\nln %[1]s %[2]s\nset_inode_field %[1]s links_count 2\n",
		agentPath, monitAccessPath)); err != nil {
		return fmt.Errorf("debugfs: %s: %w: %s", monitAccessPath, err, out)
	}
	for _, f := range files {
		path := to + ".file"
		err := os.WriteFile(path, []byte(f.content), 0o644)
		if err == nil {
			err = putInto(ctx, to, path, f.path, 0o644)
		}
		if err = errors.Join(err, os.Remove(path)); err != nil {
			return err
		}
	}
	return nil
}

// debugfs changes the root file system of a disk that is not in use. Its exit status is always 0, so check the output.
func debugfs(ctx context.Context, disk, commands string) (string, error) {
	cmd := exec.CommandContext(ctx, "debugfs", "-w", "-f", "-", fmt.Sprintf("%s?offset=%d", disk, rootStart))
	cmd.Stdin = strings.NewReader(commands)
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// putInto writes a file of the host to the root file system of a disk that is not in use. The directory must exist.
func putInto(ctx context.Context, disk, file, path string, mode fs.FileMode) error {
	commands := fmt.Sprintf("rm %[1]s\nwrite %[2]s %[1]s\nset_inode_field %[1]s mode 0%[3]o\nset_inode_field %[1]s uid 0\nset_inode_field %[1]s gid 0\nstat %[1]s\n",
		path, file, 0o100000|mode.Perm())
	out, err := debugfs(ctx, disk, commands)
	info, statErr := os.Stat(file)
	if err = errors.Join(err, statErr); err == nil && !strings.Contains(out, fmt.Sprintf("Size: %d\n", info.Size())) {
		err = errors.New("the file was not written")
	}
	if err != nil {
		return fmt.Errorf("debugfs: %s: %w: %s", path, err, out)
	}
	return nil
}

// Extract reads a file in the root file system of a disk that is not in use.
func Extract(ctx context.Context, disk, path string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "debugfs", "-R", "cat "+path, fmt.Sprintf("%s?offset=%d", disk, rootStart))
	var words strings.Builder
	cmd.Stderr = &words
	out, err := cmd.Output()
	if err == nil && strings.Contains(words.String(), "File not found") {
		err = fmt.Errorf("%s: %w", path, fs.ErrNotExist)
	}
	return out, err
}
