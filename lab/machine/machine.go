// Package machine defines the interface of all engines. An engine creates a machine from a specification. The machine
// can then be switched on and off, killed and inspected, and disks can be attached and detached while it runs. Engines
// are in subpackages.
package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"time"

	"cambium/lab/netns"
)

// ErrNotRunning means that the machine is off.
var ErrNotRunning = errors.New("machine is not running")

// Spec specifies a machine.
type Spec struct {
	Name string // unique on this host; also a valid file name
	Dir  string // the machine's directory, which Create creates or reuses, and Delete removes
	// Agent is the path of the agent's binary, which the stemcell assets' installer installs.
	Agent     string
	Installer string
	// AgentJSON is the content of agent.json.
	AgentJSON []byte
	// Files are written to the root file system before the first boot.
	Files []File
	NICs  []NIC
}

// File is a file in the machine's root file system.
type File struct {
	Path string
	Data []byte
	Mode fs.FileMode
}

// NIC is a network card, connected to a bridge.
type NIC struct {
	Name   string // in the machine
	MAC    net.HardwareAddr
	Net    netns.Namespace // the namespace of the bridge
	Bridge string
}

// Disk specifies a disk to attach.
type Disk struct {
	ID       string // the IaaS's name; the CID of a persistent disk
	Image    string
	ReadOnly bool
	// Bus is the bus of the disk, if the engine has a choice; Virtio if empty.
	Bus Bus
	// Node is the machine's kernel name of the disk, such as "sdb". If it is empty, the engine chooses.
	Node string
	// Names has further names below /dev that udev would create, such as "sr0" or "disk/by-label/config-2".
	Names []string
}

// Bus is the kind of a disk controller, which determines the names of the disk in the machine.
type Bus string

// The buses. Containers ignore them.
const (
	Virtio Bus = "virtio" // virtio-blk, serial number from the ID's first 20 characters
	SCSI   Bus = "scsi"   // a disk on a virtio SCSI controller
	NVMe   Bus = "nvme"   // a controller with one namespace
	CDROM  Bus = "cdrom"  // the medium in the machine's CD drive
)

// Attachment describes an attached disk in the machine.
type Attachment struct {
	Disk Disk
	// Path is the hint that a CPI returns for the disk.
	Path string
}

// Command is a program to run in the machine as root.
type Command struct {
	Args           []string
	Env            []string // in addition to a small default environment
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// Machine is a machine. Its methods may be called from several goroutines.
type Machine interface {
	Name() string
	Running() bool
	// Start switches the machine on. It returns when its init runs.
	Start(ctx context.Context) error
	// Stop shuts the machine down, and switches it off if ctx ends first.
	Stop(ctx context.Context) error
	// Reboot shuts the machine down and starts it. If it is off, it is started.
	Reboot(ctx context.Context) error
	// Kill cuts the power.
	Kill(ctx context.Context) error
	// Boots returns the number of starts, and the time of the last one.
	Boots() (int, time.Time)
	// Done returns a channel that is closed when the machine has ended for whatever reason and is not restarted. A
	// reboot does not close it.
	Done() <-chan struct{}
	// PoweredOff reports whether the machine has powered itself off, and has not crashed.
	PoweredOff() bool

	// Run runs a program and waits for it. A status other than 0 is an error.
	Run(ctx context.Context, c Command) error
	// Shell returns the command line, for the host, of an interactive root shell in the machine.
	Shell(args ...string) ([]string, error)
	// ReadFile and WriteFile access the root file system, even while the machine is off.
	ReadFile(path string) ([]byte, error)
	WriteFile(f File) error
	// Console returns the path of the file with the console's output.
	Console() string

	Attach(ctx context.Context, d Disk) (Attachment, error)
	Detach(ctx context.Context, id string) error
	Resize(ctx context.Context, id string, size int64) error
	Disks() []Attachment

	// Close switches the machine off and detaches its disks. Its files are kept: Create with the same specification
	// reuses them.
	Close(ctx context.Context) error
	// Delete closes the machine and removes its files, except for the images of its disks.
	Delete(ctx context.Context) error
}

// Engine creates machines.
type Engine interface {
	// Create creates a machine that is off.
	Create(ctx context.Context, s Spec) (Machine, error)
	// CheckHost returns an error for what this host lacks, or nil.
	CheckHost() error
}

// Port returns the name of the link that connects a network card to its bridge.
func Port(mac net.HardwareAddr) string { return fmt.Sprintf("v-%x", []byte(mac)) }

// MAC returns a locally administered address derived from the machine's name, so that a machine keeps its address and
// the machines on a bridge have different ones.
func MAC(name string, nic int) net.HardwareAddr {
	h := uint32(2166136261) // FNV-1a
	for _, c := range []byte(fmt.Sprintf("%s/%d", name, nic)) {
		h = (h ^ uint32(c)) * 16777619
	}
	return net.HardwareAddr{0x02, 0xca, byte(h >> 24), byte(h >> 16), byte(h >> 8), byte(h)}
}
