//go:build linux

package testvm

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cambium/internal/skiptest"
	"cambium/lab/image"
	"cambium/lab/initrd"
	"cambium/lab/notes"
	"cambium/lab/tree"
)

// Machine configures the machine for checks.
type Machine struct {
	Modules  []string // kernel modules to load first
	Programs []string // programs of the host to copy to /sbin, with the libraries they need
	QEMU     []string // additional arguments, such as devices
	// On maps words that the guest sends with Ask to commands for QEMU's monitor.
	On map[string][]string
}

const (
	// limit bounds how long a machine runs.
	limit = 8 * time.Minute
	// upTimeout bounds the boot of a kernel, which takes half a minute on a busy host.
	upTimeout = 2 * time.Minute
)

// Needs skips the test if one of the programs is missing, and fails it in CI.
func Needs(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			skiptest.Skip(t, err)
		}
	}
}

// Host runs a program on the host.
func Host(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
}

// Run boots the machine with the test binary of the calling package. It fails the test unless all checks pass.
func (m Machine) Run(t *testing.T, checks []Check) {
	t.Helper()
	monitor := filepath.Join(t.TempDir(), "monitor")
	passed, ended := 0, false
	m.QEMU = append([]string{"-monitor", "unix:" + monitor + ",server=on,wait=off"}, m.QEMU...)
	log := m.boot(t, func(word, rest string) {
		switch word {
		case "PASS":
			passed++
			t.Log(rest)
		case "FAIL":
			t.Error(rest)
		case "ASK":
			if err := command(monitor, m.On[rest]...); err != nil {
				t.Errorf("asked for %s: %v", rest, err)
			}
		case "END":
			ended = true
		}
	})
	if !ended || passed != len(checks) {
		t.Fatalf("%d of %d checks passed, ended: %v\n%s", passed, len(checks), ended, log)
	}
}

// boot runs the machine until it ends, calls heard for each word of the guest, and returns the console's output. It
// restarts the machine once if its kernel does not boot, as happens with emulation on a busy host (see watch in package
// qemu).
func (m Machine) boot(t *testing.T, heard func(word, rest string)) string {
	t.Helper()
	Needs(t, "qemu-system-x86_64", "go")
	dir := t.TempDir()
	kernel, err := image.Cache{Dir: tree.DefaultDir(), Progress: t.Logf}.EnsureKernel(t.Context())
	if err != nil {
		skiptest.Skip(t, err)
	}
	ram := filepath.Join(dir, "initrd")
	if err := m.writeInitrd(t, dir, ram, kernel); err != nil {
		t.Fatal(err)
	}
	log, hung := m.start(t, kernel.Image, ram, heard)
	if hung {
		notes.Add("%s: the kernel did not boot within %v; restarting the machine", t.Name(), upTimeout)
		log, _ = m.start(t, kernel.Image, ram, heard)
	}
	return log
}

func (m Machine) start(t *testing.T, kernel, ram string, heard func(word, rest string)) (console string, hung bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	args := append([]string{"-machine", "pc", "-accel", "tcg,thread=multi", "-cpu", "qemu64", "-smp", "2", "-m", "768",
		"-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio", "-kernel", kernel, "-initrd", ram,
		"-append", "console=ttyS0 panic=-1 quiet no_timer_check"}, m.QEMU...)
	vm := exec.CommandContext(ctx, "qemu-system-x86_64", args...)
	output, err := vm.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	vm.Stderr = vm.Stdout
	if err := vm.Start(); err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(upTimeout, func() { _ = vm.Process.Kill() })
	hung = true
	var log bytes.Buffer
	for lines := bufio.NewScanner(output); lines.Scan(); {
		line := strings.TrimSpace(lines.Text())
		log.WriteString(line + "\n")
		if said, ok := strings.CutPrefix(line, "GUEST-"); ok {
			word, rest, _ := strings.Cut(said, " ")
			if word == up {
				hung = !late.Stop()
			}
			heard(word, rest)
		}
	}
	_ = vm.Wait()
	return log.String(), hung && !late.Stop()
}

// command sends commands to QEMU's monitor.
func command(monitor string, commands ...string) error {
	conn, err := net.Dial("unix", monitor)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := prompt(conn); err != nil {
		return err
	}
	for _, c := range commands {
		if _, err := fmt.Fprintln(conn, c); err != nil {
			return err
		}
		if err := prompt(conn); err != nil {
			return err
		}
	}
	return nil
}

func prompt(conn net.Conn) error {
	for buffer, seen := make([]byte, 4096), ""; !strings.Contains(seen, "(qemu) "); {
		n, err := conn.Read(buffer)
		if err != nil {
			return err
		}
		seen += string(buffer[:n])
	}
	return nil
}

// writeInitrd writes the machine's only file system: the test binary, programs and modules.
func (m Machine) writeInitrd(t *testing.T, dir, file string, kernel image.Kernel) error {
	binary := filepath.Join(dir, "guest")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-trimpath", "-tags", "vm,nethttpomithttp2",
		"-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build: %w: %s", err, out)
	}
	var a initrd.Archive
	a.Dir("proc", "sys", "tmp", "var", "etc")
	a.Console()
	a.Copy("init", binary)
	for _, program := range m.Programs {
		if err := addProgram(&a, program); err != nil {
			return err
		}
	}
	a.Modules(initrd.ModuleDir, kernel.Modules, m.Modules...)
	data, err := a.Bytes()
	if err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o600)
}

func addProgram(a *initrd.Archive, name string) error {
	path, err := exec.LookPath(name)
	if err != nil {
		return err
	}
	a.Copy("sbin/"+name, path)
	out, err := exec.Command("ldd", path).Output()
	if err != nil {
		return fmt.Errorf("libraries of %s: %w", name, err)
	}
	for _, word := range strings.Fields(string(out)) {
		if strings.HasPrefix(word, "/") {
			a.Copy(word, word)
		}
	}
	return nil
}
