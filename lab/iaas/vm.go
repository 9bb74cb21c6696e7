package iaas

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"cambium/lab/disk"
	"cambium/lab/iaas/fabric"
	"cambium/lab/iaas/upload"
	"cambium/lab/iaas/value"
	"cambium/lab/image"
	"cambium/lab/machine"
	"cambium/lab/machine/nspawn"
	"cambium/lab/machine/qemu"
	"cambium/lab/tree"
)

// Engines of VMs.
const (
	QEMU      = "qemu"
	Container = "container"
)

// Defaults of a VM type.
const (
	defaultCPU       = 1
	defaultRAM       = 1024
	defaultEphemeral = 10240
	defaultRoot      = 10240 // create-env compiles releases on it
)

// UnmarshalJSON parses a VM type. It checks each value against the known ones or its bounds, and sets defaults.
func (s *Shape) UnmarshalJSON(data []byte) error {
	type shape Shape                                // without this method
	given := shape{EphemeralDisk: defaultEphemeral} // 0 is a value of its own: none
	if err := json.Unmarshal(data, &given); err != nil {
		return fmt.Errorf("VM type: %w", err)
	}
	complete, err := Shape(given).complete()
	*s = complete
	return err
}

func (s Shape) complete() (Shape, error) {
	for _, f := range []struct {
		name     string
		value    *int
		fallback int
		most     int
	}{
		{"cpu", &s.CPU, defaultCPU, 256}, {"ram", &s.RAM, defaultRAM, 4 << 20}, {"root_disk", &s.RootDisk, defaultRoot, maxDisk},
	} {
		if *f.value == 0 {
			*f.value = f.fallback
		}
		if *f.value < 1 || *f.value > f.most {
			return Shape{}, Failf(CloudError, "%s %d of the VM type: want 1 to %d", f.name, *f.value, f.most)
		}
	}
	if s.EphemeralDisk < 0 || s.EphemeralDisk > maxDisk {
		return Shape{}, Failf(CloudError, "ephemeral_disk %d of the VM type: want 0, for none, to %d", s.EphemeralDisk,
			maxDisk)
	}
	bus := string(s.DiskBus)
	for _, f := range []struct {
		name  string
		value *string
		known []string // the first is the default
	}{
		{"engine", &s.Engine, []string{QEMU, Container}}, {"settings_source", &s.Source, []string{configDrive, cdrom, httpSource}},
		{"disk_bus", &bus, []string{string(machine.Virtio), string(machine.SCSI)}}, {"firmware", &s.Firmware, []string{bios, uefi}},
	} {
		if *f.value == "" {
			*f.value = f.known[0]
		}
		if !slices.Contains(f.known, *f.value) {
			return Shape{}, Failf(CloudError, "%s %.50q of the VM type is not one of %s",
				f.name, *f.value, strings.Join(f.known, ", "))
		}
	}
	s.DiskBus = machine.Bus(bus)
	if s.Engine == Container && s.Firmware == uefi {
		return Shape{}, Failf(CloudError, "firmware %q of the VM type: a container has no firmware; leave it out", uefi)
	}
	return s, nil
}

// Kinds of firmware.
const (
	bios = "bios"
	uefi = "uefi"
)

// Order specifies a VM to be created.
type Order struct {
	AgentID     value.Name
	Stemcell    CID
	StemcellAPI int // version of the CPI contract that the stemcell's agent supports
	APIVersion  int // and the version of the caller
	Shape       Shape
	Networks    fabric.Networks
	Env         json.RawMessage
	Director    value.Name
	Agent       AgentDefaults
}

// AgentDefaults are settings of all agents, from the CPI's configuration.
type AgentDefaults struct {
	Mbus      string          `json:"mbus,omitempty"`
	NTP       []value.Name    `json:"ntp,omitempty"`
	Blobstore json.RawMessage `json:"blobstore,omitempty"`
}

func (i *IaaS) findVM(cid CID) (VM, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	vm := i.vms[cid]
	if vm == nil || vm.Phase != Ready {
		return VM{}, VMs.missing(cid.String())
	}
	return *vm, nil
}

// HasVM reports whether a VM exists, running or not.
func (i *IaaS) HasVM(cid CID) bool {
	_, err := i.findVM(cid)
	return err == nil
}

func (i *IaaS) saveVM(vm VM) error { return save(i, vm.CID, i.vms, vm) }

// machine returns the machine of a VM, or nil if this holder has not started it.
func (i *IaaS) machine(cid CID) machine.Machine {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.machines[cid]
}

// machineName returns a name that is unique on this host.
func (i *IaaS) machineName(cid CID) string { return i.runtimeName + "." + cid.String() }

// CreateVM creates a VM and starts it. If that fails, it removes everything again.
func (i *IaaS) CreateVM(ctx context.Context, o Order) (CID, fabric.Networks, error) {
	vm := VM{Base: Base{CID: newCID(VMs), Phase: Creating, Created: time.Now(), Director: o.Director},
		AgentID: o.AgentID, StemcellAPI: o.StemcellAPI, Shape: o.Shape}
	var err error
	if vm.Networks, _, err = fabric.Plan(vm.CID.String(), o.Networks); err != nil {
		return CID{}, nil, err
	}
	vm.Registry = o.APIVersion < 2 || o.StemcellAPI < 2
	defer i.locks.lock(vm.CID.String())()
	if err := i.claim(&vm, o.Stemcell); err != nil {
		return CID{}, nil, err
	}
	if vm.Settings, err = o.settings(vm); err == nil {
		err = i.saveVM(vm)
	}
	if err == nil {
		err = i.build(ctx, vm)
	}
	if err == nil {
		vm.Phase, vm.On = Ready, true
		err = i.saveVM(vm)
	}
	if err != nil {
		err = errors.Join(err, i.forgetVM(vm.CID))
		var known *Error
		if errors.As(err, &known) {
			return CID{}, nil, err
		}
		return CID{}, nil, Failf(VMCreationFailed, "create VM: %w", err)
	}
	i.log.WithField("cid", vm.CID).Info("VM created")
	return vm.CID, vm.Networks, nil
}

// claim reserves the stemcell's image and the addresses for the VM in one step. From then on the image is kept, and no
// other VM gets the addresses.
func (i *IaaS) claim(vm *VM, stemcell CID) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	s, err := i.findStemcell(stemcell)
	if err != nil {
		return err
	}
	if err := i.allocate(vm.Networks); err != nil {
		return err
	}
	if err := i.conflict(vm.Networks); err != nil {
		return err
	}
	vm.Image = s.Image
	claimed := *vm
	i.vms[vm.CID] = &claimed
	return nil
}

// build creates the disks of a VM and starts it.
func (i *IaaS) build(ctx context.Context, vm VM) error {
	for _, d := range vm.local() {
		if err := disk.Create(i.store.path(vm.CID, d.file), Size(d.size).bytes()); err != nil {
			return err
		}
	}
	return i.power(ctx, vm)
}

const machineDir = "machine"

// localDisk is a disk that belongs to a VM.
type localDisk struct {
	id   string
	file string // of the image
	size int    // in MiB
}

// rawSize is the size of the raw disk in MiB.
const rawSize = 1024

// local returns the disks that are created and deleted with a VM.
func (vm VM) local() (all []localDisk) {
	if vm.Shape.EphemeralDisk > 0 {
		all = append(all, localDisk{ephemeralID(vm.CID), "ephemeral", vm.Shape.EphemeralDisk})
	}
	if vm.Shape.RawStorage {
		all = append(all, localDisk{rawID(vm.CID), "raw", rawSize})
	}
	return all
}

// ephemeralID returns the serial number of the ephemeral disk, and rawID that of the raw one. They are as long as those
// of persistent disks, so that they cannot be confused.
func ephemeralID(vm CID) string { return "e-" + vm.digits() }
func rawID(vm CID) string       { return "r-" + vm.digits() }

// power creates the machine of a VM, if this holder has none yet, and switches it on.
func (i *IaaS) power(ctx context.Context, vm VM) error {
	i.mu.Lock()
	m, closing := i.machines[vm.CID], i.closing
	i.mu.Unlock()
	if closing {
		return errors.New("the holder is stopping")
	}
	if m == nil {
		var err error
		if m, err = i.assemble(ctx, vm); err != nil {
			return err
		}
		i.mu.Lock()
		i.machines[vm.CID] = m
		i.mu.Unlock()
	}
	if err := m.Start(ctx); err != nil {
		return err
	}
	ended := m.Done()
	i.mu.Lock()
	defer i.mu.Unlock()
	// A machine that was stopped from outside and started again has not ended.
	if i.followed[vm.CID] != ended {
		i.followed[vm.CID] = ended
		go i.follow(vm.CID, m, ended)
	}
	return nil
}

// assemble creates the machine of a VM from its files.
func (i *IaaS) assemble(ctx context.Context, vm VM) (machine.Machine, error) {
	_, cards, err := fabric.Plan(vm.CID.String(), vm.Networks)
	if err != nil {
		return nil, err
	}
	spec := machine.Spec{Name: i.machineName(vm.CID), Dir: i.store.path(vm.CID, machineDir)}
	for n, c := range cards {
		name, err := i.net.Plug(vm.CID.String(), c, vm.Networks, needsDHCP(vm, c))
		if err != nil {
			return nil, err
		}
		spec.NICs = append(spec.NICs, machine.NIC{Name: fmt.Sprintf("eth%d", n), MAC: c.MAC, Net: i.Net, Bridge: name})
	}
	engine, err := i.engine(ctx, vm)
	if err != nil {
		return nil, err
	}
	m, err := engine.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	if err := i.attachAndDeliver(ctx, vm, m); err != nil {
		return nil, errors.Join(err, m.Close(ctx))
	}
	return m, nil
}

// needsDHCP reports whether a card gets its address by DHCP: in a dynamic network, and if the agent needs the network
// to get its settings.
func needsDHCP(vm VM, c fabric.Card) bool {
	dynamic := func(name value.Name) bool { return vm.Networks[name].Type == fabric.Dynamic }
	return vm.Shape.Source == httpSource || slices.ContainsFunc(c.Networks, dynamic)
}

// attachAndDeliver attaches the disks of a new machine and delivers its settings.
func (i *IaaS) attachAndDeliver(ctx context.Context, vm VM, m machine.Machine) error {
	for _, d := range vm.local() {
		if _, err := m.Attach(ctx, vm.Shape.disk(d.id, i.store.path(vm.CID, d.file))); err != nil {
			return err
		}
	}
	for _, cid := range i.attached(vm.CID) {
		if _, err := m.Attach(ctx, i.attachment(vm, cid)); err != nil {
			return err
		}
	}
	return i.deliver(ctx, vm, m)
}

// engine returns the engine for a VM.
func (i *IaaS) engine(ctx context.Context, vm VM) (machine.Engine, error) {
	if vm.Shape.Engine == Container {
		path, err := i.tree(ctx, vm.Image)
		if err != nil {
			return nil, err
		}
		return nspawn.Engine{Tree: path, Memory: vm.Shape.RAM, CPUs: vm.Shape.CPU}, nil
	}
	raw := i.imagePath(vm.Image, upload.Disk)
	if _, err := os.Stat(raw); err != nil {
		return nil, Failf(CloudError, "the stemcell contains a root file system, not a disk; only engine %q can use it",
			Container)
	}
	// The cache remembers whether KVM works on this host.
	cache := image.Cache{Dir: tree.DefaultDir()}
	if err := os.MkdirAll(cache.Dir, 0o755); err != nil {
		return nil, err
	}
	return qemu.Engine{Images: cache, Image: image.Image{Disk: raw}, RootSize: Size(vm.Shape.RootDisk).bytes(),
		Memory: vm.Shape.RAM, CPUs: vm.Shape.CPU, RootBus: vm.Shape.DiskBus, UEFI: vm.Shape.Firmware == uefi}, nil
}

// restartPause is the pause between the crash of a machine and its next start.
const restartPause = 2 * time.Second

// follow waits for the end of a machine. It restarts a machine that has crashed, but not one that has powered itself
// off, as the Director's create-swap-delete strategy expects.
func (i *IaaS) follow(cid CID, m machine.Machine, ended <-chan struct{}) {
	<-ended
	crashed := !m.PoweredOff()
	if crashed {
		time.Sleep(restartPause)
	}
	defer i.locks.lock(cid.String())()
	vm, err := i.findVM(cid)
	i.mu.Lock()
	over := i.closing || i.machines[cid] != m
	i.mu.Unlock()
	if err != nil || over || m.Running() {
		return
	}
	log := i.log.WithField("cid", cid)
	if crashed {
		log.Warn("VM crashed; restarting it")
		if err := i.power(context.Background(), vm); err != nil {
			log.WithError(err).Error("cannot restart the VM")
		}
		return
	}
	log.Info("VM powered itself off")
	vm.On = false
	if err := i.saveVM(vm); err != nil {
		log.WithError(err).Error("cannot record that the VM is powered off")
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.followed, cid)
}

// DeleteVM deletes a VM and keeps its persistent disks. A missing VM is not an error.
func (i *IaaS) DeleteVM(_ context.Context, cid CID) error {
	defer i.locks.lock(cid.String())()
	i.mu.Lock()
	known := i.vms[cid] // also one whose deletion has failed
	i.mu.Unlock()
	if known == nil {
		return nil
	}
	vm := *known
	vm.Phase = Deleting
	if err := i.saveVM(vm); err != nil {
		return err
	}
	if err := i.keepDeleted(vm); err != nil {
		i.log.WithError(err).WithField("cid", cid).Warn("cannot keep the last verdict of the VM")
	}
	if err := i.forgetVM(cid); err != nil {
		return err
	}
	defer i.locks.lock("image " + vm.Image.String())()
	return i.collect(vm.Image)
}

// deleteTimeout bounds the wait for a machine to end after its power was cut.
const deleteTimeout = time.Minute

// forgetVM ends the machine of a VM, detaches its disks and deletes its files, in any state.
func (i *IaaS) forgetVM(cid CID) error {
	if m := i.machine(cid); m != nil {
		ctx, cancel := context.WithTimeout(context.Background(), deleteTimeout)
		defer cancel()
		if err := m.Delete(ctx); err != nil {
			return err
		}
		i.mu.Lock()
		delete(i.machines, cid)
		delete(i.followed, cid)
		i.mu.Unlock()
	}
	for _, d := range i.attached(cid) {
		if err := i.setAttached(d, CID{}); err != nil {
			return err
		}
	}
	i.mu.Lock()
	vm := *i.vms[cid]
	i.mu.Unlock()
	if err := i.withdraw(vm); err != nil {
		return err
	}
	return i.forget(cid, func() { delete(i.vms, cid) })
}

// RebootVM reboots a VM, or starts it if it is off.
func (i *IaaS) RebootVM(ctx context.Context, cid CID) error {
	defer i.locks.lock(cid.String())()
	vm, err := i.findVM(cid)
	if err != nil {
		return err
	}
	if m := i.machine(cid); m != nil {
		within, cancel := context.WithTimeout(ctx, rebootGrace)
		err := m.Stop(within)
		cancel()
		if err != nil && m.Running() {
			return err
		}
	}
	vm.On = true
	if err := i.saveVM(vm); err != nil {
		return err
	}
	return i.power(ctx, vm)
}

// rebootGrace bounds how long a VM may take to shut down before its power is cut.
const rebootGrace = 30 * time.Second

// SetVMMetadata replaces the metadata of a VM.
func (i *IaaS) SetVMMetadata(cid CID, metadata value.Metadata) error {
	defer i.locks.lock(cid.String())()
	vm, err := i.findVM(cid)
	if err != nil {
		return err
	}
	vm.Metadata = metadata
	return i.saveVM(vm)
}
