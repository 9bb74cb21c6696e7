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
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"cambium/internal/testca"
	"cambium/lab/director"
	"cambium/lab/machine"

	"github.com/google/uuid"
)

// GiB is for disk sizes.
const GiB = int64(1) << 30

// VM specifies a machine to create, as a Director asks its CPI.
type VM struct {
	Name    string // "vm1" and so on if empty
	AgentID string // random if empty
	Source  Source // File if empty
	// Versions of the CPI API. The zero value means those that the source implies.
	Versions Versions
	// PublicKey is the machine's public key in the IaaS's metadata.
	PublicKey string
	// AgentJSON is the content of agent.json. If it is nil, it is derived from the source.
	AgentJSON []byte
	// Settings are delivered unchanged, except for device paths; see FillPaths. If it is nil, the lab writes a
	// document.
	Settings []byte
	// Edit changes the lab's document before it is delivered.
	Edit func(Document)
	// Ephemeral is the size of the ephemeral disk; 0 means none.
	Ephemeral int64
	// Disks has the sizes of further disks, which are called disk-1, disk-2 and so on.
	Disks []int64
	// SCSI names the disks /dev/sdb, /dev/sdc and so on, in the order of their creation.
	SCSI bool
	// Bus is the bus of the disks, if the engine has a choice; machine.Virtio if empty.
	Bus machine.Bus
	// HTTPS makes the agent listen, as for create-env, and not connect to NATS.
	HTTPS bool
	// SSHD makes the machine accept SSH connections, with its own host key.
	SSHD bool
	// Files are written to the root file system.
	Files []machine.File
	// NICs is the number of network cards; 1 if zero. Card n is eth<n>, in a network of its own: 10.88.n.0/24 and
	// fd88:0:0:n::/64. The lab's address ends in 1.
	NICs int
}

// Instance is a machine of the lab with an agent.
type Instance struct {
	machine.Machine
	lab      *Lab
	vm       VM
	Short    string // name in the lab
	AgentID  string
	IP       string
	Agent    *director.Agent
	MbusURL  string
	delivery delivery
	deployed deployed
	removed  atomic.Bool // it is deleted, or is being deleted

	mu       sync.Mutex
	document Document
	disks    map[string]string // images by disk id
	nodes    map[string]string // names behind a SCSI controller, by disk id
}

// Listening reports whether the agent would receive a ping. For HTTPS it returns true, because only a ping can tell.
func (i *Instance) Listening() bool {
	return i.lab.Bus == nil || strings.HasPrefix(i.MbusURL, "https:") || i.lab.Bus.Listens("agent."+i.AgentID)
}

// Last parts of the first and the last address for machines.
const (
	firstHost = 10
	lastHost  = 254
)

// HTTPSPort is the port of agents that listen.
const HTTPSPort = 6868

// Create creates a machine with its disks and settings. The machine is off.
func (l *Lab) Create(ctx context.Context, vm VM) (*Instance, error) {
	if l.o.VM != nil {
		l.o.VM(&vm)
	}
	if vm.AgentID == "" {
		vm.AgentID = uuid.NewString()
	}
	if vm.Source == "" {
		vm.Source = File
	}
	i := &Instance{lab: l, vm: vm, AgentID: vm.AgentID, disks: map[string]string{}, nodes: map[string]string{}}
	if err := l.register(i, vm.Name); err != nil {
		return nil, err
	}
	if err := i.create(ctx); err != nil {
		return nil, errors.Join(err, i.Delete(context.WithoutCancel(ctx)))
	}
	return i, nil
}

// register reserves a name and the lowest free address for a machine.
func (l *Lab) register(i *Instance, name string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.created++
	if name == "" {
		name = fmt.Sprintf("vm%d", l.created)
	}
	if err := ValidName(name); err != nil {
		return err
	}
	if _, exists := l.machines[name]; exists {
		return fmt.Errorf("machine %s: %w", name, os.ErrExist)
	}
	taken := map[string]bool{}
	for _, other := range l.machines {
		taken[other.IP] = true
	}
	i.Short, i.IP = name, freeAddress(taken)
	if i.IP == "" {
		return errors.New("the lab's network has no free address; delete a machine first")
	}
	l.machines[name] = i
	return nil
}

// freeAddress returns the lowest free address, or "".
func freeAddress(taken map[string]bool) string {
	for host := firstHost; host <= lastHost; host++ {
		if ip := fmt.Sprintf("10.88.0.%d", host); !taken[ip] {
			return ip
		}
	}
	return ""
}

func (i *Instance) dir() string  { return filepath.Join(i.lab.dir, i.Short) }
func (i *Instance) name() string { return Prefix + i.lab.o.Name + "." + i.Short }

func (i *Instance) create(ctx context.Context) error {
	if err := os.Mkdir(i.dir(), 0o700); err != nil {
		return err
	}
	spec := machine.Spec{Name: i.name(), Dir: filepath.Join(i.dir(), "machine"), Agent: i.lab.o.Agent,
		Installer: i.lab.installer, Files: i.vm.Files}
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
	if i.vm.SSHD {
		files, err := sshd()
		if err != nil {
			return fmt.Errorf("machine %s: %w", i.Short, err)
		}
		spec.Files = append(spec.Files, files...)
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
	paths, err := i.attachFirst(ctx)
	if err != nil {
		return err
	}
	settings := i.vm.Settings
	if i.document != nil {
		if path := paths[ephemeralDisk]; path != "" {
			i.document.Set("disks.ephemeral", path)
		}
		if i.vm.Edit != nil {
			i.vm.Edit(i.document)
		}
		settings = i.document.JSON()
	} else if settings, err = FillPaths(settings, paths); err != nil {
		return err
	}
	return i.delivery.put(ctx, settings)
}

// ephemeralDisk is the id of the ephemeral disk.
const ephemeralDisk = "ephemeral"

// attachFirst creates and attaches the machine's first disks. It returns their paths by id, for the settings.
func (i *Instance) attachFirst(ctx context.Context) (map[string]string, error) {
	paths := map[string]string{}
	sizes := map[string]int64{}
	order := []string{}
	if i.vm.Ephemeral > 0 {
		order, sizes[ephemeralDisk] = append(order, ephemeralDisk), i.vm.Ephemeral
	}
	for n, size := range i.vm.Disks {
		id := fmt.Sprintf("disk-%d", n+1)
		order, sizes[id] = append(order, id), size
	}
	for _, id := range order {
		a, err := i.AttachNew(ctx, id, sizes[id])
		if err != nil {
			return nil, err
		}
		paths[id] = a.Path
	}
	return paths, nil
}

// MAC returns the hardware address of a network card.
func (i *Instance) MAC(card int) net.HardwareAddr { return machine.MAC(i.name(), card) }

// Change edits the settings and delivers them again, as a CPI does whose agents read them again.
func (i *Instance) Change(ctx context.Context, edit func(Document)) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.document == nil {
		return fmt.Errorf("%s: the settings are not the lab's", i.Short)
	}
	edit(i.document)
	return i.delivery.put(ctx, i.document.JSON())
}

// settings returns the document that a CPI would write for this machine.
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
	if i.lab.o.Bare {
		return nil, fmt.Errorf("machine %s: %w, or let the agent listen with --https", i.Short, errBare)
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

// blobstore returns the settings of the lab's blobstore or, for HTTPS, of the machine's own, as from create-env.
func (i *Instance) blobstore() map[string]any {
	if i.vm.HTTPS || i.lab.o.Bare {
		return map[string]any{"provider": "local",
			"options": map[string]any{"blobstore_path": "/var/vcap/micro_bosh/data/cache"}}
	}
	return i.lab.Blobs.Options(true)
}

func cert(ca []byte, pair testca.Pair) map[string]any {
	return map[string]any{"ca": string(ca), "certificate": string(pair.Certificate),
		"private_key": string(pair.PrivateKey)}
}

// serveHTTPS changes the settings so that the agent listens, as create-env does.
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

// Ready waits until the agent answers, as the Director does after create_vm. A ping before the agent has subscribed
// would be lost and cost time, so Ready first polls the server for the subscription, which costs the machine nothing.
func (i *Instance) Ready(ctx context.Context) error {
	if i.Agent == nil {
		return fmt.Errorf("%s: the settings are not the lab's, so it does not know the agent", i.Short)
	}
	for look := time.NewTicker(listeningInterval); !i.Listening(); {
		select {
		case <-look.C:
		case <-ctx.Done():
			return fmt.Errorf("%s: the agent is not on the bus: %w", i.Short, context.Cause(ctx))
		}
	}
	return i.Agent.WaitReady(ctx)
}

// listeningInterval is the interval at which Ready polls the server.
const listeningInterval = 20 * time.Millisecond

// Output runs a program in the machine and returns what it prints.
func (i *Instance) Output(ctx context.Context, args ...string) (string, error) {
	var out bytes.Buffer
	err := i.Run(ctx, machine.Command{Args: args, Stdout: &out})
	return out.String(), err
}

// Status returns the agent's status document.
func (i *Instance) Status() (json.RawMessage, error) {
	data, err := i.ReadFile(StatusFile)
	return json.RawMessage(data), err
}

// StatusFile is the path of the agent's status document.
const StatusFile = "/run/cambium/status.json"

// Delete removes the machine and its disks.
func (i *Instance) Delete(ctx context.Context) error {
	failed := i.unplug(ctx)
	i.mu.Lock()
	for _, image := range i.disks { // one that was another machine's is not in this one's directory
		if err := os.Remove(image); err != nil && !errors.Is(err, os.ErrNotExist) {
			failed = errors.Join(failed, err)
		}
	}
	i.mu.Unlock()
	return errors.Join(failed, os.RemoveAll(i.dir()))
}

// Removed reports whether the machine was deleted. It is false if the machine has ended by itself.
func (i *Instance) Removed() bool { return i.removed.Load() }

// unplug ends the machine and removes it from the lab, but keeps its files.
func (i *Instance) unplug(ctx context.Context) error {
	i.removed.Store(true)
	var failed error
	if i.Machine != nil {
		failed = i.Machine.Delete(ctx)
	}
	if i.Agent != nil {
		i.Agent.Transport.Close()
	}
	i.lab.Metadata.Delete(i.IP)
	i.lab.Registry.Delete(i.name())
	if i.lab.Bus != nil {
		i.lab.Bus.Forget(i.AgentID)
	}
	failed = errors.Join(failed, i.lab.forgetHost(i.IP))
	i.lab.mu.Lock()
	defer i.lab.mu.Unlock()
	if i.lab.machines[i.Short] == i {
		delete(i.lab.machines, i.Short)
	}
	return failed
}

// Journal returns the agent's log of this boot.
func (i *Instance) Journal(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return i.Output(ctx, "journalctl", "--no-pager", "--output=short-monotonic", "--identifier=bosh-agent")
}

// Source returns the settings source of the machine.
func (i *Instance) Source() Source { return i.vm.Source }
