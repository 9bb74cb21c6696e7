// Package lab is a small IaaS on one Linux host, for tests, for the demo, and for people who develop CPIs, stemcells or
// the agent. It creates machines with the agent, delivers settings to them as a CPI does, runs the message bus and the
// blobstore, and plays Director and Health Monitor. A lab exists only in network namespaces and below one directory,
// which are all named after it, so that labs do not interfere and a crashed one can be removed by name.
//
// The agent does not link it.
package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"cambium/internal/testca"
	"cambium/lab/blobstore"
	"cambium/lab/bus"
	"cambium/lab/director"
	"cambium/lab/machine"
	"cambium/lab/machine/nspawn"
	"cambium/lab/metadata"
	"cambium/lab/netns"
	"cambium/lab/registry"
	"cambium/lab/tree"
	assets "cambium/stemcell-assets"
)

// Prefix is the prefix of all names that a lab uses outside its directory.
const Prefix = "cambium-"

// The lab's network. All labs use the same one, since each has its own namespace.
const (
	bridge   = "lab0"
	Gateway  = "10.88.0.1"
	Gateway6 = "fd88::1"
	Netmask  = "255.255.255.0"
	busPort  = 4222
)

// DefaultDir returns the directory for labs: the value of CAMBIUM_LAB_DIR or, if it is not set, /var/lib/cambium-lab.
func DefaultDir() string {
	if dir := os.Getenv("CAMBIUM_LAB_DIR"); dir != "" {
		return dir
	}
	return "/var/lib/cambium-lab"
}

// Options configures a lab.
type Options struct {
	Name  string // lower case letters, digits and dashes
	Dir   string // parent of the lab's directory; DefaultDir if empty
	Agent string // path of the agent's binary
	// Engine creates the machines. If it is nil, nspawn with a cached Debian tree is used.
	Engine machine.Engine
	// VM, if set, changes the specification of each machine, even those of a deployment.
	VM func(*VM)
	// BusHost is the address of the bus: Gateway, the default, or Gateway6.
	BusHost string
	// NATSServer is the path of a nats-server program that replaces the built-in server.
	NATSServer string
	// Bare omits NATS and the blobstore: agents listen on HTTPS, or their settings come from elsewhere.
	Bare bool
	// BlobSecret signs URLs of the blobstore, for callers that sign their own; random if empty.
	BlobSecret string
	// Poll is the pause between two polls of a task; one second if zero, as in a Director.
	Poll time.Duration
	// Progress is called at the start of long operations; may be nil.
	Progress func(format string, args ...any)
}

// Lab is a running lab.
type Lab struct {
	o   Options
	dir string

	Net      netns.Namespace
	CA       *testca.CA
	Bus      *bus.Server
	Director *director.Bus
	Monitor  *director.Monitor
	Blobs    *blobstore.Server
	Metadata *metadata.Server
	Registry *registry.Server

	engine    machine.Engine
	installer string

	servers []*http.Server
	names   net.PacketConn // the name server
	lock    *os.File

	mu       sync.Mutex
	networks int // in addition to the first
	machines map[string]*Instance
	kept     map[string]string // images of the disks of deleted machines, by id
	created  int
	dnsmasq  *exec.Cmd
}

var nameForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,22}[a-z0-9])?$`)

// ValidName returns an error for an invalid name of a lab.
func ValidName(name string) error {
	if !nameForm.MatchString(name) {
		return fmt.Errorf("lab name %q: want at most 24 lower case letters, digits and dashes", name)
	}
	return nil
}

// New starts a lab without machines. The caller must close it.
func New(ctx context.Context, o Options) (*Lab, error) {
	if err := ValidName(o.Name); err != nil {
		return nil, err
	}
	if o.Dir == "" {
		o.Dir = DefaultDir()
	}
	if o.Progress == nil {
		o.Progress = func(string, ...any) {}
	}
	if o.BusHost == "" {
		o.BusHost = Gateway
	}
	l := &Lab{o: o, dir: filepath.Join(o.Dir, o.Name), engine: o.Engine, machines: map[string]*Instance{},
		kept: map[string]string{}}
	if l.engine == nil {
		engine, err := defaultEngine(ctx, o)
		if err != nil {
			return nil, err
		}
		l.engine = engine
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, err
	}
	var err error
	if l.lock, err = lock(o.Name, l.dir); err != nil {
		return nil, err
	}
	if err := os.Mkdir(l.dir, 0o700); err != nil {
		_ = l.lock.Close()
		_ = os.Remove(lockPath(o.Name))
		if errors.Is(err, os.ErrExist) {
			return nil, fmt.Errorf("lab %s is left over from a crash; remove it with: lab clean %s", o.Name, o.Name)
		}
		return nil, err
	}
	if err := l.start(ctx); err != nil {
		return nil, errors.Join(err, l.Close(context.WithoutCancel(ctx)))
	}
	return l, nil
}

func defaultEngine(ctx context.Context, o Options) (machine.Engine, error) {
	if err := (nspawn.Engine{}).CheckHost(); err != nil {
		return nil, err
	}
	cache := tree.Cache{Dir: tree.DefaultDir()}
	if !cache.Built() {
		o.Progress("building the Debian tree in %s (once, about a minute)", cache.Dir)
	}
	path, err := cache.Ensure(ctx)
	if err != nil {
		return nil, err
	}
	return nspawn.Engine{Tree: path}, nil
}

func (l *Lab) start(ctx context.Context) (err error) {
	if l.installer, err = assets.Unpack(filepath.Join(l.dir, "assets")); err != nil {
		return err
	}
	if l.Net, err = netns.Create(Prefix + l.o.Name); err != nil {
		return err
	}
	if err = l.Net.Bridge(bridge, Gateway+"/24", Gateway6+"/64"); err != nil {
		return err
	}
	if l.CA, err = testca.New("lab." + l.o.Name + ".ca"); err != nil {
		return err
	}
	if !l.o.Bare {
		if err := l.startBus(ctx); err != nil {
			return err
		}
	}
	return l.serve()
}

// errBare means that an operation needs services that a bare lab lacks.
var errBare = errors.New("the lab has neither NATS nor a blobstore; start it without --bare")

// startBus starts NATS, and connects the Director and the Health Monitor.
func (l *Lab) startBus(ctx context.Context) (err error) {
	l.Bus, err = bus.Start(ctx, bus.Options{Dir: filepath.Join(l.dir, "bus"), Net: l.Net, Host: l.o.BusHost, Port: busPort,
		CA: l.CA, Program: l.o.NATSServer})
	if err != nil {
		return err
	}
	conn, err := l.Bus.Connect(testca.DirectorName)
	if err != nil {
		return fmt.Errorf("director's connection: %w", err)
	}
	if l.Director, err = director.NewBus(conn); err != nil {
		return err
	}
	if conn, err = l.Bus.Connect(testca.HealthMonitorName); err != nil {
		return fmt.Errorf("health monitor's connection: %w", err)
	}
	l.Monitor, err = director.NewMonitor(conn)
	return err
}

// network returns the bridge of a network, and creates it if necessary.
func (l *Lab) network(n int) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.networks < n {
		more := l.networks + 1
		if err := l.Net.Bridge(fmt.Sprintf("lab%d", more), fmt.Sprintf("10.88.%d.1/24", more),
			fmt.Sprintf("fd88:0:0:%x::1/64", more)); err != nil {
			return "", err
		}
		l.networks = more
	}
	return fmt.Sprintf("lab%d", n), nil
}

// Name returns the name of the lab.
func (l *Lab) Name() string { return l.o.Name }

// Machines returns the machines by name.
func (l *Lab) Machines() map[string]*Instance {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make(map[string]*Instance, len(l.machines))
	for name, i := range l.machines {
		all[name] = i
	}
	return all
}

// closeTimeout bounds the time to end one machine, so that a stuck one does not delay the rest.
const closeTimeout = 20 * time.Second

// Close removes the machines with their disks, the services and the namespaces.
func (l *Lab) Close(ctx context.Context) error {
	var failed error
	for _, i := range l.Machines() {
		within, cancel := context.WithTimeout(ctx, closeTimeout)
		failed = errors.Join(failed, i.Delete(within))
		cancel()
	}
	if l.Director != nil {
		l.Director.Close()
	}
	if l.Monitor != nil {
		l.Monitor.Close()
	}
	if l.Bus != nil {
		l.Bus.Stop()
	}
	l.stopServices()
	// Also what the fields above do not know, such as after a failure half way.
	failed = errors.Join(failed, Clean(l.o.Dir, l.o.Name))
	return errors.Join(failed, l.lock.Close())
}
