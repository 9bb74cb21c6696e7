// Package qemu makes machines that are virtual machines, with a kernel, udev and disks of their
// own. They need no hardware support: QEMU's own interpreter boots a systemd in about twenty
// seconds. Each machine's root disk is a layer over a shared image; its other disks are plain
// image files. Programs and files inside are reached over a virtio serial port.
package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"cambium/integration/lab/image"
	"cambium/integration/lab/machine"
)

// Engine makes machines from the images of a cache.
type Engine struct {
	Images image.Cache
	// Image is used instead of one from the cache, such as a stemcell's. Without a kernel the disk's own
	// boot loader starts it; files and programs cannot be put into such a machine.
	Image image.Image
	// Attach is the command line, without its last arguments, that opens a shell in a machine
	// whose socket it is told; see Machine.Shell.
	Attach []string
	// RootSize is the size of the root disk, 3 GiB if zero; the image's file system is smaller.
	RootSize int64
	// Memory in MiB, 1024 if zero; CPUs, 2 if zero.
	Memory, CPUs int
	// Kernel is added to the kernel's command line.
	Kernel string
}

// Missing says what this host lacks.
func (e Engine) Missing() error {
	if runtime.GOOS != "linux" {
		return fmt.Errorf("machines need Linux; this is %s", runtime.GOOS)
	}
	var lacks []string
	for program, pkg := range map[string]string{"qemu-system-x86_64": "qemu-system-x86", "qemu-img": "qemu-utils", "nsenter": "util-linux"} {
		if _, err := exec.LookPath(program); err != nil {
			lacks = append(lacks, program+" (package "+pkg+")")
		}
	}
	if len(lacks) > 0 {
		return fmt.Errorf("virtual machines need %s", strings.Join(lacks, " and "))
	}
	return image.Missing()
}

// Create makes the machine's root disk, unless it is there already.
func (e Engine) Create(ctx context.Context, s machine.Spec) (machine.Machine, error) {
	if err := e.Missing(); err != nil {
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
	m := &Machine{engine: e, image: img, accelerator: e.accelerator(ctx, img), files: map[string]machine.File{}, snapshots: map[string]snapshot{}}
	m.Begin(s)
	undo := machine.Fresh(s.Dir)
	if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return nil, err
	}
	if err := m.makeRoot(ctx); err != nil {
		return nil, errors.Join(err, undo())
	}
	if len(s.AgentJSON) > 0 {
		m.pend(machine.File{Path: "/var/vcap/bosh/agent.json", Data: s.AgentJSON, Mode: 0o644})
	}
	id := strings.ReplaceAll(machine.MAC(s.Name, -1).String(), ":", "")
	m.pend(machine.File{Path: "/etc/machine-id", Data: []byte(strings.Repeat("0", 20) + id + "\n"), Mode: 0o444})
	for _, f := range s.Files {
		m.pend(f)
	}
	if err := m.listen(); err != nil {
		return nil, errors.Join(err, undo())
	}
	return m, nil
}

// makeRoot makes a layer over the image. It gets its name when it is complete.
func (m *Machine) makeRoot(ctx context.Context) error {
	if _, err := os.Lstat(m.rootDisk()); err == nil {
		return nil
	}
	temporary := m.rootDisk() + ".new"
	create := exec.CommandContext(ctx, "qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", m.image.Disk, temporary, fmt.Sprint(m.engine.RootSize))
	if out, err := create.CombinedOutput(); err != nil {
		return fmt.Errorf("root disk of %s: %w: %s", m.Spec.Name, err, strings.TrimSpace(string(out)))
	}
	return os.Rename(temporary, m.rootDisk())
}
