package nspawn

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"cambium/lab/machine"
	"cambium/lab/netns"
	"cambium/lab/tree"

	"golang.org/x/sys/unix"
)

// rebootStatus is the exit status of systemd-nspawn when the machine has requested a reboot.
const rebootStatus = 133

// signalPowerOff is SIGRTMIN+4, on which systemd powers off. SIGRTMIN is 34, because the C library reserves the first
// two real-time signals.
const (
	signalPowerOff = syscall.Signal(34 + 4)
	signalReboot   = syscall.Signal(34 + 5)
)

// Machine is a container.
type Machine struct {
	machine.Common[boot]
	engine Engine

	disks     map[string]*attached
	closed    bool
	stopWatch func()
}

// boot is one run of the container.
type boot struct {
	nspawn *exec.Cmd
	leader int           // the host's pid of the machine's init
	exited chan struct{} // closed when systemd-nspawn has ended
	ended  chan struct{} // closed when the end was handled
	// rebooted is set if the machine has requested a reboot.
	rebooted bool
	// off is set if the end was requested, so that it does not count as a reboot.
	off bool
}

func (m *Machine) layer() tree.Layer { return tree.Layer{Tree: m.engine.Tree, Dir: m.Spec.Dir} }

func (m *Machine) netns() netns.Namespace { return netns.Open(m.Spec.Name) }

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
	if err := m.start(ctx); err != nil {
		return fmt.Errorf("start %s: %w", m.Spec.Name, err)
	}
	return nil
}

func (m *Machine) start(ctx context.Context) error {
	if err := checkInotify(); err != nil {
		return err
	}
	if err := m.plug(); err != nil {
		return err
	}
	console, err := os.OpenFile(m.Console(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = console.Close() }()
	notify, socket, err := m.listen()
	if err != nil {
		return err
	}
	defer func() { _ = notify.Close(); _ = os.Remove(socket) }()
	argv, err := m.argv()
	if err != nil {
		return err
	}
	b := &boot{nspawn: exec.Command(argv[0], argv[1:]...), exited: make(chan struct{}), ended: make(chan struct{})}
	b.nspawn.Stdout, b.nspawn.Stderr = console, console
	// The machine has a network of its own, hence its kernel settings for it too.
	b.nspawn.Env = append(os.Environ(), "NOTIFY_SOCKET="+socket, "SYSTEMD_NSPAWN_API_VFS_WRITABLE=network")
	// A group of its own: an interrupt on the terminal is for the lab, which shuts down in order.
	b.nspawn.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := m.mounted(func(string) error { return b.nspawn.Start() }); err != nil {
		return err
	}
	go m.wait(b)
	if b.leader, err = leader(ctx, notify, b.exited); err != nil {
		_ = b.nspawn.Process.Kill()
		<-b.exited
		return fmt.Errorf("%w; end of the console: %s", err, m.consoleTail())
	}
	m.Booted(b)
	for _, a := range m.disks {
		if err := a.appear(b.leader); err != nil {
			return err
		}
	}
	return nil
}

// plug creates a network namespace with new network cards, as after power-on.
func (m *Machine) plug() error {
	if err := m.netns().Delete(); err != nil {
		return err
	}
	own, err := netns.Create(m.Spec.Name)
	if err != nil {
		return err
	}
	for _, nic := range m.Spec.NICs {
		wire := netns.Wire{Bridge: nic.Bridge, Near: machine.Port(nic.MAC), Far: nic.Name, MAC: nic.MAC}
		if err := nic.Net.Connect(own, wire); err != nil {
			return err
		}
	}
	return nil
}

// dropped lists capabilities that affect what a container shares with its host and does not need: other devices, kernel
// modules, ports and memory, the clock, the kernel's log. systemd and runc bind-mount the device nodes that they cannot
// create.
const dropped = "CAP_MKNOD,CAP_SYS_MODULE,CAP_SYS_RAWIO,CAP_SYS_TIME,CAP_SYSLOG"

// openFiles is the hard limit of open files for systemd's services. By default systemd-nspawn sets the limit of the
// kernel's first process, 4,096, which a machine cannot raise if the host lacks CAP_SYS_RESOURCE.
const openFiles = 524288

// argv returns the command line of systemd-nspawn. Containers must not swap, because the only swap is the host's. If
// the host runs systemd, that creates the control groups.
func (m *Machine) argv() ([]string, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return nil, fmt.Errorf("limit of open files: %w", err)
	}
	verdicts := machine.VerdictFile(m.Spec.Dir)
	port, err := os.OpenFile(verdicts, os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		err = port.Close()
	}
	if err != nil {
		return nil, err
	}
	nspawn := []string{"systemd-nspawn", "--quiet", fmt.Sprintf("--rlimit=RLIMIT_NOFILE=1024:%d",
		min(limit.Max, openFiles)), "--register=no", "--keep-unit", "--machine=" + m.Spec.Name,
		"--directory=" + m.layer().Root(), "--boot", "--network-namespace-path=" + m.netns().Path(),
		"--capability=all", "--drop-capability=" + dropped, "--system-call-filter=~@swap", "--console=read-only",
		"--bind=" + strings.ReplaceAll(verdicts, ":", `\:`) + ":" + machine.VerdictPort, "--resolv-conf=off",
		"--timezone=off", "--link-journal=no"}
	if _, err := os.Stat("/run/systemd/system"); err == nil {
		argv := []string{"systemd-run", "--quiet", "--scope", "--collect", "--unit=" + m.Spec.Name, "--property=Delegate=yes"}
		return append(append(append(argv, m.engine.properties()...), "--"), nspawn...), nil
	}
	script := ""
	for _, dir := range m.cgroups() {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("control group: %w", err)
		}
		if err := m.engine.limit(dir); err != nil {
			return nil, err
		}
		script += "echo $$ >" + filepath.Join(dir, "cgroup.procs") + "; "
	}
	return append([]string{"sh", "-c", script + `exec "$@"`, "sh"}, nspawn...), nil
}

// listen creates the socket on which systemd-nspawn reports the pid of the machine's init.
func (m *Machine) listen() (*net.UnixConn, string, error) {
	// Socket names are limited to about 100 characters; state directories are not.
	path := filepath.Join(os.TempDir(), m.Spec.Name+".notify")
	_ = os.Remove(path)
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	return conn, path, err
}

func leader(ctx context.Context, notify *net.UnixConn, ended <-chan struct{}) (int, error) {
	finished := make(chan struct{})
	defer close(finished)
	go func() {
		select {
		case <-ctx.Done():
		case <-ended:
		case <-finished:
		}
		_ = notify.SetReadDeadline(time.Now())
	}()
	buffer := make([]byte, 4096)
	for {
		n, err := notify.Read(buffer)
		if err != nil {
			if ctx.Err() != nil {
				return 0, ctx.Err()
			}
			return 0, errors.New("systemd-nspawn ended before the machine was running")
		}
		for lines := bufio.NewScanner(bytes.NewReader(buffer[:n])); lines.Scan(); {
			if pid, ok := strings.CutPrefix(lines.Text(), "X_NSPAWN_LEADER_PID="); ok {
				return strconv.Atoi(pid)
			}
		}
	}
}

func (m *Machine) consoleTail() string {
	data, _ := os.ReadFile(m.Console())
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(lines[max(0, len(lines)-3):], "; ")
}

// wait waits for the end of the container, and starts it again if it has requested a reboot.
func (m *Machine) wait(b *boot) {
	err := b.nspawn.Wait()
	close(b.exited)
	var exit *exec.ExitError
	rebooting := errors.As(err, &exit) && exit.ExitCode() == rebootStatus
	m.Mu.Lock()
	defer m.Mu.Unlock()
	defer close(b.ended)
	if m.Current == b {
		m.Current = nil
	}
	m.removeCgroups()
	_ = os.Remove(filepath.Join("/run/systemd/nspawn/propagate", m.Spec.Name))
	if rebooting && !b.off {
		b.rebooted = m.start(context.Background()) == nil
	}
	if !b.rebooted && b.leader != 0 && !b.off {
		m.Over(err == nil)
	}
}

// end sends a signal to the machine's init and waits until it has ended. It kills the machine if ctx ends first.
func (m *Machine) end(ctx context.Context, sig syscall.Signal, off bool) error {
	m.Mu.Lock()
	b := m.Current
	if b != nil {
		b.off = b.off || off
	}
	m.Mu.Unlock()
	if b == nil {
		return nil
	}
	if err := unix.Kill(b.leader, sig); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal %s: %w", m.Spec.Name, err)
	}
	select {
	case <-b.ended:
		return nil
	case <-ctx.Done():
		_ = unix.Kill(b.leader, unix.SIGKILL)
		<-b.ended
		return fmt.Errorf("%s did not shut down and was killed: %w", m.Spec.Name, ctx.Err())
	}
}

// Stop shuts the machine down.
func (m *Machine) Stop(ctx context.Context) error { return m.end(ctx, signalPowerOff, true) }

// Kill cuts the power.
func (m *Machine) Kill(ctx context.Context) error { return m.end(ctx, unix.SIGKILL, true) }

// Reboot shuts the machine down and starts it again.
func (m *Machine) Reboot(ctx context.Context) error {
	if err := m.end(ctx, signalReboot, false); err != nil {
		return err
	}
	return m.Start(ctx)
}

// Close switches the machine off and removes its loop devices and its network.
func (m *Machine) Close(ctx context.Context) error {
	failed := m.Kill(ctx)
	m.Mu.Lock()
	defer m.Mu.Unlock()
	if m.closed {
		return failed
	}
	m.closed = true
	m.stopWatch()
	for id, a := range m.disks {
		if err := a.loop.Detach(); err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		delete(m.disks, id)
	}
	m.removeCgroups()
	m.Over(false)
	return errors.Join(failed, m.netns().Delete())
}

// Delete removes the machine.
func (m *Machine) Delete(ctx context.Context) error {
	return errors.Join(m.Close(ctx), os.RemoveAll(m.Spec.Dir))
}
