package iaas

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"cambium/lab/iaas/fabric"
	"cambium/lab/machine"
	"cambium/lab/metadata"
	"cambium/lab/registry"

	"github.com/sirupsen/logrus"
)

func manualNetwork(ip string) fabric.Network {
	return fabric.Network{Type: fabric.Manual, IP: ip, Netmask: "255.255.255.0", Gateway: "10.9.0.1"}
}

func TestAddressesConflictOnOneSegmentOnly(t *testing.T) {
	i := &IaaS{vms: map[string]*VM{"vm-1": {Networks: map[string]fabric.Network{"a": manualNetwork("10.9.0.5")}}}}
	if err := i.conflict(map[string]fabric.Network{"b": manualNetwork("10.9.0.5")}); err == nil || !strings.Contains(err.Error(), "vm-1") {
		t.Errorf("the same address: got %v, want an error that names vm-1", err)
	}
	card, sameCard := manualNetwork("10.9.0.7"), manualNetwork("10.9.0.8")
	card.MAC, sameCard.MAC = "02:aa:00:00:00:01", "02:AA:00:00:00:01"
	i.vms["vm-2"] = &VM{Networks: map[string]fabric.Network{"a": card}}
	if err := i.conflict(map[string]fabric.Network{"b": sameCard}); err == nil || !strings.Contains(err.Error(), "vm-2") {
		t.Errorf("the same card: got %v, want an error that names vm-2", err)
	}
	elsewhere := manualNetwork("10.9.0.5")
	elsewhere.Properties = json.RawMessage(`{"name":"other"}`)
	for name, n := range map[string]fabric.Network{"another address": manualNetwork("10.9.0.6"), "another segment": elsewhere} {
		if err := i.conflict(map[string]fabric.Network{"b": n}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDynamicAddressesAreTheLowestFreeOnes(t *testing.T) {
	i := &IaaS{vms: map[string]*VM{}}
	take := func(vm, properties string) (string, error) {
		nets := map[string]fabric.Network{"d": {Type: fabric.Dynamic, IP: "10.9.0.99", Properties: json.RawMessage(properties)}}
		err := i.allocate(nets)
		i.vms[vm] = &VM{Networks: nets}
		return nets["d"].IP + " " + nets["d"].Netmask + " " + nets["d"].Gateway, err
	}
	for n, want := range []string{"10.246.0.10 255.255.255.0 10.246.0.1", "10.246.0.11 255.255.255.0 10.246.0.1"} {
		if got, err := take(string(rune('a'+n)), "{}"); err != nil || got != want {
			t.Errorf("VM %d: got %s, %v; want %s", n, got, err, want)
		}
	}
	delete(i.vms, "a")
	if got, err := take("c", "{}"); err != nil || !strings.HasPrefix(got, "10.246.0.10 ") {
		t.Errorf("after a deletion: got %s, %v; want the free address", got, err)
	}
	for _, properties := range []string{`{"range":"10.0.0.0/30"}`, `{"range":"x"}`, `{"range":"fd00::/64"}`} {
		if _, err := take("x", properties); err == nil {
			t.Errorf("%s is accepted", properties)
		}
	}
	for n := range 6 {
		_, err := take(string(rune('k'+n)), `{"name":"s","range":"10.1.0.0/28"}`)
		if full := n >= 5; full != (err != nil) {
			t.Errorf("VM %d of a small range: %v", n, err)
		}
	}
}

func TestShape(t *testing.T) {
	if s, err := (Shape{}).check(); err != nil || s.Engine != QEMU || s.CPU != 1 || s.RAM != 1024 || s.EphemeralDisk != 10240 || s.DiskBus != machine.Virtio || s.Firmware != bios {
		t.Errorf("an empty shape becomes %+v, %v", s, err)
	}
	for _, s := range []Shape{{CPU: -1}, {RAM: 1 << 30}, {EphemeralDisk: -1}, {RootDisk: maxDisk + 1}, {Engine: "xen"}, {DiskBus: "ide"}, {DiskBus: machine.NVMe}, {Firmware: "coreboot"}, {Engine: Container, Firmware: uefi}, {Source: "carrier pigeon"}} {
		if _, err := s.check(); err == nil {
			t.Errorf("%+v is accepted", s)
		}
	}
}

func TestHintsFollowTheBus(t *testing.T) {
	for bus, want := range map[machine.Bus]string{machine.Virtio: "/dev/disk/by-id/virtio-d-1", machine.SCSI: "/dev/disk/by-id/scsi-0QEMU_QEMU_HARDDISK_d-1"} {
		s := Shape{DiskBus: bus}
		if d := s.disk("d-1", "x"); s.path("d-1") != want || d.Bus != bus || "/dev/"+d.Names[0] != want {
			t.Errorf("%s: path %s, disk %+v; want %s", bus, s.path("d-1"), d, want)
		}
	}
}

// An agent for vSphere looks for links that end with the id, without its dashes, and others for the path.
func TestHintsBehindASCSIController(t *testing.T) {
	vm := VM{Base: Base{CID: newCID(vms)}, Shape: Shape{DiskBus: machine.SCSI}}
	cid := newCID(disks)
	all := vm.disks([]string{cid})
	for id, hint := range map[string]any{ephemeralID(vm.CID): all["ephemeral"], cid: all["persistent"].(map[string]any)[cid]} {
		h, _ := hint.(map[string]string)
		link := "/dev/" + vm.Shape.disk(id, "x").Names[0]
		if h["path"] != link || len(h["id"]) < 16 || !strings.HasSuffix(link, strings.ReplaceAll(h["id"], "-", "")) {
			t.Errorf("hint of %s is %v, want path and id of %s", id, hint, link)
		}
	}
}

func TestLightStemcells(t *testing.T) {
	dir := t.TempDir()
	image := filepath.Join(dir, "image")
	if err := os.WriteFile(image, []byte("bytes"), 0o600); err != nil {
		t.Fatal(err)
	}
	const digest = "277089d91c0bdf4f2e6862ba7e4a07605119431f5d13f726dd352b06f1b206a9"
	n := 0
	take := func(upload, properties string) (string, error) {
		n++
		return receiveImage(strings.NewReader(upload), json.RawMessage(properties), filepath.Join(dir, strconv.Itoa(n)))
	}
	for name, c := range map[string]struct{ upload, properties, digest, err string }{
		"light":            {"", `{"path":"` + image + `","sha256":"` + digest + `"}`, digest, ""},
		"upper case":       {"", `{"path":"` + image + `","sha256":"` + strings.ToUpper(digest) + `"}`, digest, ""},
		"not light":        {"bytes", `{"path":"/etc/shadow"}`, digest, ""},
		"nothing named":    {"", ``, "", "empty"},
		"no digest":        {"", `{"path":"` + image + `"}`, "", "sha256"},
		"another digest":   {"", `{"path":"` + image + `","sha256":"` + strings.Repeat("0", 64) + `"}`, "", "another digest"},
		"relative":         {"", `{"path":"image","sha256":"` + digest + `"}`, "", "absolute"},
		"missing":          {"", `{"path":"/missing","sha256":"` + digest + `"}`, "", "no such file"},
		"directory":        {"", `{"path":"` + dir + `","sha256":"` + digest + `"}`, "", "no file"},
		"not an object":    {"", `[]`, "", "cloud_properties"},
		"digest is no hex": {"", `{"path":"` + image + `","sha256":"x"}`, "", "sha256"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := take(c.upload, c.properties)
			if got != c.digest && c.err == "" || c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("got %q, %v; want %q, error %q", got, err, c.digest, c.err)
			}
		})
	}
}

// What a crash leaves under way is undone or finished by the next holder.
func TestSettle(t *testing.T) {
	s := store{t.TempDir()}
	put := func(kind, cid string, record any) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(s.dir, kind), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := s.put(kind, cid, record); err != nil {
			t.Fatal(err)
		}
	}
	put(vms, "vm-ready", VM{Base: Base{CID: "vm-ready", Phase: Ready}, Image: "kept"})
	put(vms, "vm-creating", VM{Base: Base{CID: "vm-creating", Phase: Creating}, Image: "dropped"})
	put(vms, "vm-deleting", VM{Base: Base{CID: "vm-deleting", Phase: Deleting}})
	put(disks, "d-on-ready", Disk{Base: Base{CID: "d-on-ready", Phase: Ready}, VM: "vm-ready"})
	put(disks, "d-on-deleting", Disk{Base: Base{CID: "d-on-deleting", Phase: Ready}, VM: "vm-deleting"})
	put(disks, "d-on-missing", Disk{Base: Base{CID: "d-on-missing", Phase: Ready}, VM: "vm-missing"})
	put(disks, "d-creating", Disk{Base: Base{CID: "d-creating", Phase: Creating}})
	put(stemcells, "sc-creating", Stemcell{Base: Base{CID: "sc-creating", Phase: Creating}, Image: "dropped"})
	for _, dir := range []string{"images/kept", "images/dropped", "images/.new-1", "disks/d-without-record"} {
		if err := os.MkdirAll(filepath.Join(s.dir, dir, "x"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	i := &IaaS{store: s, log: logrus.NewEntry(logrus.New()), metadata: metadata.New(), registry: registry.New()}
	for range 2 { // once more changes nothing
		if err := i.load(); err != nil {
			t.Fatal(err)
		}
		if err := i.completeInterrupted(); err != nil {
			t.Fatal(err)
		}
		if len(i.vms) != 1 || len(i.stemcells) != 0 || len(i.disks) != 3 {
			t.Errorf("got %d VMs, %d stemcells, %d disks; want 1, 0, 3", len(i.vms), len(i.stemcells), len(i.disks))
		}
		for cid, want := range map[string]string{"d-on-ready": "vm-ready", "d-on-deleting": "", "d-on-missing": ""} {
			if d := i.disks[cid]; d == nil || d.VM != want {
				t.Errorf("disk %s is %+v, want it attached to %q", cid, d, want)
			}
		}
	}
	left, _ := filepath.Glob(filepath.Join(s.dir, "images", "*"))
	hidden, _ := filepath.Glob(filepath.Join(s.dir, "images", ".*"))
	if len(left) != 1 || len(hidden) != 0 || filepath.Base(left[0]) != "kept" {
		t.Errorf("images are %v and %v, want the one that is used", left, hidden)
	}
}

func TestCIDsFillASerialNumber(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		cid := newCID(disks)
		if len(cid) != 20 || seen[cid] {
			t.Fatalf("CID %q has %d characters, or is not new", cid, len(cid))
		}
		seen[cid] = true
	}
	if id := ephemeralID(newCID(vms)); len(id) != 20 {
		t.Errorf("ephemeral disk %q has %d characters, want 20", id, len(id))
	}
}

func TestLocksGoWithTheirUsers(t *testing.T) {
	var l locks
	count, n := 0, 0
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			defer l.lock("a")()
			n++
		})
	}
	all.Wait()
	l.mu.Lock()
	count = len(l.held)
	l.mu.Unlock()
	if n != 50 || count != 0 {
		t.Errorf("%d of 50 had the lock, and %d locks are left", n, count)
	}
}

// machineState is a machine that runs, crashed or powered itself off.
type machineState struct {
	machine.Machine
	running, poweredOff bool
}

func (m machineState) Running() bool    { return m.running }
func (m machineState) PoweredOff() bool { return m.poweredOff }
func (m machineState) Console() string  { return "" }

// TestListedAsOffWhenOnRecord: a VM that powered itself off is listed as running until a next holder would leave it off.
func TestListedAsOffWhenOnRecord(t *testing.T) {
	ended := make(chan struct{})
	close(ended)
	for name, c := range map[string]struct {
		machineState
		followed <-chan struct{}
		want     bool
	}{
		"runs":                           {machineState{running: true}, make(chan struct{}), true},
		"powered itself off, unrecorded": {machineState{poweredOff: true}, ended, true},
		"powered itself off, recorded":   {machineState{poweredOff: true}, nil, false},
		"crashed":                        {machineState{}, ended, false},
		// It had powered itself off before, and did not start again.
		"stopped from outside": {machineState{poweredOff: true}, make(chan struct{}), false},
	} {
		i := &IaaS{machines: map[string]machine.Machine{"vm-1": c.machineState}, followed: map[string]<-chan struct{}{"vm-1": c.followed}}
		if got := i.listVM(&VM{Base: Base{CID: "vm-1", Phase: Ready}, On: true}).Running; got != c.want {
			t.Errorf("%s: running is %v, want %v", name, got, c.want)
		}
	}

	dir := t.TempDir()
	i := &IaaS{store: store{dir}, log: logrus.NewEntry(logrus.New()), vms: map[string]*VM{"vm-1": {Base: Base{CID: "vm-1", Phase: Ready}, On: true}},
		machines: map[string]machine.Machine{"vm-1": machineState{poweredOff: true}}, followed: map[string]<-chan struct{}{"vm-1": ended}}
	for _, recorded := range []bool{false, true} { // it cannot be written at first
		if recorded {
			if err := os.Mkdir(filepath.Join(dir, vms), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		i.follow("vm-1", i.machines["vm-1"], ended)
		if vm := i.vms["vm-1"]; vm.On == recorded || i.listVM(vm).Running == recorded {
			t.Errorf("recorded: %v; on %v, listed as running %v", recorded, vm.On, i.listVM(vm).Running)
		}
	}
}
