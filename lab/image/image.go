// Package image builds disk images for virtual machines from the lab's Debian tree: a partition table, a root file
// system that can grow, a kernel and a small initial RAM disk, with the agent installed as in a stemcell. It mounts no
// image and uses no loop devices. Images are cached under names derived from their content.
package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"cambium/lab/guest"
	"cambium/lab/image/bootloader"
	"cambium/lab/initrd"
	"cambium/lab/tree"
	assets "cambium/stemcell-assets"
)

// recipe must be changed when the code below builds other images from the same parts.
const recipe = "8"

// GuestProgram is the path of the guest program in an image.
const GuestProgram = "/usr/local/sbin/cambium-guest"

// Paths at which the installer puts the agent, and its second name.
const (
	agentPath       = "/var/vcap/bosh/bin/bosh-agent"
	monitAccessPath = "/var/vcap/bosh/etc/bosh-enable-monit-access"
)

// modules lists what the initial RAM disk loads: the modules for the root disk and, for the lab, the serial port. The
// system itself loads the others.
var modules = []string{"virtio", "virtio_ring", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci",
	"virtio_blk",
	"scsi_common", "scsi_mod", "sd_mod", "virtio_scsi", "nvme-common", "nvme-core", "nvme", "virtio_console"}

// cloudModules lists the drivers of root disks on other hypervisors: Xen, Hyper-V, VMware, and plain SATA or IDE. They
// are loaded only if no root disk appears without them, because they take time even if they find nothing.
var cloudModules = []string{"xen-blkfront", "hv_vmbus", "scsi_transport_fc", "hv_storvsc", "vmw_pvscsi", "libata",
	"ata_piix", "libahci", "ahci"}

// Cache is a directory with images and Debian trees.
type Cache struct {
	Dir string
	// Guest is the path of the guest program. If it is empty, the one beside this executable is used, or one is built
	// with Go.
	Guest string
	// Progress is called at the start of long operations; may be nil.
	Progress func(format string, args ...any)
}

// Image is a bootable disk. QEMU can also load its kernel and initial RAM disk directly.
type Image struct {
	Disk   string // raw image, never changed
	Kernel string
	Initrd string
}

func (c Cache) progress(format string, args ...any) {
	if c.Progress != nil {
		c.Progress(format, args...)
	}
}

// done ends a stage that progress has announced.
func (c Cache) done(begin time.Time, made string) {
	c.progress("done: %d MiB in %.0f s", diskUsage(made)>>20, time.Since(begin).Seconds())
}

// CheckHost returns an error for what this host lacks to build images.
func CheckHost() error {
	var lacks []string
	if os.Geteuid() != 0 {
		lacks = append(lacks, "root (for a mount namespace)")
	}
	for program, pkg := range map[string]string{"mke2fs": "e2fsprogs", "debugfs": "e2fsprogs", "sfdisk": "fdisk",
		"qemu-img": "qemu-utils", "mkfs.vfat": "dosfstools", "mcopy": "mtools"} {
		if _, err := exec.LookPath(program); err != nil {
			lacks = append(lacks, program+" (package "+pkg+")")
		}
	}
	if len(lacks) > 0 {
		return fmt.Errorf("disk images need %s", strings.Join(lacks, " and "))
	}
	return nil
}

// Ensure returns the lab's image with the agent. It builds the image if it does not exist.
func (c Cache) Ensure(ctx context.Context, agent string) (Image, error) {
	return c.ensure(ctx, agent, builder{iaas: "qemu"})
}

func (c Cache) ensure(ctx context.Context, agent string, b builder) (Image, error) {
	base, err := c.base(ctx, b)
	if err != nil {
		return Image{}, fmt.Errorf("disk image: %w", err)
	}
	digest, err := fileDigest(agent)
	if err != nil {
		return Image{}, fmt.Errorf("disk image: %w", err)
	}
	baked := sha256.Sum256(fmt.Append(nil, digest, b.files))
	dir := base + agentPart + hex.EncodeToString(baked[:])[:16]
	err = c.once(dir, func(work string) error {
		c.prune()
		return bake(ctx, filepath.Join(base, "disk"), filepath.Join(work, "disk"), agent, b.files)
	})
	if err != nil {
		return Image{}, fmt.Errorf("add the agent to the image: %w", err)
	}
	return Image{Disk: filepath.Join(dir, "disk"), Kernel: filepath.Join(base, "kernel"),
		Initrd: filepath.Join(base, "initrd")}, nil
}

// once calls f to build a directory, unless it exists, and holds it. If several processes call it at the same time, one
// builds and the others wait.
func (c Cache) once(dir string, f func(work string) error) error {
	if err := tree.Hold(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := tree.Private(c.Dir); err != nil {
		return err
	}
	lock, err := os.OpenFile(dir+lockSuffix, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	if err := tree.Hold(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	work := dir + workSuffix
	if err := os.RemoveAll(work); err != nil { // of a build that was killed
		return err
	}
	if err := os.Mkdir(work, 0o700); err != nil {
		return err
	}
	begin := time.Now()
	if err := f(work); err != nil {
		return errors.Join(err, os.RemoveAll(work))
	}
	c.done(begin, work)
	if err := os.Rename(work, dir); err != nil {
		return err
	}
	return tree.Hold(dir)
}

// base ensures an image without the agent, which changes most often, and returns its directory.
func (c Cache) base(ctx context.Context, b builder) (string, error) {
	if err := CheckHost(); err != nil {
		return "", err
	}
	debian := tree.Cache{Dir: c.Dir}
	begin, built := time.Now(), debian.Built()
	if !built {
		c.progress("building the Debian tree in %s (once, about a minute)", c.Dir)
	}
	root, err := debian.Ensure(ctx)
	if err != nil {
		return "", err
	}
	if !built {
		c.done(begin, root)
	}
	if b.tree = root; b.stemcell {
		if b.tree, err = c.stemcellTree(ctx, root); err != nil {
			return "", err
		}
	}
	if b.kernel, err = c.EnsureKernel(ctx); err != nil {
		return "", err
	}
	program := labGuest
	loaders := map[string]string{}
	if b.stemcell {
		program = firstProgram
		if b.loaders, err = c.ensureLoaders(ctx); err != nil {
			return "", err
		}
		for _, name := range bootloader.SignedParts {
			if loaders[name], err = fileDigest(filepath.Join(b.loaders, name)); err != nil {
				return "", err
			}
		}
	}
	if b.guest, err = c.program(ctx, program); err != nil {
		return "", err
	}
	digest, err := fileDigest(b.guest)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	_, _ = fmt.Fprintln(h, recipe, b.tree, b.kernel.Version, modules, cloudModules, digest,
		string(guest.Unit(GuestProgram)), assets.Digest(), b.stemcell, b.iaas, b.bootConfig(), noSandbox, sandboxed,
		b.hardened, loaders)
	dir := filepath.Join(c.Dir, imagePrefix+hex.EncodeToString(h.Sum(nil))[:16])
	return dir, c.once(dir, func(work string) error {
		c.progress("making a disk image in %s (once)", c.Dir)
		b.work = work
		return b.build(ctx)
	})
}

// Names of programs: the lab's guest program, and the first program of stemcells.
const (
	labGuest     = "lab-guest"
	firstProgram = "stemcell-init"
)

var programPackages = map[string]string{
	labGuest:     "cambium/lab/guest/program",
	firstProgram: "cambium/lab/guest/first",
}

// program returns the path of a program. It builds the program if it does not exist.
func (c Cache) program(ctx context.Context, name string) (string, error) {
	if c.Guest != "" && name == labGuest {
		return c.Guest, nil
	}
	if own, err := os.Executable(); err == nil {
		path := filepath.Join(filepath.Dir(own), name)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	path := filepath.Join(c.Dir, name)
	if err := tree.Private(c.Dir); err != nil {
		return "", err
	}
	// Concurrent builds, also of one process, must not replace each other's temporary file.
	file, err := os.CreateTemp(c.Dir, name+"-*.new")
	if err != nil {
		return "", err
	}
	temporary := file.Name()
	defer func() { _ = os.Remove(temporary) }()
	if err := file.Close(); err != nil {
		return "", err
	}
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -buildid=", "-o",
		temporary, programPackages[name])
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s is not beside the lab's program and cannot be built: %w: %s", name, err, out)
	}
	return path, errors.Join(os.Chmod(temporary, 0o755), os.Rename(temporary, path))
}

func fileDigest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// ramDisk returns the initial RAM disk.
func ramDisk(program string, kernel Kernel, fallback ...string) ([]byte, error) {
	var a initrd.Archive
	a.Dir("proc", "sys", "root")
	a.Console()
	a.Copy("init", program)
	a.Modules(initrd.ModuleDir, kernel.Modules, modules...)
	a.Modules(initrd.FallbackModuleDir, kernel.Modules, fallback...)
	return a.Bytes()
}

// Trial returns an image of Debian's kernel with an initial RAM disk in dir, and no root disk. It is enough to find out
// whether virtual machines run.
func (c Cache) Trial(ctx context.Context, dir string) (Image, error) {
	kernel, err := c.EnsureKernel(ctx)
	if err != nil {
		return Image{}, err
	}
	program, err := c.program(ctx, firstProgram)
	if err != nil {
		return Image{}, err
	}
	data, err := ramDisk(program, kernel)
	if err != nil {
		return Image{}, err
	}
	img := Image{Kernel: kernel.Image, Initrd: filepath.Join(dir, "initrd")}
	return img, os.WriteFile(img.Initrd, data, 0o600)
}

func run(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}
