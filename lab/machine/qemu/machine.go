package qemu

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"cambium/lab/guest"
	"cambium/lab/image"
	"cambium/lab/initrd"
	"cambium/lab/machine"
	"cambium/lab/notes"

	"golang.org/x/sys/unix"
)

// Machine is a virtual machine.
type Machine struct {
	machine.Common[boot]
	engine Engine
	image  image.Image
	shells net.Listener
	// accelerator has QEMU's arguments for running the processors.
	accelerator []string

	disks     []*attached
	numbers   int
	files     map[string]machine.File // to be written at the next start
	snapshots map[string]snapshot
	writes    string // directory of LogWrites
	closed    bool
	hung      bool // the kernel hung in the last boot

	// seen guards what QEMU's events set. Events must not wait for Mu, because its holders may wait for QEMU.
	seen     sync.Mutex
	trayOpen bool
}

// boot is one run of QEMU.
type boot struct {
	qemu      *exec.Cmd
	qmp       *monitor
	guestConn *guestConn
	output    *os.File // QEMU's own output
	ended     chan struct{}
	cd        bool // the machine has a CD drive
	reset     bool // the machine has requested a reboot; guarded by seen
	quit      bool // the machine has powered itself off; guarded by seen
	off       bool // its end was requested from outside
	hung      bool // its kernel hung
	rebooted  bool // it was started again
}

func (m *Machine) rootDisk() string { return filepath.Join(m.Spec.Dir, "root.qcow2") }

// Start switches the machine on.
func (m *Machine) Start(ctx context.Context) error {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	if m.closed {
		return fmt.Errorf("start %s: %w", m.Spec.Name, os.ErrClosed)
	}
	if m.Current != nil {
		return nil
	}
	if err := m.start(ctx, false); err != nil {
		return fmt.Errorf("start %s: %w", m.Spec.Name, err)
	}
	return nil
}

// start runs QEMU. If paused is set, the processors do not run yet.
func (m *Machine) start(ctx context.Context, paused bool) error {
	for _, a := range m.disks {
		a.hot = false
	}
	var inherited descriptors
	defer inherited.close()
	delivered := maps.Clone(m.files)
	argv, ends, err := m.argv(&inherited, paused)
	if err != nil {
		return err
	}
	b := &boot{qemu: exec.Command(argv[0], argv[1:]...), ended: make(chan struct{})}
	if b.output, err = os.OpenFile(filepath.Join(m.Spec.Dir, "qemu.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY,
		0o600); err != nil {
		return err
	}
	b.qemu.Stdout, b.qemu.Stderr, b.qemu.ExtraFiles = b.output, b.output, inherited
	b.qemu.Env, b.qemu.SysProcAttr = environment(), ownGroup
	for _, a := range m.disks {
		b.cd = b.cd || a.disk.Bus == machine.CDROM
	}
	if err := b.qemu.Start(); err != nil {
		return err
	}
	inherited.close() // so that the connections end with QEMU
	m.Booted(b)
	m.tray(false)
	b.guestConn = newGuestConn(ends.guest, func() { go m.arrived(b, delivered) })
	exited := make(chan error, 1)
	go func() { exited <- b.qemu.Wait() }()
	ctx, cancel := context.WithTimeout(ctx, monitorTimeout)
	defer cancel()
	b.qmp, err = newMonitor(ctx, ends.qmp, func(msg message) { m.event(b, msg) })
	go m.wait(b, exited)
	if err != nil {
		m.Current = nil
		_ = b.qemu.Process.Kill()
		return fmt.Errorf("%w; it says: %s", err, m.outputTail())
	}
	if m.engine.HangTimeout > 0 && m.image.Kernel != "" && !paused && !m.hung {
		go m.watch(b)
	}
	return nil
}

// watch restarts the machine once if its kernel does not boot in time. An emulated kernel calibrates its timers against
// each other. If a busy host suspends it between two readings, the timers tick many times too fast, and the kernel only
// handles their interrupts.
func (m *Machine) watch(b *boot) {
	late := time.NewTimer(m.engine.HangTimeout)
	defer late.Stop()
	select {
	case <-b.guestConn.connected:
		return
	case <-b.ended:
		return
	case <-late.C:
	}
	m.Mu.Lock()
	defer m.Mu.Unlock()
	select {
	case <-b.guestConn.connected: // just now
		return
	default:
	}
	if m.Current != b || b.off {
		return
	}
	m.hung, b.hung = true, true
	text := fmt.Sprintf("the kernel did not boot within %v; restarting the machine", m.engine.HangTimeout)
	notes.Add("%s: %s", m.Name(), text)
	m.note("lab: " + text)
	_ = b.qemu.Process.Kill()
}

// note appends a line to the console's log.
func (m *Machine) note(line string) {
	console, err := os.OpenFile(m.Console(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return // only people read it
	}
	_, _ = fmt.Fprintln(console, line)
	_ = console.Close()
}

// monitorTimeout bounds the wait for the first reply of QEMU's monitor.
const monitorTimeout = time.Minute

// connection returns a pair of connected sockets, the second for QEMU.
func connection() (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socket pair: %w", err)
	}
	near, far := os.NewFile(uintptr(fds[0]), "near"), os.NewFile(uintptr(fds[1]), "far")
	conn, err := net.FileConn(near)
	_ = near.Close()
	if err != nil {
		return nil, nil, errors.Join(err, far.Close())
	}
	return conn.(*net.UnixConn), far, nil
}

// ends has the lab's ends of the connections to QEMU.
type ends struct{ qmp, guest *net.UnixConn }

// argv returns QEMU's command line, and adds its files to d.
func (m *Machine) argv(d *descriptors, paused bool) (argv []string, e ends, err error) {
	if len(m.Spec.NICs) > 0 {
		// Among the processes of the lab's network, by which a crashed lab is cleaned up.
		argv = append(argv, "nsenter", "--net="+m.Spec.NICs[0].Net.Path())
	}
	argv = append(argv, asUser(m.Spec.Name, m.accelerator)...)
	argv = append(argv, "qemu-system-x86_64", "-name", m.Spec.Name, "-nodefaults", "-no-user-config",
		"-display", "none", "-no-reboot", "-smp", fmt.Sprint(m.engine.CPUs), "-m", fmt.Sprint(m.engine.Memory),
		"-device", "virtio-serial-pci", "-device", "virtio-rng-pci", "-device", "virtio-scsi-pci,id=scsi",
		// What a guest that has broken into QEMU may not call.
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny")
	argv = append(argv, m.accelerator...)
	if paused {
		argv = append(argv, "-S")
	}
	for _, part := range []func(*descriptors) ([]string, error){m.console, m.verdicts, m.kernel, m.cards, m.drives} {
		more, err := part(d)
		if err != nil {
			return nil, ends{}, err
		}
		argv = append(argv, more...)
	}
	more, e, err := connect(d)
	return append(argv, more...), e, err
}

// connect creates the connections for QEMU's monitor and for the guest program.
func connect(d *descriptors) ([]string, ends, error) {
	var e ends
	var number [2]int
	for n, near := range []**net.UnixConn{&e.qmp, &e.guest} {
		conn, far, err := connection()
		if err != nil {
			return nil, ends{}, err
		}
		*near, number[n] = conn, d.add(far)
	}
	return []string{"-chardev", fmt.Sprintf("socket,id=qmp,fd=%d", number[0]), "-mon", "chardev=qmp,mode=control",
		"-chardev", fmt.Sprintf("socket,id=hand,fd=%d", number[1]),
		"-device", "virtserialport,chardev=hand,name=" + guest.Port}, e, nil
}

func (m *Machine) console(d *descriptors) ([]string, error) {
	set, err := d.open(m.Console(), os.O_CREATE|os.O_APPEND|os.O_WRONLY)
	return []string{"-add-fd", fmt.Sprintf("fd=%[1]d,set=%[1]d", set),
		"-chardev", "file,id=console,append=on,path=" + setName(set), "-serial", "chardev:console"}, err
}

func (m *Machine) verdicts(d *descriptors) ([]string, error) {
	set, err := d.open(machine.VerdictFile(m.Spec.Dir), os.O_CREATE|os.O_APPEND|os.O_WRONLY)
	return []string{"-add-fd", fmt.Sprintf("fd=%[1]d,set=%[1]d", set),
		"-chardev", "file,id=verdict,append=on,path=" + setName(set),
		"-device", "virtserialport,chardev=verdict,name=" + machine.VerdictPortName}, err
}

// kernel returns the arguments to boot the image's kernel, if there is one, with the pending files after its initial
// RAM disk.
func (m *Machine) kernel(d *descriptors) ([]string, error) {
	if m.image.Kernel == "" {
		return nil, nil
	}
	program, err := os.ReadFile(m.image.Kernel)
	if err != nil {
		return nil, err
	}
	ram, err := os.ReadFile(m.image.Initrd)
	if err != nil {
		return nil, err
	}
	var a initrd.Archive
	for path, f := range m.files {
		a.File(guest.FilesDir+path, f.Data, f.Mode)
	}
	more, err := a.Bytes()
	if err != nil {
		return nil, err
	}
	return bootKernel(d, program, append(ram, more...), kernelArguments+" "+m.engine.Kernel)
}

func bootKernel(d *descriptors, program, ram []byte, arguments string) ([]string, error) {
	kernel, err := d.memory("kernel", program)
	if err != nil {
		return nil, err
	}
	initrd, err := d.memory("initrd", ram)
	return []string{"-kernel", kernel, "-initrd", initrd, "-append", arguments}, err
}

func (m *Machine) cards(d *descriptors) (argv []string, err error) {
	for n, nic := range m.Spec.NICs {
		tap, err := nic.Net.Tap(nic.Bridge, machine.Port(nic.MAC))
		if err != nil {
			return nil, err
		}
		argv = append(argv, "-netdev", fmt.Sprintf("tap,id=net%d,fd=%d", n, d.add(tap)),
			"-device", fmt.Sprintf("virtio-net-pci,netdev=net%d,mac=%s,romfile=", n, nic.MAC))
	}
	return argv, nil
}

// kernelArguments is the kernel command line of machines. Network cards are named as in stemcells. Parts on which an
// emulated machine would waste seconds are switched off. The kernel must not check its timer, because it panics if a
// busy host suspends the machine at that moment.
var kernelArguments = "console=ttyS0 net.ifnames=0 biosdevname=0 panic=5 quiet systemd.show_status=no systemd.getty_auto=no" +
	" mitigations=off audit=0 nowatchdog no_timer_check rcupdate.rcu_expedited=1" +
	" modprobe.blacklist=kvm_amd,kvm_intel,kvm,ata_piix,ata_generic,evdev,serio_raw,efi_pstore,qemu_fw_cfg,button,psmouse,i2c_piix4,floppy" +
	" systemd.mask=" + strings.Join(masked, " systemd.mask=")

var masked = []string{"modprobe@configfs.service", "modprobe@dm_mod.service", "modprobe@drm.service",
	"modprobe@efi_pstore.service", "modprobe@fuse.service",
	"modprobe@loop.service", "sys-kernel-debug.mount", "sys-kernel-tracing.mount", "dev-hugepages.mount",
	"dev-mqueue.mount", "proc-sys-fs-binfmt_misc.automount",
	"sys-fs-fuse-connections.mount", "sys-kernel-config.mount", "getty.target", "getty@tty1.service",
	"systemd-update-utmp.service", "systemd-update-utmp-runlevel.service",
	"systemd-logind.service", "systemd-user-sessions.service", "systemd-random-seed.service",
	"systemd-ask-password-wall.path", "systemd-ask-password-console.path",
	"apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "logrotate.timer", "man-db.timer",
	"systemd-pstore.service",
	"systemd-journal-catalog-update.service", "ldconfig.service", "systemd-update-done.service"}

// writeAtStart schedules a file to be written at the next start.
func (m *Machine) writeAtStart(f machine.File) { m.files[filepath.Clean("/"+f.Path)] = f }

// arrived is called when the system is running, which means that it has the files.
func (m *Machine) arrived(b *boot, delivered map[string]machine.File) {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	if m.Current != b {
		return
	}
	m.hung = false
	for path, f := range delivered {
		if now, ok := m.files[path]; ok && bytes.Equal(now.Data, f.Data) && now.Mode == f.Mode {
			delete(m.files, path)
		}
	}
}

func (m *Machine) event(b *boot, msg message) {
	switch msg.Event {
	case "SHUTDOWN":
		var d struct{ Reason string }
		_ = json.Unmarshal(msg.Data, &d)
		m.seen.Lock()
		b.reset, b.quit = d.Reason == "guest-reset", d.Reason == "guest-shutdown"
		m.seen.Unlock()
	case "DEVICE_TRAY_MOVED":
		var d struct {
			ID   string `json:"id"`
			Open bool   `json:"tray-open"`
		}
		if json.Unmarshal(msg.Data, &d) == nil && d.ID == cdDrive {
			m.tray(d.Open)
		}
	}
}

func (m *Machine) tray(open bool) {
	m.seen.Lock()
	defer m.seen.Unlock()
	m.trayOpen = open
}

func (m *Machine) outputTail() string {
	data, _ := os.ReadFile(filepath.Join(m.Spec.Dir, "qemu.log"))
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(lines[max(0, len(lines)-3):], "; ")
}

// wait waits for the end of QEMU, and starts the machine again if it has requested a reboot.
func (m *Machine) wait(b *boot, exited <-chan error) {
	_ = errors.Join(<-exited, b.output.Close()) // how it ended does not matter
	if b.qmp != nil {
		<-b.qmp.closed // at the end of the stream, after the last event
		_ = b.qmp.conn.Close()
	}
	_ = b.guestConn.conn.Close()
	m.Mu.Lock()
	defer m.Mu.Unlock()
	defer close(b.ended)
	if m.Current != b {
		return
	}
	m.Current = nil
	m.seen.Lock()
	reset, quit := b.reset, b.quit
	m.seen.Unlock()
	if (reset || b.hung) && !b.off {
		b.rebooted = m.start(context.Background(), false) == nil
	}
	if !b.rebooted && !b.off {
		m.Over(quit)
	}
}

// end ends the machine by calling ask, and kills it if ctx ends first.
func (m *Machine) end(ctx context.Context, off bool, ask func(b *boot) error) error {
	m.Mu.Lock()
	b := m.Current
	if b != nil {
		b.off = b.off || off
	}
	m.Mu.Unlock()
	if b == nil {
		return nil
	}
	failed := ask(b)
	select {
	case <-b.ended:
		return nil
	default:
	}
	if failed == nil {
		select {
		case <-b.ended:
			return nil
		case <-ctx.Done():
			failed = ctx.Err()
		}
	}
	_ = b.qemu.Process.Kill()
	<-b.ended
	return fmt.Errorf("%s did not shut down and was killed: %w", m.Spec.Name, failed)
}

// ask makes systemd stop the machine.
func ask(ctx context.Context, b *boot, verb string) error {
	r, err := b.guestConn.call(ctx, guest.Request{Op: "run", Args: []string{"systemctl", "--no-block", verb}}, nil, nil,
		nil)
	if errors.Is(err, machine.ErrNotRunning) {
		return nil // it was down before the answer
	}
	if err == nil && r.Status != 0 {
		err = fmt.Errorf("systemctl %s: status %d", verb, r.Status)
	}
	return err
}

// Stop shuts the machine down.
func (m *Machine) Stop(ctx context.Context) error {
	return m.end(ctx, true, func(b *boot) error {
		if m.image.Kernel == "" { // an image of others, without the lab's guest program in it
			return b.qmp.do(ctx, "system_powerdown", nil, nil)
		}
		return ask(ctx, b, "poweroff")
	})
}

// Kill cuts the power. Data that the machine has not sent to its disks is lost.
func (m *Machine) Kill(ctx context.Context) error {
	return m.end(ctx, true, func(b *boot) error { return b.qemu.Process.Kill() })
}

// Reboot shuts the machine down and starts it.
func (m *Machine) Reboot(ctx context.Context) error {
	if err := m.end(ctx, false, func(b *boot) error { return ask(ctx, b, "reboot") }); err != nil {
		return err
	}
	return m.Start(ctx)
}

// Run runs a program in the machine. If the machine is starting, it waits.
func (m *Machine) Run(ctx context.Context, c machine.Command) error {
	h, err := m.reach()
	if err != nil {
		return err
	}
	var words bytes.Buffer
	stderr := c.Stderr
	if stderr == nil {
		stderr = &words
	}
	r, err := h.call(ctx, guest.Request{Op: "run", Args: c.Args, Env: c.Env}, c.Stdin, c.Stdout, stderr)
	if err == nil && r.Error != "" {
		err = errors.New(r.Error)
	}
	if err == nil && r.Status != 0 {
		err = fmt.Errorf("exit status %d", r.Status)
	}
	if err != nil {
		return machine.Failed(c, m.Spec.Name, err, words.String())
	}
	return nil
}

func (m *Machine) reach() (*guestConn, error) {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	if m.Current == nil {
		return nil, fmt.Errorf("%s: %w", m.Spec.Name, machine.ErrNotRunning)
	}
	return m.Current.guestConn, nil
}

// fileTimeout bounds reading or writing a file of a machine, which may still be booting.
const fileTimeout = 3 * time.Minute

// ReadFile reads a file of the machine. If the machine is off, it reads from a copy of the disk.
func (m *Machine) ReadFile(path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), fileTimeout)
	defer cancel()
	if h, err := m.reach(); err == nil {
		return h.readFile(ctx, path)
	}
	m.Mu.Lock()
	f, waits := m.files[filepath.Clean("/"+path)]
	m.Mu.Unlock()
	if waits {
		return f.Data, nil
	}
	raw := filepath.Join(m.Spec.Dir, "root.raw")
	defer func() { _ = os.Remove(raw) }()
	convert := exec.CommandContext(ctx, "qemu-img", "convert", "-q", "-O", "raw", m.rootDisk(), raw)
	if out, err := convert.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("copy of the root disk of %s: %w: %s", m.Spec.Name, err, strings.TrimSpace(string(out)))
	}
	return image.Extract(ctx, raw, path)
}

// WriteFile writes a file of the machine. If the machine is off, the file is written at its next start.
func (m *Machine) WriteFile(f machine.File) error {
	ctx, cancel := context.WithTimeout(context.Background(), fileTimeout)
	defer cancel()
	m.Mu.Lock()
	if m.Current == nil {
		defer m.Mu.Unlock()
		m.writeAtStart(f)
		return nil
	}
	h := m.Current.guestConn
	m.Mu.Unlock()
	return h.writeFile(ctx, f)
}

// Close switches the machine off.
func (m *Machine) Close(ctx context.Context) error {
	err := m.Kill(ctx)
	m.Mu.Lock()
	defer m.Mu.Unlock()
	if m.closed {
		return err
	}
	m.closed = true
	_ = m.shells.Close()
	m.Over(false)
	return err
}

// Delete removes the machine.
func (m *Machine) Delete(ctx context.Context) error {
	return errors.Join(m.Close(ctx), os.RemoveAll(m.Spec.Dir))
}
