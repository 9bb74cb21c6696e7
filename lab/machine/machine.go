// Package machine is the interface of all engines: an engine creates a machine from a
// specification, and from then on it can be switched on and off, killed and inspected, and disks
// can be attached and detached while it runs. Engines live in subpackages.
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

// ErrNotRunning is returned by what needs a running machine.
var ErrNotRunning = errors.New("machine is not running")

// Spec is a machine to be made.
type Spec struct {
	Name string // unique on this host; also a valid file name
	Dir  string // the machine's own directory, which Create makes, or continues with, and Delete removes
	// Agent is the binary that is baked in, by the installer of the stemcell assets.
	Agent     string
	Installer string
	// AgentJSON is the stemcell's configuration of the agent, as it is.
	AgentJSON []byte
	// Files are put into the root file system before the first boot.
	Files []File
	NICs  []NIC
}

// File is a file of the machine's root file system.
type File struct {
	Path string
	Data []byte
	Mode fs.FileMode
}

// NIC is a network card, plugged into a bridge.
type NIC struct {
	Name   string // as the machine sees it
	MAC    net.HardwareAddr
	Net    netns.Namespace // where the bridge is
	Bridge string
}

// Disk is an image to be attached.
type Disk struct {
	ID       string // how the IaaS calls it; the disk CID for persistent disks
	Image    string
	ReadOnly bool
	// Bus is the bus that the disk is attached to, where the engine has a choice; Virtio if empty.
	Bus Bus
	// Node is the name that the machine's kernel would give the disk, such as "sdb"; the engine
	// chooses if empty.
	Node string
	// Names are further names below /dev, such as "sr0" or "disk/by-label/config-2", that
	// udev would give this disk.
	Names []string
}

// Bus is a kind of disk controller, and hence of names that a disk has in the machine.
type Bus string

// The buses. A container knows none of them.
const (
	Virtio Bus = "virtio" // virtio-blk, serial number from the ID's first 20 characters
	SCSI   Bus = "scsi"   // a disk on a virtio SCSI controller
	NVMe   Bus = "nvme"   // a controller with one namespace
	CDROM  Bus = "cdrom"  // the medium in the machine's CD drive
)

// Attachment is a disk as the machine sees it.
type Attachment struct {
	Disk Disk
	// Path is the hint that a CPI returns for the disk.
	Path string
}

// Command is a program to be run in the machine, as root.
type Command struct {
	Args           []string
	Env            []string // in addition to a small default environment
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// Machine is one machine. Its methods may be called from several goroutines.
type Machine interface {
	Name() string
	Running() bool
	// Start switches it on; it returns as soon as the machine's init runs.
	Start(ctx context.Context) error
	// Stop shuts it down in an orderly way, and switches it off if that takes longer than ctx.
	Stop(ctx context.Context) error
	// Reboot shuts it down in an orderly way and starts it again; one that is off is started.
	Reboot(ctx context.Context) error
	// Kill is a power cut.
	Kill(ctx context.Context) error
	// Boots returns how often it has been started, and since when it has been running.
	Boots() (int, time.Time)
	// Done is closed when the machine has ended, by itself or not, and is not coming back.
	// A reboot does not close it.
	Done() <-chan struct{}
	// PoweredOff reports whether the last end was a power-off from inside, not a crash.
	PoweredOff() bool

	// Run runs a program in it and waits; a status other than 0 is an error.
	Run(ctx context.Context, c Command) error
	// Shell is the command line, to be run on the host, of an interactive root shell in it.
	Shell(args ...string) ([]string, error)
	// ReadFile and WriteFile reach into its root file system, also while it is switched off.
	ReadFile(path string) ([]byte, error)
	WriteFile(f File) error
	// Console is the file that everything written to the console ends up in.
	Console() string

	Attach(ctx context.Context, d Disk) (Attachment, error)
	Detach(ctx context.Context, id string) error
	Resize(ctx context.Context, id string, size int64) error
	Disks() []Attachment

	// Close switches it off and detaches its disks. Its files stay: Create with the same
	// specification continues with them.
	Close(ctx context.Context) error
	// Delete is Close, and removes all of it but the images of its disks.
	Delete(ctx context.Context) error
}

// Engine makes machines.
type Engine interface {
	// Create makes a machine that is switched off.
	Create(ctx context.Context, s Spec) (Machine, error)
	// Missing says what this host lacks for the engine, nil if nothing.
	Missing() error
}

// Port is the name of the link that connects a network card to its bridge.
func Port(mac net.HardwareAddr) string { return fmt.Sprintf("v-%x", []byte(mac)) }

// MAC derives a locally administered address from a machine's name, so that several machines
// on one bridge differ and a machine keeps its own.
func MAC(name string, nic int) net.HardwareAddr {
	h := uint32(2166136261) // FNV-1a
	for _, c := range []byte(fmt.Sprintf("%s/%d", name, nic)) {
		h = (h ^ uint32(c)) * 16777619
	}
	return net.HardwareAddr{0x02, 0xca, byte(h >> 24), byte(h >> 16), byte(h >> 8), byte(h)}
}
