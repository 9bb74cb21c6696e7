//go:build machine

package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/internal/looptest"
	"cambium/lab"
	"cambium/lab/director"
	"cambium/lab/labtest"
	"cambium/lab/machine"

	"golang.org/x/sys/unix"
)

// TestMachinePower goes through every way on and off, with the same disk all along.
func TestMachinePower(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	i := start(t, l, lab.VM{Ephemeral: 2 * lab.GiB})
	ready(t, i)
	bootID := run(t, i, "cat", "/run/cambium/status.json")
	run(t, i, "sh", "-c", "echo kept >/var/vcap/data/mark && sync")

	within := func() context.Context { // for each step
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		t.Cleanup(cancel)
		return ctx
	}
	if err := i.Reboot(within()); err != nil {
		t.Fatal(err)
	}
	ready(t, i)
	if now := run(t, i, "cat", "/run/cambium/status.json"); now == bootID {
		t.Error("after a reboot /run is that of the boot before")
	}
	// A reboot that the machine itself asks for.
	boots, _ := i.Boots()
	run(t, i, "systemctl", "--no-block", "reboot")
	eventually.True(t, "the machine to come back from its own reboot", func() bool {
		count, _ := i.Boots()
		return count != boots
	})
	ready(t, i)

	if err := i.Stop(within()); err != nil {
		t.Fatal(err)
	}
	if i.Running() {
		t.Error("a stopped machine is running")
	}
	if err := i.Run(within(), machine.Command{Args: []string{"true"}}); !errors.Is(err, machine.ErrNotRunning) {
		t.Errorf("a program in a stopped machine: %v, want %v", err, machine.ErrNotRunning)
	}
	if data, err := i.ReadFile("/var/vcap/bosh/etc/operating_system"); err != nil ||
		strings.TrimSpace(string(data)) != "ubuntu" {
		t.Errorf("a file of a stopped machine: %q (%v), want ubuntu", data, err)
	}
	if err := i.Reboot(within()); err != nil { // which starts a machine that is off
		t.Fatal(err)
	}
	ready(t, i)
	if err := i.Kill(within()); err != nil {
		t.Fatal(err)
	}
	if err := i.Start(within()); err != nil {
		t.Fatal(err)
	}
	ready(t, i)
	if mark := run(t, i, "cat", "/var/vcap/data/mark"); mark != "kept\n" {
		t.Errorf("the ephemeral disk has %q, want what was written before", mark)
	}
	if console, err := os.ReadFile(i.Console()); err != nil || strings.Count(string(console), "Welcome to") != 5 {
		t.Errorf("the console shows %d boots (%v), want 5", strings.Count(string(console), "Welcome to"), err)
	}
	select {
	case <-i.Done():
		t.Error("the machine counts as gone though it was only rebooted, stopped and killed")
	default:
	}
	// Off by itself.
	run(t, i, "systemctl", "--no-block", "poweroff")
	select {
	case <-i.Done():
	case <-within().Done():
		t.Error("a machine that powered itself off does not count as gone")
	}
}

// blocks lists the block devices in the machine's /dev.
func blocks(t *testing.T, i *lab.Instance) []string {
	t.Helper()
	return strings.Fields(run(t, i, "find", "/dev", "-type", "b"))
}

// TestMachineDisks attaches, partitions, grows and detaches a disk of a running machine.
func TestMachineDisks(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	other := start(t, l, lab.VM{Ephemeral: 2 * lab.GiB})
	i := start(t, l, lab.VM{})
	if got := blocks(t, i); len(got) != 0 {
		t.Errorf("a machine without disks sees %v: nodes of another machine", got)
	}
	a, err := i.AttachNew(t.Context(), "d", lab.GiB)
	if err != nil {
		t.Fatal(err)
	}
	if got := blocks(t, i); !slices.Equal(got, []string{a.Path}) {
		t.Errorf("block devices are %v, want %s alone", got, a.Path)
	}
	// A partition that any process announces appears in the machine, and disappears.
	run(t, i, "addpart", a.Path, "1", "2048", "204800")
	eventually.True(t, "the partition's node", func() bool { return slices.Contains(blocks(t, i), a.Path+"p1") })
	if slices.Contains(blocks(t, other), a.Path+"p1") {
		t.Error("the partition's node is in another machine too")
	}
	run(t, i, "mkfs.ext4", "-q", a.Path+"p1")
	run(t, i, "mount", a.Path+"p1", "/mnt")
	if err := i.Detach(t.Context(), "d"); !errors.Is(err, unix.EBUSY) {
		t.Errorf("detaching a mounted disk: %v, want %v", err, unix.EBUSY)
	}
	run(t, i, "umount", "/mnt")
	if err := i.Resize(t.Context(), "d", 2*lab.GiB); err != nil {
		t.Fatal(err)
	}
	if size := strings.TrimSpace(run(t, i, "blockdev", "--getsize64", a.Path)); size != fmt.Sprint(2*lab.GiB) {
		t.Errorf("after growing the disk has %s bytes, want %d", size, 2*lab.GiB)
	}
	// Swap of a container would be the host's. A process of the container itself is not permitted to use it.
	run(t, i, "mkswap", "-q", a.Path+"p1")
	if err := i.WriteFile(machine.File{Path: "/etc/systemd/system/swap-on.service", Mode: 0o644, Data: []byte(
		"[Unit]\nDefaultDependencies=no\n[Service]\nType=oneshot\nStandardError=file:/run/swap-on\nExecStart=swapon " + a.Path + "p1\n")}); err != nil {
		t.Fatal(err)
	}
	var said string
	eventually.True(t, "an answer to swapon", func() bool {
		said = run(t, i, "sh", "-c", "{ systemctl daemon-reload && systemctl start swap-on; } >/dev/null 2>&1; cat /run/swap-on || true")
		return said != ""
	})
	if !strings.Contains(said, "not permitted") {
		t.Errorf("swapon: got %q", said)
	}
	if swaps, _ := os.ReadFile("/proc/swaps"); bytes.Contains(swaps, []byte(filepath.Base(a.Path))) {
		t.Errorf("the host swaps to a machine's disk:\n%s", swaps)
	}
	if err := i.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := i.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := blocks(t, i); !slices.Contains(got, a.Path+"p1") {
		t.Errorf("after a restart the machine sees %v, want the partition too", got)
	}
	if err := i.Detach(t.Context(), "d"); err != nil {
		t.Fatal(err)
	}
	if got := blocks(t, i); len(got) != 0 {
		t.Errorf("after detaching the machine sees %v, want nothing", got)
	}
}

// TestMachineDisksOutliveMachines moves a disk with data from a machine that is deleted to the next, which gets the
// TestMachineMayNotSwap: an agent that is not permitted to swap goes on without, and the host has no swap of a
// machine's.
func TestMachineMayNotSwap(t *testing.T) {
	t.Parallel()
	i := start(t, newLab(t), lab.VM{Ephemeral: 2 * lab.GiB,
		Edit: func(d lab.Document) { d.Set("env.bosh.swap_size", 256) }})
	ready(t, i)
	if got := run(t, i, "journalctl", "--no-pager", "--unit=bosh-agent"); !strings.Contains(got,
		"swap is not permitted here") {
		t.Errorf("the agent does not say that it has no swap: %s", got)
	}
	swaps, err := os.ReadFile("/proc/swaps")
	if err != nil {
		t.Fatal(err)
	}
	disk := i.Disks()[0]
	if bytes.Contains(swaps, []byte(filepath.Base(disk.Path)+"p")) {
		t.Errorf("the host swaps to %s:\n%s", disk.Path, swaps)
	}
}

// address of the first; meanwhile others use `ip netns`.
func TestMachineDisksOutliveMachines(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	first := start(t, l, lab.VM{Source: lab.HTTP, Disks: []int64{lab.GiB}})
	foreign := fmt.Sprintf("foreign%d", os.Getpid())
	if out, err := exec.Command("ip", "netns", "add", foreign).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "delete", foreign).Run() })
	path := first.Disks()[0].Path
	run(t, first, "sh", "-c", fmt.Sprintf("mkfs.ext4 -q %[1]s && mount %[1]s /mnt && echo kept >/mnt/file && umount /mnt",
		path))
	if err := first.RemoveKeepingDisks(t.Context()); err != nil {
		t.Fatal(err)
	}
	second := start(t, l, lab.VM{Source: lab.HTTP})
	if second.IP != first.IP {
		t.Errorf("the second machine has %s, want %s again", second.IP, first.IP)
	}
	hint, err := second.AttachDisk(t.Context(), "disk-1")
	if err != nil {
		t.Fatal(err)
	}
	if got := run(t, second, "sh", "-c", fmt.Sprintf("mount %v /mnt && cat /mnt/file; umount /mnt",
		hint)); got != "kept\n" {
		t.Errorf("the disk holds %q, want what the first machine wrote", got)
	}
	// By DHCP, though the first machine had a lease for it.
	eventually.True(t, "the address", func() bool {
		return strings.Contains(run(t, second, "ip", "-4", "address", "show", "eth0"), second.IP+"/")
	})
	if err := second.Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
	if kept := l.KeptDisks(); len(kept) != 0 {
		t.Errorf("after Delete the lab keeps %v", kept)
	}
}

// TestMachineLabsSideBySide starts two labs with the same machine in each.
func TestMachineLabsSideBySide(t *testing.T) {
	t.Parallel()
	one, two := newLab(t), newLab(t)
	a := start(t, one, lab.VM{AgentID: "same", Ephemeral: 2 * lab.GiB})
	b := start(t, two, lab.VM{AgentID: "same", Ephemeral: 2 * lab.GiB})
	ready(t, a)
	ready(t, b)
	if a.IP != b.IP {
		t.Errorf("addresses are %s and %s, want the same in both labs", a.IP, b.IP)
	}
	if err := a.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	impatient := *a.Agent
	impatient.Timeout = 200 * time.Millisecond
	if _, err := impatient.Call(t.Context(), "ping"); !errors.Is(err, director.ErrTimeout) {
		t.Errorf("the stopped machine's agent: %v, want no answer", err)
	}
	ready(t, b)
}

// TestMachineNATSProgram has the agent on Debian's nats-server.
func TestMachineNATSProgram(t *testing.T) {
	t.Parallel()
	looptest.Needs(t, "nats-server")
	program, err := exec.LookPath("nats-server")
	if err != nil {
		t.Fatal(err)
	}
	l := newLab(t, func(o *lab.Options) { o.NATSServer = program })
	i := start(t, l, lab.VM{Ephemeral: 2 * lab.GiB})
	ready(t, i)
	l.Bus.Stop()
	if err := l.Bus.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	ready(t, i)
}

// traces is everything a lab could leave behind on the host.
func traces(t *testing.T) string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"/run/netns/*", "/run/cambium-lab/*", "/sys/block/loop*/loop/backing_file",
		"/sys/fs/cgroup/*/cambium-*",
		"/run/systemd/nspawn/propagate/*"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, "cambium") {
			all = append(all, line)
		}
	}
	return strings.Join(all, "\n")
}

// TestMachineCrash kills the process that holds a lab, and cleans up after it.
func TestMachineCrash(t *testing.T) {
	containers.Need(t)
	bin := buildLab(t)
	dir, name := t.TempDir(), fmt.Sprintf("c%d", os.Getpid())
	holder := exec.Command(bin, "up", "--foreground", "--dir", dir, "--lab", name, "--agent", labtest.Agent(t), "--disk",
		"1G", "--json")
	holder.Stderr = os.Stderr
	out, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lab.Clean(dir, name); err != nil {
			t.Error(err)
		}
	})
	if _, err := out.Read(make([]byte, 1)); err != nil { // the state, once the lab is up
		t.Fatal(err)
	}
	if during := traces(t); !strings.Contains(during, name) {
		t.Errorf("the lab leaves no traces while it is up, so this test cannot see any: %s", during)
	}
	if err := holder.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = holder.Wait()
	if lab.Held(name) {
		t.Error("a killed process holds its lab still")
	}
	clean := exec.Command(bin, "clean", "--dir", dir, name)
	if text, err := clean.CombinedOutput(); err != nil {
		t.Fatalf("lab clean: %v: %s", err, text)
	}
	if after := traces(t); strings.Contains(after, name) {
		t.Errorf("left over:\n%s", after)
	}
	if _, err := os.Stat(filepath.Join(dir, name)); !os.IsNotExist(err) {
		t.Errorf("the lab's directory is left over (%v)", err)
	}
}

// buildLab builds the lab's command line.
func buildLab(t *testing.T) string {
	t.Helper()
	bin, err := labtest.Program("lab", "cambium/cmd/lab")
	if err != nil {
		t.Fatal(err)
	}
	return bin
}
