//go:build machine

package machine

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
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

// stemcellImage is the image of our stemcell, as a CPI is handed it.
func stemcellImage(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("tar", "-xzf", stemcell(t), "-C", dir, "image").CombinedOutput(); err != nil {
		t.Fatalf("unpack the stemcell: %v: %s", err, out)
	}
	return filepath.Join(dir, "image")
}

// order are the arguments of create_vm for a container with an address.
func order(stemcell, ip string) []any {
	return []any{"agent-" + ip, stemcell, map[string]any{"engine": iaas.Container, "ephemeral_disk": 1024},
		map[string]any{"default": map[string]any{
			"type": "manual", "ip": ip, "prefix": "32", "netmask": "255.255.255.0", "gateway": "10.245.0.1",
			"dns":     []string{"10.245.0.1"},
			"default": []string{"dns", "gateway"}, "cloud_properties": map[string]any{}}}, []any{},
		map[string]any{"bosh": map[string]any{"password": "*"}}}
}

// agents reaches the agents in a network, which have made their own certificates.
func agents(space netns.Namespace) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: space.DialContext, DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, Timeout: 5 * time.Second}
}

// http reaches the agents of the IaaS.
func (c *cloud) http() *http.Client { return agents(netns.Open(c.runtime())) }

// pong waits for the agent at an address.
func (c *cloud) pong(ip string, within time.Duration) {
	c.t.Helper()
	pong(c.t, netns.Open(c.runtime()), ip, within)
}

func pong(t testing.TB, space netns.Namespace, ip string, within time.Duration) {
	t.Helper()
	client := agents(space)
	eventually.Within(t, within, "a pong of "+ip, func() error {
		ping := strings.NewReader(`{"method":"ping","arguments":[],"reply_to":"test"}`)
		response, err := client.Post("https://mbus:secret@"+ip+":6868/agent", "application/json", ping)
		if err != nil {
			return err
		}
		defer func() { _ = response.Body.Close() }()
		body, err := io.ReadAll(response.Body)
		if err == nil && !strings.Contains(string(body), "pong") {
			err = fmt.Errorf("got %s", body)
		}
		return err
	})
}

// Every method with good, repeated, missing and hostile arguments, in every version.
func TestMachineCPIConformance(t *testing.T) {
	t.Parallel()
	c := newCloud(t, fmt.Sprintf("c%d", os.Getpid()))
	for _, method := range []string{"has_vm", "has_disk"} {
		if r := c.call(method, "nothing"); r.Result != false || c.holder() != 0 {
			t.Errorf("%s where nothing is: got %v, and a holder was started: %v", method, r.Result, c.holder() != 0)
		}
	}
	path := stemcellImage(t)
	sc := c.cid("create_stemcell", path, map[string]any{"disk": 3072})
	sameImage := c.cid("create_stemcell", path, nil)
	if sameImage == sc {
		t.Errorf("two uploads of one image have the same CID %s", sc)
	}
	onSCSI := order(sameImage, "10.245.0.7")
	onSCSI[2].(map[string]any)["disk_bus"], onSCSI[2].(map[string]any)["ram"] = "scsi", 256
	vm, other := c.cid("create_vm", order(sc, "10.245.0.6")...), c.cid("create_vm", onSCSI...)
	disk, second := c.cid("create_disk", 64, map[string]any{}, vm), c.cid("create_disk", 64, nil, nil)
	if disk[:20] == second[:20] {
		t.Errorf("CIDs %s and %s have the same beginning", disk, second)
	}
	hint := c.must("attach_disk", vm, disk)
	c.shares(vm, other)
	c.snapshotInUse(disk)
	tree := c.cid("create_stemcell", brokenTree(t), map[string]any{})
	secret := filepath.Join(c.dir, "not-an-image")
	if err := os.WriteFile(secret, []byte(strings.Repeat("root:x:0:0\n", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	changed := func(ip string, edit func([]any)) []any {
		o := order(sc, ip)
		edit(o)
		return o
	}
	network := func(key string, value any) func([]any) {
		return func(o []any) { o[3].(map[string]any)["default"].(map[string]any)[key] = value }
	}
	rows := []struct {
		method    string
		arguments []any
		kind      iaas.Kind // of the error, "" for none
		result    any       // if there is no error
	}{
		{"ping", nil, "", "pong"},
		{"calculate_vm_cloud_properties", []any{map[string]any{"cpu": 2, "ram": 512, "ephemeral_disk_size": 100}}, "", map[string]any{"cpu": 2.0, "ram": 512.0, "ephemeral_disk": 100.0}},
		{"calculate_vm_cloud_properties", []any{"much"}, iaas.CloudError, nil},
		{"configure_networks", []any{vm, map[string]any{}}, iaas.NotSupported, nil},
		{"current_vm_id", nil, iaas.NotImplemented, nil},
		{"make_coffee", nil, iaas.NotImplemented, nil},

		{"create_stemcell", []any{filepath.Join(c.dir, "missing"), map[string]any{}}, iaas.CloudError, nil},
		{"create_stemcell", []any{secret, map[string]any{}}, iaas.CloudError, nil},
		{"create_stemcell", []any{path}, iaas.CloudError, nil},
		{"delete_stemcell", []any{"sc-nothing"}, "", nil},
		{"delete_stemcell", []any{"../vms"}, "", nil},

		{"create_vm", order("sc-nothing", "10.245.0.8"), iaas.CloudError, nil},
		{"create_vm", order(sc, "10.245.0.6"), iaas.CloudError, nil},
		{"create_vm", changed("10.245.0.8", func(o []any) { o[2] = map[string]any{"engine": "cloud"} }), iaas.CloudError, nil},
		{"create_vm", changed("10.245.0.8", func(o []any) { o[2] = map[string]any{"cpu": -1} }), iaas.CloudError, nil},
		{"create_vm", changed("10.245.0.8", func(o []any) { o[3] = map[string]any{} }), iaas.CloudError, nil},
		{"create_vm", changed("10.245.0.8", network("ip", "10.245.0.8; reboot")), iaas.CloudError, nil},
		{"create_vm", changed("10.245.0.8", network("ip", "fe80::1%/../x")), iaas.CloudError, nil},
		{"create_vm", changed("10.245.0.1", network("ip", "10.245.0.1")), iaas.CloudError, nil},
		{"create_vm", changed("10.245.0.8", network("type", "magic")), iaas.CloudError, nil},
		{"create_vm", []any{nil, sc, nil, nil, nil, nil}, iaas.CloudError, nil},
		{"create_vm", []any{}, iaas.CloudError, nil},
		// These fail when most of the VM is made: a tree is not a disk, and its init does not run.
		{"create_vm", changed("10.245.0.8", func(o []any) { o[1], o[2] = tree, map[string]any{"engine": iaas.QEMU} }), iaas.CloudError, nil},
		{"create_vm", changed("10.245.0.8", func(o []any) { o[1] = tree }), iaas.VMCreationFailed, nil},

		{"has_vm", []any{vm}, "", true},
		{"has_vm", []any{"../../etc"}, "", false},
		{"has_vm", []any{strings.Repeat("x", 1000)}, "", false},
		{"has_vm", []any{7}, iaas.CloudError, nil},
		{"set_vm_metadata", []any{vm, map[string]any{"deployment": "d", "index": 0}}, "", nil},
		{"set_vm_metadata", []any{"vm-nothing", map[string]any{}}, iaas.VMNotFound, nil},
		{"reboot_vm", []any{"vm-nothing"}, iaas.VMNotFound, nil},
		{"delete_vm", []any{"vm-nothing"}, "", nil},

		{"create_disk", []any{0, map[string]any{}, vm}, iaas.CloudError, nil},
		{"create_disk", []any{-5, nil, nil}, iaas.CloudError, nil},
		{"create_disk", []any{1 << 25, nil, nil}, iaas.NoDiskSpace, nil},
		{"create_disk", []any{1 << 40, nil, nil}, iaas.CloudError, nil},
		{"has_disk", []any{disk}, "", true},
		{"has_disk", []any{"d-nothing"}, "", false},
		{"attach_disk", []any{vm, disk}, "", hint},
		{"attach_disk", []any{other, disk}, iaas.CloudError, nil},
		{"attach_disk", []any{"vm-nothing", disk}, iaas.VMNotFound, nil},
		{"attach_disk", []any{vm, "d-nothing"}, iaas.DiskNotFound, nil},
		{"get_disks", []any{vm}, "", []any{disk}},
		{"get_disks", []any{other}, "", []any{}},
		{"get_disks", []any{"vm-nothing"}, iaas.VMNotFound, nil},
		{"set_disk_metadata", []any{disk, map[string]any{"deployment": "d"}}, "", nil},
		{"set_disk_metadata", []any{"d-nothing", map[string]any{}}, iaas.DiskNotFound, nil},
		{"resize_disk", []any{disk, 128}, iaas.NotSupported, nil},
		{"delete_disk", []any{disk}, iaas.CloudError, nil},
		{"attach_disk", []any{disk, disk}, iaas.VMNotFound, nil},
		{"attach_disk", []any{other, second}, "", map[string]string{"path": "/dev/disk/by-id/scsi-0QEMU_QEMU_HARDDISK_" + second, "id": second[2:]}},
		{"detach_disk", []any{other, second}, "", nil},
		{"detach_disk", []any{disk, disk}, iaas.VMNotFound, nil},
		{"create_vm", changed("10.245.0.8", func(o []any) { o[2].(map[string]any)["disk_bus"] = "ide" }), iaas.CloudError, nil},
		{"create_vm", changed("10.245.0.8", func(o []any) { o[2].(map[string]any)["firmware"] = "uefi" }), iaas.CloudError, nil},
		{"detach_disk", []any{vm, second}, iaas.DiskNotAttached, nil},
		{"detach_disk", []any{other, disk}, iaas.DiskNotAttached, nil},
		{"detach_disk", []any{vm, disk}, "", nil},
		{"detach_disk", []any{vm, disk}, iaas.DiskNotAttached, nil},
		{"detach_disk", []any{vm, "d-nothing"}, iaas.DiskNotFound, nil},
		{"detach_disk", []any{"vm-nothing", disk}, iaas.VMNotFound, nil},
		{"resize_disk", []any{disk, 128}, "", nil},
		{"resize_disk", []any{disk, 128}, "", nil},
		{"resize_disk", []any{disk, 64}, iaas.NotSupported, nil},
		{"update_disk", []any{disk, 256, map[string]any{"kind": "fast"}}, "", nil},
		{"update_disk", []any{disk, 128, map[string]any{}}, iaas.NotSupported, nil},
		{"update_disk", []any{"d-nothing", 128, map[string]any{}}, iaas.DiskNotFound, nil},
		{"snapshot_disk", []any{"d-nothing", map[string]any{}}, iaas.DiskNotFound, nil},
		{"delete_snapshot", []any{"snap-nothing"}, "", nil},
		{"delete_disk", []any{second}, "", nil},
		{"delete_disk", []any{second}, "", nil},
		{"has_disk", []any{second}, "", false},

		{"create_network", []any{map[string]any{"type": "manual", "range": "10.9.1.0/24", "gateway": "10.9.2.1"}}, iaas.CloudError, nil},
		{"create_network", []any{map[string]any{"type": "manual", "netmask_bits": 24}}, iaas.NotSupported, nil},
		{"delete_network", []any{"net-nothing"}, iaas.NetworkNotFound, nil},
	}
	for n, row := range rows {
		versions := []int{3}
		if row.kind != "" { // it changes nothing
			versions = []int{1, 2, 3}
		}
		for _, version := range versions {
			r := c.request(t.Context(), version, row.method, row.arguments...)
			kind := iaas.Kind("")
			if r.Error != nil {
				kind = iaas.Kind(strings.TrimPrefix(r.Error.Type, "Bosh::Clouds::"))
			}
			if kind != row.kind || r.Error == nil && fmt.Sprint(r.Result) != fmt.Sprint(row.result) {
				t.Errorf("row %d, version %d: %s %.200v: got %v, %+v; want %v, error %q", n, version, row.method, row.arguments,
					r.Result, r.Error, row.result, row.kind)
			}
		}
	}
	c.has(vm, other)
	c.must("delete_stemcell", tree)
	for _, input := range []string{"", "null", "[]", "{", `{"method":7}`, `{"method":"ping"}{}`,
		`{"method":"has_vm","arguments":null}`} {
		if r := c.raw(t.Context(), []byte(input)); r.Error == nil || r.Error.Type != "Bosh::Clouds::CloudError" {
			t.Errorf("request %q: got %+v, want a CloudError", input, r)
		}
	}

	c.light(path)
	c.limits(other)
	c.snapshot(disk)
	net, ok := c.must("create_network", map[string]any{"type": "manual", "range": "10.9.1.0/24",
		"gateway": "10.9.1.1"}).([]any)
	if !ok || len(net) != 3 {
		t.Fatalf("create_network: %v", net)
	}
	c.must("delete_network", net[0])
	if r := c.request(t.Context(), 1, "attach_disk", vm, disk); r.Error != nil || r.Result != nil {
		t.Errorf("attach_disk in version 1: got %+v, want null", r)
	}
	// A VM with a disk on it goes, the disk stays; so does the image that two stemcells shared.
	c.must("delete_stemcell", sc)
	c.pong("10.245.0.6", time.Minute)
	c.must("reboot_vm", vm)
	c.pong("10.245.0.6", time.Minute)
	c.must("delete_vm", vm)
	if c.must("has_disk", disk) != true {
		t.Error("the disk went with its VM")
	}
	reused := c.cid("create_vm", order(sameImage, "10.245.0.6")...)
	for _, cid := range []string{reused, other} {
		c.must("delete_vm", cid)
		c.must("delete_vm", cid)
	}
	c.must("delete_disk", disk)
	c.must("delete_stemcell", sameImage)
	c.gone()
}

// brokenTree is the image of a container whose first program does not run.
func brokenTree(t *testing.T) string {
	t.Helper()
	dir, image := t.TempDir(), filepath.Join(t.TempDir(), "image")
	err := errors.Join(os.MkdirAll(filepath.Join(dir, "etc"), 0o755), os.MkdirAll(filepath.Join(dir, "sbin"), 0o755),
		os.WriteFile(filepath.Join(dir, "sbin/init"), nil, 0o755))
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "tar", "-czf", image, "-C", dir, ".").CombinedOutput(); err != nil {
		t.Fatalf("tar: %v: %s", err, out)
	}
	return image
}

// has checks that of VMs these are there alone: calls that failed have left neither files nor a network namespace.
func (c *cloud) has(vms ...string) {
	c.t.Helper()
	files, err := filepath.Glob(filepath.Join(iaas.Directory(c.dir, c.name), "vms", "*"))
	spaces, listErr := netns.List(c.runtime() + ".")
	if err := errors.Join(err, listErr); err != nil || len(files) != len(vms) || len(spaces) != len(vms) {
		c.t.Errorf("directories %v and namespaces %v (%v), want those of %v", files, spaces, err, vms)
	}
}

// snapshotInUse snapshots a disk of a running VM: where the file system does not share blocks, the copy would be of several moments.
func (c *cloud) snapshotInUse(disk string) {
	c.t.Helper()
	r := c.call("snapshot_disk", disk, map[string]any{})
	shares := exec.Command("cp", "--reflink=always", c.config, filepath.Join(c.dir, "shared")).Run() == nil
	if r.Error == nil && shares {
		c.must("delete_snapshot", r.Result)
	} else if r.Error == nil || shares || r.Error.Type != "Bosh::Clouds::"+string(iaas.NotImplemented) {
		c.t.Errorf("snapshot of a disk in use, on a file system that shares blocks (%v): got %+v", shares, r)
	}
}

// snapshot checks that a snapshot has what is on the disk, and that it goes.
func (c *cloud) snapshot(disk string) {
	c.t.Helper()
	dir := iaas.Directory(c.dir, c.name)
	image, err := os.OpenFile(filepath.Join(dir, "disks", disk, "image"), os.O_WRONLY, 0)
	if err != nil {
		c.t.Fatal(err)
	}
	const content, at = "content", 1 << 20
	if _, err := image.WriteAt([]byte(content), at); err != nil {
		c.t.Fatal(err)
	}
	_ = image.Close()
	snapshot := c.cid("snapshot_disk", disk, map[string]any{"index": 3})
	taken, err := os.Open(filepath.Join(dir, "snapshots", snapshot, "image"))
	if err != nil {
		c.t.Fatal(err)
	}
	got := make([]byte, len(content))
	if _, err := taken.ReadAt(got, at); err != nil || string(got) != content {
		c.t.Errorf("the snapshot has %q (%v) where the disk has %q", got, err, content)
	}
	_ = taken.Close()
	for range 2 {
		c.must("delete_snapshot", snapshot)
	}
	if _, err := os.Stat(filepath.Join(dir, "snapshots", snapshot)); !os.IsNotExist(err) {
		c.t.Errorf("files of a deleted snapshot: %v", err)
	}
}

// limits checks that a container with 256 MiB has no more of 600 MB in memory; the rest is swapped out, or the process
// killed. It runs as a unit, which is in the container's control groups.
func (c *cloud) limits(vm string) {
	c.t.Helper()
	const allocate = `push(@x, "a" x 600_000_000); open(F, "/proc/self/status"); print grep(/VmHWM/, <F>)`
	got := c.run(vm, "sh", "-c", "systemd-run --quiet --wait --pipe perl -e '"+allocate+"' || echo VmHWM: 0 kB")
	var peak int
	// Pages of the C library are charged to whatever read them first, so the peak may be a little above the limit.
	if _, err := fmt.Sscanf(got, "VmHWM: %d kB", &peak); err != nil || peak > 300<<10 {
		c.t.Errorf("a container with 256 MiB: peak of a process with 600 MB is %q: %v", got, err)
	}
}

// light makes a stemcell of an image that is on the host already.
func (c *cloud) light(image string) {
	c.t.Helper()
	data, err := os.ReadFile(image)
	empty := filepath.Join(c.dir, "empty")
	if err == nil {
		err = os.WriteFile(empty, nil, 0o600)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	sum := sha256.Sum256(data)
	digest, dir := hex.EncodeToString(sum[:]), iaas.LightImages(c.dir, c.name)
	r := c.call("create_stemcell", empty, map[string]any{"path": image, "sha256": digest})
	if r.Error == nil || !strings.Contains(r.Error.Message, dir) {
		c.t.Errorf("a light stemcell of an image that is not in %s: got %+v", dir, r)
	}
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Link(image, filepath.Join(dir, digest))); err != nil {
		c.t.Fatal(err)
	}
	made := c.cid("create_stemcell", empty, map[string]any{"sha256": digest})
	c.must("delete_stemcell", made)
}

// The holder is killed, and everything that it has started, as a power cut of the host does it: VMs, disks and
// data are back with the next call.
func TestMachineCPIStateSurvives(t *testing.T) {
	t.Parallel()
	c := newCloud(t, fmt.Sprintf("s%d", os.Getpid()))
	sc := c.cid("create_stemcell", stemcellImage(t), map[string]any{})
	vm, off := c.cid("create_vm", order(sc, "10.245.0.6")...), c.cid("create_vm", order(sc, "10.245.0.7")...)
	disk := c.cid("create_disk", 64, nil, nil)
	hint := c.must("attach_disk", vm, disk)
	c.must("set_vm_metadata", vm, map[string]any{"name": "web/0"})
	c.pong("10.245.0.6", time.Minute)
	c.pong("10.245.0.7", time.Minute)
	c.run(vm, "sh", "-c", "echo kept >/root/file; sync")
	c.run(vm, "sh", "-c", fmt.Sprintf("mkfs.ext4 -q %[1]s && mount %[1]s /mnt && echo data >/mnt/file && umount /mnt",
		hint))
	c.run(off, "systemctl", "--no-block", "poweroff")
	eventually.True(t, "the VM that powered itself off is off", func() bool { return !c.vm(off).Running })
	for round := range 3 {
		holder, err := os.FindProcess(c.holder())
		if err == nil {
			err = holder.Kill()
		}
		if err != nil {
			t.Fatal(err)
		}
		eventually.True(t, "the holder has gone", func() bool { return c.holder() == 0 })
		if round == 1 { // what a reboot does to /run
			for _, space := range []string{c.runtime(), c.runtime() + "." + vm} {
				_ = exec.Command("umount", "--lazy", netns.Open(space).Path()).Run()
				_ = os.Remove(netns.Open(space).Path())
			}
		}
		if c.must("has_vm", vm) != true {
			t.Fatal("the VM is gone")
		}
		c.pong("10.245.0.6", time.Minute)
	}
	if got := c.run(vm, "cat", "/root/file"); got != "kept\n" {
		t.Errorf("the root file system holds %q", got)
	}
	if second := c.must("attach_disk", vm, disk); second != hint {
		t.Errorf("the hint was %v and is %v", hint, second)
	}
	if got := c.run(vm, "sh", "-c", fmt.Sprintf("mount %v /mnt && cat /mnt/file && umount /mnt", hint)); got != "data\n" {
		t.Errorf("the disk holds %q", got)
	}
	if l := c.vm(vm); l.Metadata["name"] != "web/0" || l.Director != "director-1" {
		t.Errorf("the VM's metadata are %v of %q", l.Metadata, l.Director)
	}
	if c.vm(off).Running {
		t.Error("a VM that powered itself off came back")
	}
	c.must("reboot_vm", off)
	c.pong("10.245.0.7", time.Minute)
	for _, cid := range []string{vm, off} {
		c.must("delete_vm", cid)
	}
	c.must("delete_disk", disk)
	c.must("delete_stemcell", sc)
	c.gone()
}
