// Package qemu runs machines as virtual machines, with their own kernel, udev and disks. They need no hardware support:
// QEMU's emulator (TCG) boots a systemd in about twenty seconds. The root disk of a machine is a layer over a shared
// image; its other disks are plain image files. Programs and files inside are accessed over a virtio serial port.
package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"cambium/internal/atomicfile"
	"cambium/lab/image"
	"cambium/lab/machine"
)

// Engine creates machines from the images of a cache.
type Engine struct {
	Images image.Cache
	// Image replaces the cached image, for instance with a stemcell's. If it has no kernel, it starts with its own boot
	// loader; the lab cannot write files or run programs in such a machine.
	Image image.Image
	// Attach is a command line that opens a shell in a machine. The socket is appended; see Machine.Shell.
	Attach []string
	// RootSize is the size of the root disk; 3 GiB if zero. The file system in the image is smaller.
	RootSize int64
	// Memory is in MiB, 1024 if zero. CPUs is 2 if zero.
	Memory, CPUs int
	// RootBus is the bus of the root disk, machine.Virtio or machine.SCSI; Virtio if empty.
	RootBus machine.Bus
	// UEFI boots with OVMF instead of SeaBIOS, for images with an EFI system partition.
	UEFI bool
	// SecureBoot makes the firmware, which must be UEFI, start only what Microsoft's keys have signed.
	SecureBoot bool
	// Kernel is appended to the kernel's command line.
	Kernel string
	// HangTimeout is the time after which a machine is restarted if its kernel has not booted. If zero, it is two
	// minutes for an emulated machine, which is many times what it needs, and no limit for any other.
	HangTimeout time.Duration
}

// CheckHost returns an error for what this host lacks.
func (e Engine) CheckHost() error {
	if runtime.GOOS != "linux" {
		return fmt.Errorf("machines need Linux; this is %s", runtime.GOOS)
	}
	var lacks []string
	for program, pkg := range map[string]string{"qemu-system-x86_64": "qemu-system-x86", "qemu-img": "qemu-utils",
		"nsenter": "util-linux", "setpriv": "util-linux"} {
		if _, err := exec.LookPath(program); err != nil {
			lacks = append(lacks, program+" (package "+pkg+")")
		}
	}
	if _, err := os.Stat(firmwareCode); e.UEFI && err != nil {
		lacks = append(lacks, "UEFI firmware (package ovmf)")
	}
	if len(lacks) > 0 {
		return fmt.Errorf("virtual machines need %s", strings.Join(lacks, " and "))
	}
	return image.CheckHost()
}

// Create creates the machine and, unless it exists, its root disk.
func (e Engine) Create(ctx context.Context, s machine.Spec) (machine.Machine, error) {
	if err := e.CheckHost(); err != nil {
		return nil, err
	}
	img := e.Image
	if img.Disk == "" {
		var err error
		if img, err = e.Images.Ensure(ctx, s.Agent); err != nil {
			return nil, err
		}
	}
	if e.RootSize == 0 {
		e.RootSize = 3 << 30
	}
	if e.Memory == 0 {
		e.Memory = 1024
	}
	if e.CPUs == 0 {
		e.CPUs = 2
	}
	accelerator := e.accelerator(ctx, img)
	if e.HangTimeout == 0 && slices.Equal(accelerator, emulated) {
		e.HangTimeout = 2 * time.Minute
	}
	m := &Machine{engine: e, image: img, accelerator: accelerator, files: map[string]machine.File{},
		snapshots: map[string]snapshot{}}
	m.Begin(s)
	undo := machine.Fresh(s.Dir)
	if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return nil, err
	}
	if err := errors.Join(m.makeRoot(ctx), m.makeFirmware()); err != nil {
		return nil, errors.Join(err, undo())
	}
	if len(s.AgentJSON) > 0 {
		m.writeAtStart(machine.File{Path: "/var/vcap/bosh/agent.json", Data: s.AgentJSON, Mode: 0o644})
	}
	id := strings.ReplaceAll(machine.MAC(s.Name, -1).String(), ":", "")
	m.writeAtStart(machine.File{Path: "/etc/machine-id", Data: []byte(strings.Repeat("0", 20) + id + "\n"), Mode: 0o444})
	for _, f := range s.Files {
		m.writeAtStart(f)
	}
	if err := m.listen(); err != nil {
		return nil, errors.Join(err, undo())
	}
	return m, nil
}

// makeRoot creates a layer over the image. It is renamed into place when it is complete.
func (m *Machine) makeRoot(ctx context.Context) error {
	if _, err := os.Lstat(m.rootDisk()); err == nil {
		return nil
	}
	temporary := m.rootDisk() + ".new"
	create := exec.CommandContext(ctx, "qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", m.image.Disk,
		temporary, fmt.Sprint(m.engine.RootSize))
	if out, err := create.CombinedOutput(); err != nil {
		return fmt.Errorf("root disk of %s: %w: %s", m.Spec.Name, err, strings.TrimSpace(string(out)))
	}
	return os.Rename(temporary, m.rootDisk())
}

// OVMF files of Debian's package ovmf: the program, and its variables, of which each machine has a copy. The enrolled
// variables have Microsoft's keys and enable Secure Boot. Without SMM the guest's kernel could change them, which no
// test does.
const (
	firmwareCode      = "/usr/share/OVMF/OVMF_CODE_4M.fd"
	firmwareVariables = "/usr/share/OVMF/OVMF_VARS_4M.fd"
	enrolledVariables = "/usr/share/OVMF/OVMF_VARS_4M.ms.fd"
)

// makeFirmware creates the machine's copy of the firmware's variables, unless it exists.
func (m *Machine) makeFirmware() error {
	if _, err := os.Lstat(m.variables()); err == nil || !m.engine.UEFI {
		return nil
	}
	source := firmwareVariables
	if m.engine.SecureBoot {
		source = enrolledVariables
	}
	data, err := os.ReadFile(source)
	if err != nil {
		return fmt.Errorf("UEFI firmware of %s: %w", m.Spec.Name, err)
	}
	return atomicfile.Write(m.variables(), data, 0o600)
}

func (m *Machine) variables() string { return filepath.Join(m.Spec.Dir, "firmware-variables") }

// firmware returns QEMU's arguments for the board and for booting, and the sets that they refer to.
func (m *Machine) firmware(d *descriptors) (argv []string, sets []int, err error) {
	if !m.engine.UEFI {
		return []string{"-machine", "pc"}, nil, nil
	}
	set, err := d.open(m.variables(), os.O_RDWR)
	if err != nil {
		return nil, nil, err
	}
	code := map[string]any{"driver": "raw", "node-name": "firmware", "read-only": true,
		"file": map[string]any{"driver": "file", "filename": firmwareCode}}
	argv = []string{"-machine", "pc,pflash0=firmware,pflash1=variables"}
	argv, err = described(argv, []map[string]any{code, raw("variables", set, false)}, nil)
	return argv, []int{set}, err
}
