package iaas

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"cambium/lab/iaas/fabric"
	"cambium/lab/iaas/value"
	"cambium/lab/machine"
	"cambium/lab/metadata"
	"cambium/lab/registry"

	"github.com/sirupsen/logrus"
)

func manualNetwork(ip string) fabric.Network {
	return fabric.Network{Type: fabric.Manual, IP: value.MustAddr(ip),
		Netmask: value.MustAddr("255.255.255.0"), Gateway: value.MustAddr("10.9.0.1")}
}

func only(n fabric.Network) fabric.Networks { return fabric.Networks{value.MustName("a"): n} }

func TestConflictsOfNetworks(t *testing.T) {
	first, second := newCID(VMs), newCID(VMs)
	vm := &VM{Networks: only(manualNetwork("10.9.0.5"))}
	i := &IaaS{vms: map[CID]*VM{first: vm}}
	for phase, advice := range map[Phase]string{Ready: "; delete that VM first, or", Creating: ": try again, or",
		Deleting: ": try again, or"} {
		vm.Phase = phase
		err := i.conflict(only(manualNetwork("10.9.0.5")))
		if err == nil || !strings.Contains(err.Error(), first.String()) || !strings.Contains(err.Error(), advice) {
			t.Errorf("the same address, %s: got %v, want an error that names %s and says %q", phase, err, first, advice)
		}
	}
	card, sameCard := manualNetwork("10.9.0.7"), manualNetwork("10.9.0.8")
	for text, mac := range map[string]*value.MAC{"02:aa:00:00:00:01": &card.MAC, "02:AA:00:00:00:01": &sameCard.MAC} {
		if err := mac.UnmarshalText([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	i.vms[second] = &VM{Networks: only(card)}
	if err := i.conflict(only(sameCard)); err == nil || !strings.Contains(err.Error(), second.String()) {
		t.Errorf("the same card: got %v, want an error that names %s", err, second)
	}
	sameRange := manualNetwork("10.9.0.6")
	sameRange.Properties.Name = value.MustName("other")
	elsewhere := manualNetwork("10.8.0.5")
	elsewhere.Gateway = value.Addr{}
	elsewhere.Properties.Name = value.MustName("other")
	for name, n := range map[string]fabric.Network{"another address": manualNetwork("10.9.0.6"),
		"another segment": elsewhere} {
		if err := i.conflict(only(n)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := i.conflict(only(sameRange)); err == nil || !strings.Contains(err.Error(), "segment default") {
		t.Errorf("the same range on another segment: got %v, want an error that names the segment", err)
	}
	i.vms = nil
	both := fabric.Networks{value.MustName("a"): manualNetwork("10.9.0.5"), value.MustName("b"): sameRange}
	if filled, _, err := fabric.Plan("vm", both); err != nil || i.conflict(filled) == nil {
		t.Errorf("the same range on two cards of a VM is accepted, %v", err)
	}
	grouped := fabric.Networks{value.MustName("a"): card, value.MustName("b"): sameCard}
	if err := i.conflict(grouped); err != nil {
		t.Errorf("two networks on one card: %v", err)
	}
}

func TestDynamicAddressesAreTheLowestFreeOnes(t *testing.T) {
	i := &IaaS{vms: map[CID]*VM{}}
	take := func(vm CID, properties string) (string, error) {
		n := fabric.Network{Type: fabric.Dynamic, IP: value.MustAddr("10.9.0.99")}
		if err := json.Unmarshal([]byte(properties), &n.Properties); err != nil {
			return "", err
		}
		nets := only(n)
		err := i.allocate(nets)
		i.vms[vm] = &VM{Networks: nets}
		n = nets[value.MustName("a")]
		return n.IP.String() + " " + n.Netmask.String() + " " + n.Gateway.String(), err
	}
	first := newCID(VMs)
	for n, want := range []string{"10.246.0.10 255.255.255.0 10.246.0.1", "10.246.0.11 255.255.255.0 10.246.0.1"} {
		if got, err := take([]CID{first, newCID(VMs)}[n], "{}"); err != nil || got != want {
			t.Errorf("VM %d: got %s, %v; want %s", n, got, err, want)
		}
	}
	delete(i.vms, first)
	if got, err := take(newCID(VMs), "{}"); err != nil || !strings.HasPrefix(got, "10.246.0.10 ") {
		t.Errorf("after a deletion: got %s, %v; want the free address", got, err)
	}
	for _, properties := range []string{`{"range":"10.0.0.0/30"}`, `{"range":"x"}`, `{"range":"fd00::/64"}`} {
		if _, err := take(newCID(VMs), properties); err == nil {
			t.Errorf("%s is accepted", properties)
		}
	}
	for n := range 6 {
		_, err := take(newCID(VMs), `{"name":"s","range":"10.1.0.0/28"}`)
		if full := n >= 5; full != (err != nil) {
			t.Errorf("VM %d of a small range: %v", n, err)
		}
	}
}

func TestShape(t *testing.T) {
	for _, empty := range []string{"{}", "null"} {
		var s Shape
		want := Shape{Engine: QEMU, CPU: 1, RAM: 1024, EphemeralDisk: 10240, RootDisk: 10240, Source: configDrive,
			DiskBus: machine.Virtio, Firmware: bios}
		if err := json.Unmarshal([]byte(empty), &s); err != nil || s != want {
			t.Errorf("%s becomes %+v, %v; want %+v", empty, s, err, want)
		}
	}
	var none, again Shape
	if err := json.Unmarshal([]byte(`{"ephemeral_disk":0,"raw_instance_storage":true}`), &none); err != nil ||
		none.EphemeralDisk != 0 {
		t.Errorf("no ephemeral disk becomes one of %d MiB, %v", none.EphemeralDisk, err)
	}
	// As the record keeps it.
	data, err := json.Marshal(none)
	if err == nil {
		err = json.Unmarshal(data, &again)
	}
	if err != nil || again != none {
		t.Errorf("read again it is %+v, %v; want %+v", again, err, none)
	}
	vm := VM{Base: Base{CID: newCID(VMs)}, Shape: again}
	disks := vm.disks(nil)
	raw, err := json.Marshal(disks["raw_ephemeral"])
	if want := `[{"path":"/dev/disk/by-id/virtio-r-` + vm.CID.digits() + `"}]`; err != nil || string(raw) != want {
		t.Errorf("the raw disk is %s, %v; want %s", raw, err, want)
	}
	if _, has := disks["ephemeral"]; has || len(vm.local()) != 1 {
		t.Errorf("got disks %v and local ones %+v, want a raw one alone", disks, vm.local())
	}
	for _, given := range []string{`{"cpu":-1}`, `{"ram":1073741824}`, `{"ephemeral_disk":-1}`,
		`{"root_disk":67108865}`, `{"engine":"xen"}`, `{"disk_bus":"ide"}`, `{"disk_bus":"nvme"}`,
		`{"firmware":"coreboot"}`,
		`{"engine":"container","firmware":"uefi"}`, `{"settings_source":"carrier pigeon"}`, `[]`} {
		var s Shape
		if err := json.Unmarshal([]byte(given), &s); err == nil || s != (Shape{}) {
			t.Errorf("%s is accepted as %+v, %v", given, s, err)
		}
	}
}

func TestHintsFollowTheBus(t *testing.T) {
	for bus, want := range map[machine.Bus]string{machine.Virtio: "/dev/disk/by-id/virtio-d-1",
		machine.SCSI: "/dev/disk/by-id/scsi-0QEMU_QEMU_HARDDISK_d-1"} {
		s := Shape{DiskBus: bus}
		if d := s.disk("d-1", "x"); s.path("d-1") != want || d.Bus != bus || "/dev/"+d.Names[0] != want {
			t.Errorf("%s: path %s, disk %+v; want %s", bus, s.path("d-1"), d, want)
		}
	}
}

// An agent for vSphere looks for links that end with the id, without its dashes, and others for the path.
func TestHintsBehindASCSIController(t *testing.T) {
	vm := VM{Base: Base{CID: newCID(VMs)}, Shape: Shape{DiskBus: machine.SCSI, EphemeralDisk: 1}}
	cid := newCID(Disks)
	all := vm.disks([]CID{cid})
	persistent := all["persistent"].(map[string]any)[cid.String()]
	for id, hint := range map[string]any{ephemeralID(vm.CID): all["ephemeral"], cid.String(): persistent} {
		h, _ := hint.(map[string]string)
		link := "/dev/" + vm.Shape.disk(id, "x").Names[0]
		if h["path"] != link || len(h["id"]) < 16 || !strings.HasSuffix(link, strings.ReplaceAll(h["id"], "-", "")) {
			t.Errorf("hint of %s is %v, want path and id of %s", id, hint, link)
		}
	}
}

func TestLightStemcells(t *testing.T) {
	dir, light := t.TempDir(), t.TempDir()
	sum := func(content string) (d Digest) {
		d.sum = sha256.Sum256([]byte(content))
		return d
	}
	put := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(light, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(sum("bytes").String(), "bytes")
	put(sum("changed").String(), "other bytes")
	if err := os.Mkdir(filepath.Join(light, sum("directory").String()), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		upload string
		light  Digest
		err    string
	}{
		"light":          {"", sum("bytes"), ""},
		"not light":      {"bytes", sum("missing"), ""},
		"nothing named":  {"", Digest{}, "empty"},
		"another digest": {"", sum("changed"), "does not match its name"},
		"missing":        {"", sum("missing"), "put the image there"},
		"directory":      {"", sum("directory"), "not a regular file"},
	} {
		t.Run(name, func(t *testing.T) {
			u := Upload{Image: strings.NewReader(c.upload), Light: c.light}
			got, err := u.receive(light, filepath.Join(dir, name))
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("got %q, %v; want error %q", got, err, c.err)
				}
				return
			}
			if err != nil || got != sum("bytes") {
				t.Errorf("got %q, %v; want %q", got, err, sum("bytes"))
			}
		})
	}
}

// What a crash leaves under way is undone or finished by the next holder.
func TestSettle(t *testing.T) {
	s := store{t.TempDir()}
	put := func(cid CID, record any) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(s.dir, string(cid.class)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := s.put(cid, record); err != nil {
			t.Fatal(err)
		}
	}
	base := func(class Class, phase Phase) Base { return Base{CID: newCID(class), Phase: phase} }
	kept, dropped := Digest{[32]byte{1}}, Digest{[32]byte{2}}
	ready := VM{Base: base(VMs, Ready), Image: kept}
	creating := VM{Base: base(VMs, Creating), Image: dropped}
	deleting := VM{Base: base(VMs, Deleting)}
	for _, vm := range []VM{ready, creating, deleting} {
		if err := json.Unmarshal([]byte("{}"), &vm.Shape); err != nil {
			t.Fatal(err)
		}
		put(vm.CID, vm)
	}
	onReady := Disk{Base: base(Disks, Ready), Size: 1, VM: ready.CID}
	onDeleting := Disk{Base: base(Disks, Ready), Size: 1, VM: deleting.CID}
	onMissing := Disk{Base: base(Disks, Ready), Size: 1, VM: newCID(VMs)}
	for _, d := range []Disk{onReady, onDeleting, onMissing, {Base: base(Disks, Creating), Size: 1}} {
		put(d.CID, d)
	}
	upload := Stemcell{Base: base(Stemcells, Creating), Image: dropped}
	put(upload.CID, upload)
	foreign := filepath.Join(s.dir, "disks", "lost+found")
	for _, dir := range []string{"images/" + kept.String(), "images/" + dropped.String(), "images/.new-1",
		"disks/" + newCID(Disks).String(), "disks/lost+found"} {
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
		for cid, want := range map[CID]CID{onReady.CID: ready.CID, onDeleting.CID: {}, onMissing.CID: {}} {
			if d := i.disks[cid]; d == nil || d.VM != want {
				t.Errorf("disk %s is %+v, want it attached to %q", cid, d, want)
			}
		}
	}
	left, _ := filepath.Glob(filepath.Join(s.dir, "images", "*"))
	hidden, _ := filepath.Glob(filepath.Join(s.dir, "images", ".*"))
	if len(left) != 1 || len(hidden) != 0 || filepath.Base(left[0]) != kept.String() {
		t.Errorf("images are %v and %v, want the one that is used", left, hidden)
	}
	if _, err := os.Stat(foreign); err != nil {
		t.Errorf("a directory that is not ours: %v", err)
	}
}

func TestCIDsFillASerialNumber(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		cid := newCID(Disks).String()
		if len(cid) != 20 || seen[cid] {
			t.Fatalf("CID %q has %d characters, or is not new", cid, len(cid))
		}
		seen[cid] = true
	}
	if id := ephemeralID(newCID(VMs)); len(id) != 20 {
		t.Errorf("ephemeral disk %q has %d characters, want 20", id, len(id))
	}
}

// A CID has the form that newCID makes, and belongs to one class.
func TestCIDs(t *testing.T) {
	for class := range classes {
		cid := newCID(class)
		if got, err := ParseCID(class, cid.String()); err != nil || got != cid {
			t.Errorf("%s: got %v, %v", cid, got, err)
		}
		var read CID
		if err := read.UnmarshalText([]byte(cid.String())); err != nil || read != cid {
			t.Errorf("%s in a record: got %v, %v", cid, read, err)
		}
		for other := range classes {
			got, err := ParseCID(other, cid.String())
			if other != class && (err == nil || KindOf(err) != classes[other].missing) {
				t.Errorf("%s as one of the %s: got %v, %v", cid, other, got, err)
			}
		}
		prefix, zeros := classes[class].prefix, strings.Repeat("0", 18)
		for _, text := range []string{"", prefix, prefix + zeros + "0", prefix + zeros[1:], prefix + zeros[1:] + "A",
			prefix + zeros[1:] + "/", prefix + "../../../../../etc", "../" + cid.String(), cid.String() + "/..",
			cid.String() + "\n", cid.String() + "\x00", " " + cid.String(), zeros} {
			if got, err := ParseCID(class, text); err == nil || got != (CID{}) {
				t.Errorf("%q is the %s %v", text, class, got)
			}
		}
	}
	var read CID
	if err := read.UnmarshalText([]byte("x-000000000000000000")); err == nil {
		t.Errorf("a CID of no class is read as %v", read)
	}
}

func TestDigestsAndSizes(t *testing.T) {
	hex := strings.Repeat("0Aa", 21) + "0"
	for given, ok := range map[string]bool{
		hex: true, "": true, hex[1:]: false, hex + "0": false, "../" + hex[3:]: false, hex[1:] + "g": false,
	} {
		var d Digest
		if err := d.UnmarshalText([]byte(given)); ok != (err == nil) || ok && d.String() != strings.ToLower(given) {
			t.Errorf("digest %q: got %v, %v", given, d, err)
		}
	}
	for given, ok := range map[string]bool{"1": true, "67108864": true, "67108865": false, "0": false, "-1": false,
		"1e300": false, "1.5": false, "null": false, `"1"`: false, "{}": false} {
		var s Size
		if err := json.Unmarshal([]byte(given), &s); ok != (err == nil) {
			t.Errorf("size %s: got %v, %v", given, s, err)
		}
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

// TestSnapshotOfADiskInUse: a Director that takes snapshots at each stop, start and deploy goes on after NotImplemented
// alone.
func TestSnapshotOfADiskInUse(t *testing.T) {
	s := store{t.TempDir()}
	vm := newCID(VMs)
	d := Disk{Base: Base{CID: newCID(Disks), Phase: Ready}, Size: 1, VM: vm}
	for _, class := range []Class{Disks, Snapshots} {
		if err := os.Mkdir(filepath.Join(s.dir, string(class)), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	err := errors.Join(s.put(d.CID, d), os.WriteFile(s.path(d.CID, imageName), []byte("content"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	i := &IaaS{store: s, disks: map[CID]*Disk{d.CID: &d}, snapshots: map[CID]*Snapshot{},
		machines: map[CID]machine.Machine{vm: machineState{running: true}}}
	cid, err := i.SnapshotDisk(t.Context(), d.CID, nil, value.Name{})
	if err == nil { // on a file system that shares blocks
		data, err := os.ReadFile(s.path(cid, imageName))
		if string(data) != "content" {
			t.Errorf("the snapshot has %q, %v", data, err)
		}
	} else if KindOf(err) != NotImplemented || len(i.snapshots) > 0 {
		t.Errorf("got %s: %v, and %d snapshots; want NotImplemented", KindOf(err), err, len(i.snapshots))
	}
}

// TestListedAsOffWhenOnRecord: a VM that powered itself off is listed as running until a next holder would leave it
// off.
func TestListedAsOffWhenOnRecord(t *testing.T) {
	cid, ended := newCID(VMs), make(chan struct{})
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
		i := &IaaS{machines: map[CID]machine.Machine{cid: c.machineState},
			followed: map[CID]<-chan struct{}{cid: c.followed}}
		if got := i.listVM(&VM{Base: Base{CID: cid, Phase: Ready}, On: true}).Running; got != c.want {
			t.Errorf("%s: running is %v, want %v", name, got, c.want)
		}
	}

	dir := t.TempDir()
	i := &IaaS{store: store{dir}, log: logrus.NewEntry(logrus.New()),
		vms:      map[CID]*VM{cid: {Base: Base{CID: cid, Phase: Ready}, On: true}},
		machines: map[CID]machine.Machine{cid: machineState{poweredOff: true}},
		followed: map[CID]<-chan struct{}{cid: ended}}
	for _, recorded := range []bool{false, true} { // it cannot be written at first
		if recorded {
			if err := os.Mkdir(filepath.Join(dir, string(VMs)), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		i.follow(cid, i.machines[cid], ended)
		if vm := i.vms[cid]; vm.On == recorded || i.listVM(vm).Running == recorded {
			t.Errorf("recorded: %v; on %v, listed as running %v", recorded, vm.On, i.listVM(vm).Running)
		}
	}
}
