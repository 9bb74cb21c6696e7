//go:build machine

package machine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/lab/iaas"
	"cambium/lab/netns"
)

// onSegment is order with the network on a segment of its own.
func onSegment(stemcell, ip, gateway, segment string) []any {
	o := order(stemcell, ip)
	n := o[3].(map[string]any)["default"].(map[string]any)
	n["gateway"], n["dns"], n["cloud_properties"] = gateway, []string{gateway}, map[string]any{"name": segment}
	return o
}

// bridges are the segments that the IaaS has in the kernel.
func (c *cloud) bridges() []string {
	c.t.Helper()
	found := []string{}
	err := netns.Open(c.runtime()).Do(func() error {
		out, err := exec.Command("ip", "-brief", "link", "show", "type", "bridge").Output()
		for line := range strings.Lines(string(out)) {
			found = append(found, strings.Fields(line)[0])
		}
		return err
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return found
}

// A Director with managed networks moves a range from one network to the next: the segment of the first goes with its
// last VM, and while it is there the range is refused on another.
// Contract C.8.
func TestMachineCPIRangeMovesToAnotherNetwork(t *testing.T) {
	t.Parallel()
	c := newCloud(t, fmt.Sprintf("m%d", os.Getpid()))
	sc := c.cid("create_stemcell", stemcellImage(t), map[string]any{})
	network := func() string {
		definition := map[string]any{"type": "manual", "range": "10.88.55.0/24", "gateway": "10.88.55.1"}
		list, ok := c.must("create_network", definition).([]any)
		if !ok || len(list) != 3 {
			t.Fatalf("create_network: got %v", list)
		}
		return list[0].(string)
	}
	first, second := network(), network()
	old := c.cid("create_vm", onSegment(sc, "10.88.55.5", "10.88.55.1", first)...)
	listed, err := exec.Command(c.lab, "ls", "--dir", c.dir).CombinedOutput()
	if err != nil || !strings.Contains(string(listed), first) || !strings.Contains(string(listed), "10.88.55.0/24") {
		t.Errorf("lab ls: %v: %s; want %s and its range", err, listed, first)
	}
	r := c.call("create_vm", onSegment(sc, "10.88.55.6", "10.88.55.1", second)...)
	if r.Error == nil || !strings.Contains(r.Error.Message, first) || !strings.Contains(r.Error.Message, old) {
		t.Errorf("the range on two segments: got %+v, want an error that names %s and %s", r, first, old)
	}
	c.must("delete_vm", old)
	if left := c.bridges(); len(left) > 0 {
		t.Errorf("without a VM there are the bridges %v", left)
	}
	r = c.call("delete_network", first)
	if r.Error != nil || !strings.Contains(r.Log, "delete_network "+first+": done in ") {
		t.Errorf("delete_network: got %+v, want a log that says what was done", r)
	}
	vm := c.cid("create_vm", onSegment(sc, "10.88.55.5", "10.88.55.1", second)...)
	c.pong("10.88.55.5", time.Minute)
	eventually.True(t, "the jobs of a VM by its CID", func() bool { // monit answers after the agent
		out, err := exec.Command(c.lab, "watch", "--dir", c.dir, "--json", vm).Output()
		return err == nil && strings.Contains(string(out), `"jobs"`)
	})
	c.sharesNothing(vm)
	c.must("delete_vm", vm)
	c.must("delete_network", second)
	c.must("delete_stemcell", sc)
	c.gone()
}

// sharesNothing checks that root in a container, as a unit of it, changes nothing that it shares with the host, and
// still can do what jobs and udev need.
func (c *cloud) sharesNothing(vm string) {
	c.t.Helper()
	unit := func(argv ...string) string {
		c.t.Helper()
		return c.run(vm, append([]string{"systemd-run", "--quiet", "--wait", "--pipe"}, argv...)...)
	}
	// Each call would change nothing if it were allowed.
	const eperm = "1"
	for name, call := range map[string]string{
		"MKNOD":      `syscall(133, $name, 060600, 7 << 8 | 99)`,
		"SYS_MODULE": `syscall(176, $name, 0)`,
		"SYS_RAWIO":  `syscall(173, 128, 1, 1)`,
		"SYS_TIME":   `syscall(164, 0, $zone)`,
		"SYSLOG":     `syscall(103, 9, 0, 0)`,
	} {
		const variables = `my $name = "/root/there_is_no_such"; my $zone = pack("ll", 0, 0); `
		if got := unit("perl", "-e", variables+"print "+call+" == -1 ? $!+0 : 0"); got != eperm {
			c.t.Errorf("CAP_%s: the call gives error %s, want EPERM", name, got)
		}
	}
	unit("sh", "-ec", "echo 1 >/proc/sys/net/ipv4/ip_forward")
	unit("--property=PrivateDevices=yes", "sh", "-ec", "echo x >/dev/null; head -c 1 /dev/urandom >/dev/null")
	if got := unit("sh", "-ec", bpmGroup, "sh", bpmRoot, bpmJob); got != "vcap\nsh\nbpm-job\nro\n0000000000000000\n" {
		c.t.Errorf("a job as bpm starts it says %q", got)
	}
	if got := unit("sh", "-ec", ownUdev); got != "1\n" {
		c.t.Errorf("udev has %q devices, want one", got)
	}
}

// What bpm does, in shell: a control group, namespaces, a root file system of its own that is read-only and has device
// nodes of the container, and a job of vcap without capabilities. The job says who and where it is. A child enters the
// control group, as below monit: systemd moves a unit's main process into the unit's group once more, from outside, and
// may be late with it.
const (
	bpmGroup = `groups=/sys/fs/cgroup/systemd; [ -d $groups ] || groups=/sys/fs/cgroup
mkdir $groups/bpm-job
(echo 0 >$groups/bpm-job/cgroup.procs; exec unshare --mount --pid --ipc --uts --fork sh -ec "$1" sh "$2")
exit`
	bpmRoot = `mount --rbind / /mnt; mount -o remount,bind,ro /mnt; mount -t proc proc /mnt/proc
mount -t tmpfs -o mode=1777 none /mnt/tmp; touch /mnt/tmp/null; mount --bind /dev/null /mnt/tmp/null
mkdir /mnt/tmp/old; cd /mnt; pivot_root . tmp/old; umount -l /tmp/old
exec setpriv --reuid=vcap --regid=vcap --init-groups --no-new-privs --bounding-set=-all sh -ec "$1"`
	bpmJob = `id -un; cat /proc/1/comm; grep -om 1 bpm-job /proc/self/cgroup
awk '$5 == "/" { print substr($6, 1, 2) }' /proc/self/mountinfo; sed -n 's/^CapBnd:.//p' /proc/self/status
echo x >/tmp/null; echo x >/tmp/own`
)

// ownUdev starts udev, which systemd leaves out of containers, and prints how many of one new device it has taken in.
const ownUdev = `systemd-run --quiet --unit=own-udevd --service-type=notify /lib/systemd/systemd-udevd
ip link add own0 type bridge; udevadm wait --timeout=120 /sys/class/net/own0; udevadm settle --timeout=120
udevadm info --query=property /sys/class/net/own0 | grep -c ^USEC_INITIALIZED=; systemctl stop own-udevd`

// create-env was interrupted at "Creating VM": the CLI starts the CPI in a process group of its own, so that the CPI
// goes on, and nobody reads its reply.
// Contract C.9.
func TestMachineCPICallerIsGone(t *testing.T) {
	t.Parallel()
	c := newCloud(t, fmt.Sprintf("g%d", os.Getpid()))
	sc := c.cid("create_stemcell", stemcellImage(t), map[string]any{})
	request := map[string]any{"method": "create_vm", "arguments": order(sc, "10.245.0.6"), "api_version": 2}
	input, err := json.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Close() }()
	cmd := exec.CommandContext(t.Context(), c.cpi, "--config", c.config)
	cmd.Stdin, cmd.Stdout = bytes.NewReader(input), writer
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = writer.Close()
	begun := filepath.Join(iaas.Directory(c.dir, c.name), "vms", "*", "record.json")
	eventually.True(t, "the VM is being made", func() bool {
		found, _ := filepath.Glob(begun)
		return len(found) > 0
	})
	_ = reader.Close()
	_ = cmd.Wait() // whatever its status is
	var vm string
	eventually.Nil(t, "the address is free again", func() error {
		r := c.call("create_vm", order(sc, "10.245.0.6")...)
		if r.Error != nil {
			return errors.New(r.Error.Message)
		}
		vm = r.Result.([]any)[0].(string)
		return nil
	})
	if found, _ := filepath.Glob(begun); len(found) != 1 {
		t.Errorf("the IaaS has the VMs %v, want the second one alone", found)
	}
	r := c.call("create_vm", order(sc, "10.245.0.6")...)
	if free := "lab cpi-clean --iaas " + c.name + " " + vm; r.Error == nil || !strings.Contains(r.Error.Message, free) {
		t.Errorf("an address that is taken: got %+v, want an error with %q", r, free)
	}
	c.must("delete_vm", vm)
	c.must("delete_stemcell", sc)
	c.gone()
}
