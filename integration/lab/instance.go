package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"cambium/integration/lab/director"
	"cambium/integration/lab/disk"
	"cambium/integration/lab/machine"
	"cambium/internal/testca"

	"github.com/google/uuid"
)

// GiB is for disk sizes.
const GiB = int64(1) << 30

// VM is a machine to be created, as a Director asks its CPI for one.
type VM struct {
	Name    string // "vm1" and so on if empty
	AgentID string // random if empty
	Source  Source // how settings reach it; File if empty
	// Versions of the CPI API; what the source implies if zero.
	Versions Versions
	// PublicKey is the machine's key pair's, as the IaaS hands it out.
	PublicKey string
	// AgentJSON is the stemcell's; what the source needs if nil.
	AgentJSON []byte
	// Settings are delivered as they are; the lab's own document if nil.
	Settings []byte
	// Edit changes the lab's own document before it is delivered.
	Edit func(Document)
	// Ephemeral is the size of the ephemeral disk; none if 0.
	Ephemeral int64
	// SCSI calls the disks /dev/sdb, /dev/sdc and so on, in the order of their making.
	SCSI bool
	// HTTPS makes the agent listen instead of connecting to NATS, as create-env wants it.
	HTTPS bool
	// Files are put into the root file system.
	Files []machine.File
	// NICs is the number of network cards, 1 if zero. Card n is eth<n>, on a network of its own:
	// 10.88.n.0/24 and fd88:0:0:n::/64, where the lab has the address that ends in 1.
	NICs int
}

// Instance is a machine of the lab with an agent in it.
type Instance struct {
	machine.Machine
	lab      *Lab
	vm       VM
	Short    string // name within the lab
	AgentID  string
	IP       string
	Agent    *director.Agent
	MbusURL  string
	delivery delivery
	deployed deployed

	mu       sync.Mutex
	document Document
	disks    map[string]string // images by id
	nodes    map[string]string // their names behind a SCSI controller
}

// Listening reports whether anybody would hear a ping to the agent.
func (i *Instance) Listening() bool {
	return i.lab.Bus == nil || i.lab.Bus.Listens("agent."+i.AgentID)
}

// firstHost is the last part of the first machine's address.
const firstHost = 10

// HTTPSPort is where agents listen in HTTPS mode.
const HTTPSPort = 6868

// Create makes a machine, with its disks and its settings; it is switched off.
func (l *Lab) Create(ctx context.Context, vm VM) (*Instance, error) {
	l.mu.Lock()
	l.created++
	number := l.created
	l.mu.Unlock()
	if l.o.VM != nil {
		l.o.VM(&vm)
	}
	if vm.Name == "" {
		vm.Name = fmt.Sprintf("vm%d", number)
	}
	if err := ValidName(vm.Name); err != nil {
		return nil, err
	}
	if vm.AgentID == "" {
		vm.AgentID = uuid.NewString()
	}
	if vm.Source == "" {
		vm.Source = File
	}
	i := &Instance{lab: l, vm: vm, Short: vm.Name, AgentID: vm.AgentID, disks: map[string]string{}, nodes: map[string]string{},
		IP: fmt.Sprintf("10.88.0.%d", firstHost+number-1)}
	l.mu.Lock()
	_, exists := l.machines[vm.Name]
	if !exists {
		l.machines[vm.Name] = i
	}
	l.mu.Unlock()
	if exists {
		return nil, fmt.Errorf("machine %s: %w", vm.Name, os.ErrExist)
	}
	if err := i.create(ctx); err != nil {
		return nil, errors.Join(err, i.Delete(context.WithoutCancel(ctx)))
	}
	return i, nil
}

func (i *Instance) dir() string  { return filepath.Join(i.lab.dir, i.Short) }
func (i *Instance) name() string { return Prefix + i.lab.o.Name + "." + i.Short }

func (i *Instance) create(ctx context.Context) error {
	if err := os.Mkdir(i.dir(), 0o700); err != nil {
		return err
	}
	spec := machine.Spec{Name: i.name(), Dir: filepath.Join(i.dir(), "machine"), Agent: i.lab.o.Agent, Installer: i.lab.installer, Files: i.vm.Files}
	for n := range max(i.vm.NICs, 1) {
		name, err := i.lab.network(n)
		if err != nil {
			return err
		}
		spec.NICs = append(spec.NICs, machine.NIC{Name: fmt.Sprintf("eth%d", n), MAC: i.MAC(n), Net: i.lab.Net, Bridge: name})
	}
	var err error
	if i.delivery, err = i.deliver(); err != nil {
		return err
	}
	if spec.AgentJSON = i.vm.AgentJSON; spec.AgentJSON == nil {
		spec.AgentJSON = i.delivery.agentJSON()
	}
	if i.vm.Source == GuestInfo {
		spec.Files = append(spec.Files, machine.File{Path: guestInfo + "/guestinfo.userdata.encoding", Mode: 0o600})
	}
	if i.delivery.network {
		if err := i.lab.dhcp(spec.NICs[0].MAC, i.IP); err != nil {
			return err
		}
	}
	if i.vm.Settings == nil {
		if i.document, err = i.settings(spec); err != nil {
			return err
		}
	}
	if i.Machine, err = i.lab.engine.Create(ctx, spec); err != nil {
		return err
	}
	// Disks come before the settings, which name them.
	if i.vm.Ephemeral > 0 {
		a, err := i.AttachNew(ctx, "ephemeral", i.vm.Ephemeral)
		if err != nil {
			return err
		}
		if i.document != nil {
			i.document.Set("disks.ephemeral", a.Path)
		}
	}
	settings := i.vm.Settings
	if i.document != nil {
		if i.vm.Edit != nil {
			i.vm.Edit(i.document)
		}
		settings = i.document.JSON()
	}
	return i.delivery.put(ctx, settings)
}

// MAC is the hardware address of a network card.
func (i *Instance) MAC(card int) net.HardwareAddr { return machine.MAC(i.name(), card) }

// CardMAC is the hardware address that a machine's card will have, for settings that name it.
func CardMAC(lab, name string, card int) net.HardwareAddr {
	return machine.MAC(Prefix+lab+"."+name, card)
}

// Change edits the settings and delivers them again, as a CPI does whose agents read them anew.
func (i *Instance) Change(ctx context.Context, edit func(Document)) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.document == nil {
		return fmt.Errorf("%s: the settings came from outside", i.Short)
	}
	edit(i.document)
	return i.delivery.put(ctx, i.document.JSON())
}

// AttachDisk is the CPI's attach_disk for a disk that was made before. It tells the agent
// through the settings where the CPI does so, and returns the hint where the Director wants it.
func (i *Instance) AttachDisk(ctx context.Context, cid string) (any, error) {
	i.mu.Lock()
	image, exists := i.disks[cid]
	i.mu.Unlock()
	if !exists {
		return nil, fmt.Errorf("disk %s: %w", cid, os.ErrNotExist)
	}
	a, err := i.Attach(ctx, i.disk(cid, image))
	if err != nil {
		return nil, err
	}
	if i.delivery.again && i.vm.Settings == nil {
		err = i.Change(ctx, func(d Document) { d.Set("disks.persistent", i.persistent(d, cid, a.Path)) })
	}
	if !i.versions().Hint() {
		return nil, err
	}
	return a.Path, err
}

// DetachDisk is the CPI's detach_disk.
func (i *Instance) DetachDisk(ctx context.Context, cid string) error {
	err := i.Detach(ctx, cid)
	if err == nil && i.delivery.again && i.vm.Settings == nil {
		err = i.Change(ctx, func(d Document) { d.Set("disks.persistent", i.persistent(d, cid, "")) })
	}
	return err
}

// persistent returns the document's persistent disks with one added or, without path, removed.
func (i *Instance) persistent(d Document, cid, path string) map[string]any {
	changed := map[string]any{}
	if disks, ok := d["disks"].(map[string]any); ok {
		if old, ok := disks["persistent"].(map[string]any); ok {
			for key, value := range old {
				changed[key] = value
			}
		}
	}
	if delete(changed, cid); path != "" {
		changed[cid] = path
	}
	return changed
}

// settings is the document that a CPI would compose for this machine.
func (i *Instance) settings(spec machine.Spec) (Document, error) {
	d := Document{
		"agent_id":  i.AgentID,
		"vm":        map[string]any{"name": spec.Name},
		"ntp":       []string{},
		"blobstore": i.blobstore(),
		"networks": map[string]any{"default": map[string]any{
			"type": "manual", "ip": i.IP, "netmask": Netmask, "gateway": Gateway, "dns": []string{Gateway},
			"default": []string{"dns", "gateway"}, "mac": spec.NICs[0].MAC.String(), "cloud_properties": map[string]any{}}},
		"disks": map[string]any{"system": "/dev/sda", "ephemeral": nil, "persistent": map[string]any{}},
		"env":   map[string]any{"bosh": map[string]any{"swap_size": 0, "group": "lab"}},
	}
	if i.vm.HTTPS {
		return d, i.serveHTTPS(d)
	}
	i.MbusURL = i.lab.Bus.URL()
	pair, err := i.lab.Bus.Admit(testca.BootstrapName(i.AgentID))
	if err != nil {
		return nil, err
	}
	i.Agent = i.lab.Director.Agent(i.AgentID)
	i.Agent.Poll = i.lab.o.Poll
	d["mbus"] = i.MbusURL
	return d.Set("env.bosh.mbus", map[string]any{"urls": []string{i.MbusURL}, "cert": cert(i.lab.CA.PEM, pair)}), nil
}

// blobstore is the lab's own, or for create-env the machine's.
func (i *Instance) blobstore() map[string]any {
	if i.vm.HTTPS {
		return map[string]any{"provider": "local", "options": map[string]any{"blobstore_path": "/var/vcap/micro_bosh/data/cache"}}
	}
	return i.lab.Blobs.Options(true)
}

func cert(ca []byte, pair testca.Pair) map[string]any {
	return map[string]any{"ca": string(ca), "certificate": string(pair.Certificate), "private_key": string(pair.PrivateKey)}
}

// serveHTTPS lets the agent listen, as create-env does.
func (i *Instance) serveHTTPS(d Document) error {
	password := uuid.NewString()
	d["mbus"] = fmt.Sprintf("https://mbus:%s@0.0.0.0:%d", password, HTTPSPort)
	i.MbusURL = fmt.Sprintf("https://mbus:%s@%s:%d", password, i.IP, HTTPSPort)
	pair, err := i.lab.CA.Issue(testca.Request{CommonName: i.IP, Hosts: []string{i.IP, "127.0.0.1"}})
	if err != nil {
		return err
	}
	d.Set("env.bosh.mbus.cert", cert(i.lab.CA.PEM, pair))
	client, err := director.NewHTTPS(director.HTTPSOptions{URL: i.MbusURL, CA: i.lab.CA.PEM, Dial: i.lab.Net.DialContext})
	if err != nil {
		return err
	}
	i.Agent = client.Agent()
	i.Agent.Poll = i.lab.o.Poll
	return nil
}

// image makes a blank image and remembers it.
func (i *Instance) image(id string, size int64) (string, error) {
	if err := ValidDiskID(id); err != nil {
		return "", err
	}
	path := filepath.Join(i.dir(), "disk-"+id+".img")
	if err := disk.Create(path, size); err != nil {
		return "", err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.disks[id] = path
	i.nodes[id] = "sd" + string(rune('a'+len(i.disks)))
	return path, nil
}

var diskForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

// ValidDiskID says why a disk cannot have that id, nil if it can.
func ValidDiskID(id string) error {
	if !diskForm.MatchString(id) {
		return fmt.Errorf("disk id %q: want at most 64 letters, digits, dots, dashes and underscores", id)
	}
	return nil
}

// NewDisk is the CPI's create_disk: a blank disk that is not attached.
func (i *Instance) NewDisk(cid string, size int64) error {
	_, err := i.image(cid, size)
	return err
}

// AttachNew makes a blank disk and attaches it. The attachment's path is the hint that a CPI
// would return.
func (i *Instance) AttachNew(ctx context.Context, id string, size int64) (machine.Attachment, error) {
	i.mu.Lock()
	image, exists := i.disks[id]
	i.mu.Unlock()
	if !exists {
		var err error
		if image, err = i.image(id, size); err != nil {
			return machine.Attachment{}, err
		}
	}
	return i.Attach(ctx, i.disk(id, image))
}

// disk is what the engine is told of a disk.
func (i *Instance) disk(id, image string) machine.Disk {
	d := machine.Disk{ID: id, Image: image}
	if i.vm.SCSI {
		i.mu.Lock()
		defer i.mu.Unlock()
		d.Node = i.nodes[id]
	}
	return d
}

// Ready waits until the agent answers, as the Director does after create_vm but asking more
// often: until the agent is on the bus nobody hears a ping.
func (i *Instance) Ready(ctx context.Context) error {
	if i.Agent == nil {
		return fmt.Errorf("%s: the settings came from outside, so the lab does not know its agent", i.Short)
	}
	eager := *i.Agent
	eager.Ping = 100 * time.Millisecond
	return eager.WaitReady(ctx)
}

// Output runs a program in the machine and returns what it prints.
func (i *Instance) Output(ctx context.Context, args ...string) (string, error) {
	var out bytes.Buffer
	err := i.Run(ctx, machine.Command{Args: args, Stdout: &out})
	return out.String(), err
}

// Status is the agent's own account of its boot.
func (i *Instance) Status() (json.RawMessage, error) {
	data, err := i.ReadFile(StatusFile)
	return json.RawMessage(data), err
}

// StatusFile is where the agent keeps the account of its boot.
const StatusFile = "/run/cambium/status.json"

// Delete removes the machine and its disks.
func (i *Instance) Delete(ctx context.Context) error {
	var failed error
	if i.Machine != nil {
		failed = i.Machine.Delete(ctx)
	}
	if i.Agent != nil {
		i.Agent.Transport.Close()
	}
	i.lab.Metadata.Delete(i.IP)
	i.lab.Registry.Delete(i.name())
	i.lab.mu.Lock()
	if i.lab.machines[i.Short] == i {
		delete(i.lab.machines, i.Short)
	}
	i.lab.mu.Unlock()
	return errors.Join(failed, os.RemoveAll(i.dir()))
}

// Journal returns what the agent has logged in this boot.
func (i *Instance) Journal(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return i.Output(ctx, "journalctl", "--no-pager", "--output=short-monotonic", "--identifier=bosh-agent")
}

// Source is how settings reach the machine.
func (i *Instance) Source() Source { return i.vm.Source }

// HasDisk reports whether a disk was made, attached or not.
func (i *Instance) HasDisk(id string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	_, ok := i.disks[id]
	return ok
}

// ImageSize is the size of a disk's image, 0 if it cannot be told.
func ImageSize(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}
