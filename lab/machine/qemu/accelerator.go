package qemu

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"cambium/lab/guest"
	"cambium/lab/image"
)

// emulated has QEMU's arguments for running without hardware support.
var emulated = []string{"-accel", "tcg,thread=multi,tb-size=512", "-cpu", "qemu64"}

var assisted = []string{"-accel", "kvm", "-cpu", "host"}

// probeTimeout bounds a test boot, which takes a second if KVM works.
const probeTimeout = 10 * time.Second

var probing sync.Mutex

// accelerator returns QEMU's arguments for running with or without KVM. The existence of /dev/kvm proves nothing: with
// nested virtualization, guests often hang. So a small guest is booted as a test, once per boot of this host. That
// needs the image's kernel. Without it, the result of Probe, or of a test for another image, is used.
func (e Engine) accelerator(ctx context.Context, img image.Image) []string {
	device, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return emulated
	}
	_ = device.Close()
	probing.Lock()
	defer probing.Unlock()
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return emulated
	}
	note := filepath.Join(e.Images.Dir, "kvm-"+strings.TrimSpace(string(boot)))
	verdict, err := os.ReadFile(note)
	if err != nil && img.Kernel == "" {
		return emulated
	}
	if err != nil {
		verdict = []byte("no")
		within, cancel := context.WithTimeout(ctx, probeTimeout)
		defer cancel()
		if probe(within, img, assisted) {
			verdict = []byte("yes")
		}
		if ctx.Err() == nil {
			_ = os.WriteFile(note, verdict, 0o644) // else the next one tries again
		}
	}
	if string(verdict) == "yes" {
		return assisted
	}
	return emulated
}

// Probe makes the test boot with Debian's kernel, for images without a kernel of their own, unless the result is known.
func (e Engine) Probe(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "cambium-probe-")
	if err != nil {
		return err
	}
	img, err := e.Images.Trial(ctx, dir)
	if err == nil {
		e.accelerator(ctx, img)
	}
	return errors.Join(err, os.RemoveAll(dir))
}

// probe boots a kernel whose first program only reports that it runs. It uses the same user as machines.
func probe(ctx context.Context, img image.Image, accelerator []string) bool {
	var inherited descriptors
	defer inherited.close()
	program, err := os.ReadFile(img.Kernel)
	if err != nil {
		return false
	}
	ram, err := os.ReadFile(img.Initrd)
	if err != nil {
		return false
	}
	boot, err := bootKernel(&inherited, program, ram, "console=ttyS0 panic=-1 quiet no_timer_check "+guest.ProbeWord)
	if err != nil {
		return false
	}
	argv := slices.Concat(asUser("probe", accelerator), []string{"qemu-system-x86_64", "-machine", "pc", "-smp", "2",
		"-m", "512", "-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio"}, boot, accelerator)
	qemu := exec.CommandContext(ctx, argv[0], argv[1:]...)
	qemu.ExtraFiles, qemu.Env = inherited, environment()
	out, _ := qemu.Output() // its words are the answer
	return strings.Contains(string(out), guest.ProbeAnswer) && ctx.Err() == nil
}
