//go:build bench && machine

package machine

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"cambium/lab"
	"cambium/lab/disk"
	"cambium/lab/iaas"
	"cambium/lab/netns"
)

// inTurn runs each of the functions as often as told, in turn, and returns the median of what each has measured.
func inTurn(runs int, measure ...func() time.Duration) []time.Duration {
	all := make([][]time.Duration, len(measure))
	for range runs {
		for n, f := range measure {
			all[n] = append(all[n], f())
		}
	}
	medians := make([]time.Duration, len(measure))
	for n, times := range all {
		slices.Sort(times)
		medians[n] = times[len(times)/2]
	}
	return medians
}

// lasts makes a measurement of a function.
func lasts(f func()) func() time.Duration {
	return func() time.Duration {
		begin := time.Now()
		f()
		return time.Since(begin)
	}
}

// BenchmarkCPI compares, in one run: a call with the start of any program, a container of the CPI with one of the lab, a
// virtual machine of the CPI with a plain boot of its image, and many at once with one; and it says what each VM costs.
func BenchmarkCPI(b *testing.B) {
	c := newCloud(b, fmt.Sprintf("b%d", os.Getpid()))
	sc := c.cid("create_stemcell", stemcellImage(b), map[string]any{})
	c.benchCalls(b)
	c.benchContainers(b, sc)
	c.benchVirtualMachines(b, sc)
	c.must("delete_stemcell", sc)
	c.gone()
}

// ratio reports one median against another, and logs both.
func ratio(b *testing.B, name string, took, of time.Duration) {
	b.Helper()
	b.ReportMetric(took.Seconds()/of.Seconds(), name)
	b.Logf("%s: %.2f (%v, %v)", name, took.Seconds()/of.Seconds(), took.Round(10*time.Microsecond),
		of.Round(10*time.Microsecond))
}

func (c *cloud) benchCalls(b *testing.B) {
	times := inTurn(41, lasts(func() { _ = exec.Command("/bin/true").Run() }), lasts(func() { c.must("info") }),
		lasts(func() { c.must("has_vm", "vm-nothing") }))
	ratio(b, "info/exec", times[1], times[0])
	ratio(b, "has_vm/exec", times[2], times[0])
}

func (c *cloud) benchContainers(b *testing.B, stemcell string) {
	const ip = "10.245.0.6"
	boot := func() string {
		vm := c.cid("create_vm", order(stemcell, ip)...)
		c.pong(ip, time.Minute)
		return vm
	}
	// The first one of a stemcell also unpacks the root file system.
	begin := time.Now()
	vm := boot()
	b.Logf("first container of the stemcell: %.2f s", time.Since(begin).Seconds())
	needs, whose := inotifyInstances(strings.TrimSpace(c.run(vm, "readlink", "/proc/self/ns/pid")))
	b.Logf("inotify instances of a container: %d (%s)", needs, strings.Join(whose, ", "))
	c.must("delete_vm", vm)

	l := newLab(b)
	times := inTurn(5, func() time.Duration {
		begin := time.Now()
		i := labUp(b, l)
		took := time.Since(begin)
		if err := i.Delete(b.Context()); err != nil {
			b.Fatal(err)
		}
		return took
	}, func() time.Duration {
		begin := time.Now()
		vm := boot()
		took := time.Since(begin)
		c.must("delete_vm", vm)
		return took
	})
	ratio(b, "create_vm/lab-up", times[1], times[0])
	n, limit := 20, inotifyLimit(b)
	if used, _ := inotifyInstances(""); limit-used < n*needs {
		n = (limit - used) / needs
		b.Logf("the host's limit of %d inotify instances has room for %d containers: for 20 run 'sysctl fs.inotify.max_user_instances=1024'", limit, n)
	}
	ratio(b, fmt.Sprintf("%d-containers/1", n), c.atOnce(b, stemcell, iaas.Container, n), times[1])
}

// labUp makes a container as `lab up` does, and waits for its agent.
func labUp(b *testing.B, l *lab.Lab) *lab.Instance {
	i, err := l.Create(b.Context(), lab.VM{Ephemeral: lab.GiB, HTTPS: true})
	if err == nil {
		err = i.Start(b.Context())
	}
	if err == nil {
		err = i.Ready(b.Context())
	}
	if err != nil {
		b.Fatal(err)
	}
	return i
}

func (c *cloud) benchVirtualMachines(b *testing.B, stemcell string) {
	var same plainVM
	const ip = "10.245.0.6"
	times := inTurn(3, func() time.Duration {
		o := order(stemcell, ip)
		o[2].(map[string]any)["engine"] = iaas.QEMU
		begin := time.Now()
		result, _ := c.must("create_vm", o...).([]any)
		c.pong(ip, 10*time.Minute)
		took := time.Since(begin)
		same = c.sameAs(result[0].(string))
		c.must("delete_vm", result[0])
		return took
	}, func() time.Duration { return same.boot(b, ip) })
	ratio(b, "vm-create_vm/plain-boot", times[0], times[1])
	ratio(b, "3-vms/1", c.atOnce(b, stemcell, iaas.QEMU, 3), times[0])
}

// plainVM holds everything needed to boot a VM of the CPI once more, without CPI and lab.
type plainVM struct {
	image       string   // of the stemcell
	drive       []byte   // the config drive
	mac, serial string   // of the network card and of the ephemeral disk, which the settings name
	accelerator []string // QEMU's arguments
}

func (c *cloud) sameAs(vm string) plainVM {
	c.t.Helper()
	images, _ := filepath.Glob(filepath.Join(iaas.Directory(c.dir, c.name), "images/*/disk.raw"))
	drive, err := os.ReadFile(filepath.Join(iaas.Directory(c.dir, c.name), "vms", vm, "config-drive"))
	if err != nil || len(images) != 1 {
		c.t.Fatalf("images %v, config drive: %v", images, err)
	}
	p := plainVM{image: images[0], drive: drive, serial: "e-" + strings.TrimPrefix(vm, "vm-")}
	argv := c.qemuArguments()
	for n, argument := range argv {
		if argument == "-accel" || argument == "-cpu" {
			p.accelerator = append(p.accelerator, argv[n:n+2]...)
		}
		if _, mac, found := strings.Cut(argument, ",mac="); found {
			p.mac, _, _ = strings.Cut(mac, ",")
		}
	}
	return p
}

// boot makes the VM's disks, boots it with QEMU in a network of its own, and returns how long that took until the agent's pong.
func (p plainVM) boot(b *testing.B, ip string) time.Duration {
	b.Helper()
	space, err := netns.Create(fmt.Sprintf("plain%d", os.Getpid()))
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := space.Delete(); err != nil {
			b.Error(err)
		}
	}()
	if err := space.Bridge("br0", "10.245.0.1/24"); err != nil {
		b.Fatal(err)
	}
	tap, err := space.Tap("br0", "tap0")
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = tap.Close() }()
	dir := b.TempDir()
	drive, ephemeral, root := filepath.Join(dir, "drive"), filepath.Join(dir, "ephemeral"), filepath.Join(dir, "root")
	if err := os.WriteFile(drive, p.drive, 0o600); err != nil {
		b.Fatal(err)
	}
	begin := time.Now()
	if err := disk.Create(ephemeral, lab.GiB); err != nil {
		b.Fatal(err)
	}
	if out, err := exec.Command("qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", p.image, root,
		"10G").CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	qemu := exec.Command("qemu-system-x86_64",
		append(p.accelerator, "-nodefaults", "-display", "none", "-machine", "pc", "-smp", "1", "-m", "1024",
			"-serial", "file:"+filepath.Join(dir, "console"), "-device", "virtio-rng-pci",
			"-drive", "if=none,id=root,format=qcow2,discard=unmap,file="+root, "-device", "virtio-blk-pci,drive=root,bootindex=0",
			"-drive", "if=none,id=ephemeral,format=raw,discard=unmap,file="+ephemeral, "-device",
			"virtio-blk-pci,drive=ephemeral,serial="+p.serial,
			"-drive", "if=none,id=config,format=raw,readonly=on,file="+drive, "-device", "virtio-blk-pci,drive=config",
			"-netdev", "tap,id=net,fd=3", "-device", "virtio-net-pci,netdev=net,romfile=,mac="+p.mac)...)
	qemu.ExtraFiles = []*os.File{tap}
	if err := qemu.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() { _, _ = qemu.Process.Kill(), qemu.Wait() }()
	pong(b, space, ip, 10*time.Minute)
	return time.Since(begin)
}

// atOnce makes VMs in parallel, says what they cost when all agents answer, and deletes them.
func (c *cloud) atOnce(b *testing.B, stemcell, engine string, n int) time.Duration {
	b.Helper()
	free, begin := available(b), time.Now()
	cids := make([]string, n)
	var all sync.WaitGroup
	for k := range n {
		all.Go(func() {
			ip := net.IPv4(10, 245, 0, byte(10+k)).String()
			o := order(stemcell, ip)
			o[2].(map[string]any)["engine"] = engine
			if list, ok := c.call("create_vm", o...).Result.([]any); ok {
				cids[k], _ = list[0].(string)
			}
		})
	}
	all.Wait()
	for k, cid := range cids {
		if cid == "" {
			b.Fatal("a VM was not made")
		}
		c.pong(fmt.Sprintf("10.245.0.%d", 10+k), 10*time.Minute)
	}
	took := time.Since(begin)
	memory, files := (free-available(b))/int64(n),
		occupied(b, filepath.Join(iaas.Directory(c.dir, c.name), "vms"))/int64(n)
	b.Logf("%d of engine %s: %.1f s to the last pong, each %d MB of memory and %d MB of disk", n, engine, took.Seconds(),
		memory/1e6, files/1e6)
	b.ReportMetric(float64(memory)/1e6, engine+"-memory-MB")
	b.ReportMetric(float64(files)/1e6, engine+"-disk-MB")
	for _, cid := range cids {
		c.must("delete_vm", cid)
	}
	return took
}

// available is the memory that the host could give to programs.
func available(t testing.TB) int64 {
	t.Helper()
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(data) {
		if text, ok := strings.CutPrefix(string(line), "MemAvailable:"); ok {
			kib, err := strconv.ParseInt(strings.Fields(text)[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatal("/proc/meminfo does not tell")
	return 0
}

// inotifyLimit returns the number of inotify instances that all processes of root may have together.
func inotifyLimit(t testing.TB) int {
	t.Helper()
	data, err := os.ReadFile("/proc/sys/fs/inotify/max_user_instances")
	if err != nil {
		t.Fatal(err)
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	return limit
}

// inotifyInstances counts those of the processes in a PID namespace, of all processes if that is empty, and tells whose they are.
func inotifyInstances(namespace string) (total int, whose []string) {
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, process := range processes {
		if own, _ := os.Readlink(process + "/ns/pid"); namespace != "" && own != namespace {
			continue
		}
		name, _ := os.ReadFile(process + "/comm")
		if bytes.HasPrefix(name, []byte("(")) {
			continue // a child of systemd that still has its files open and is about to become another program
		}
		n := 0
		files, _ := filepath.Glob(process + "/fd/*")
		for _, file := range files {
			if link, _ := os.Readlink(file); strings.Contains(link, "inotify") {
				n++
			}
		}
		if n > 0 {
			whose = append(whose, fmt.Sprintf("%s %d", bytes.TrimSpace(name), n))
		}
		total += n
	}
	return total, whose
}
