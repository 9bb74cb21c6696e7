package bootstrap

import (
	"context"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/internal/status"
	"cambium/internal/vcap"
	"cambium/jobs/monit"
	"cambium/platform"
	"cambium/platform/firewall"
	"cambium/platform/host"
	"cambium/platform/network"
	"cambium/platform/resolver"
	"cambium/platform/tree"
	"cambium/platform/user"
	"cambium/settings"
	"cambium/settings/agentjson"
	"cambium/settings/store"
	"cambium/storage"
)

// Settings loads the settings, and returns those in force.
type Settings interface {
	Load(context.Context) (store.Loaded, error)
	Effective() settings.Effective
	HostsConfigured() bool
	SetHostsConfigured() error
}

// EphemeralDisks prepares the disks that exist as long as the VM. Its methods only plan if acting is false.
type EphemeralDisks interface {
	SetupRaw(ctx context.Context, hints []settings.DiskHint, acting bool) ([]storage.Change, error)
	Setup(ctx context.Context, hint *settings.DiskHint, swapMiB *uint64, agentID string,
		acting bool) ([]storage.Change, error)
	GrowRoot(ctx context.Context, ephemeral *settings.DiskHint, acting bool) ([]storage.Change, error)
}

// PersistentDisks mounts the disks that the Director has attached.
type PersistentDisks interface {
	// MountStore mounts the store, or only plans that if acting is false.
	MountStore(ctx context.Context, acting bool) (changes []storage.Change, warning string, err error)
	// CurrentWork returns the disk whose file system is being checked or mounted, what is done in a sentence, and since
	// when. cid is "" if there is none.
	CurrentWork() (cid, what string, since time.Time)
	// PlanMount returns what mount_disk would do with the disks that MountStore does not mount.
	PlanMount(ctx context.Context) ([]storage.Change, error)
	// CheckKnown returns an error for associations of unknown disks, and for disks that nothing accounts for.
	CheckKnown(associations []settings.DiskAssociation) error
	// Associate renews the names of associated disks, or only plans that if acting is false.
	Associate(ctx context.Context, associations []settings.DiskAssociation, acting bool) ([]storage.Change, error)
}

// Supervisor is the daemon that runs the jobs' processes.
type Supervisor interface {
	Plan(ctx context.Context) ([]monit.Change, error)
	Start(ctx context.Context) ([]monit.Change, error)
}

// Machine has the parts of the machine on which the boot steps work. A missing part is nil.
type Machine struct {
	Dirs   vcap.Dirs
	Linux  agentjson.Linux
	Log    *logrus.Entry
	Status *status.Recorder // nil for a plan

	Settings Settings
	// OnMedia means that a settings source is a CD or a config drive, which may be attached later.
	OnMedia bool
	// MetadataServers has the metadata services that agent.json names by address.
	MetadataServers []netip.AddrPort
	PublicKey       func(context.Context) (string, error)
	Network         *network.Kernel
	Resolver        platform.Kernel[resolver.State, resolver.Desired, resolver.Change]
	Host            *host.Host
	Tree            *tree.Kernel
	Users           platform.Kernel[user.State, user.Desired, user.Change]
	Firewall        *firewall.Firewall
	Ephemeral       EphemeralDisks
	Persistent      PersistentDisks
	// Requests receives operators' requests to retry at once; nil if none can come.
	Requests <-chan os.Signal
	// JobNames returns the names of the applied jobs.
	JobNames   func() ([]string, error)
	Supervisor Supervisor
	// WithheldChanged, if set, is called with the reason why no job may start, and with "" when jobs may start again.
	WithheldChanged func(reason string)
	// Duplicates, if set, is called with the addresses that another machine uses, too, and with "" when there are none
	// any more.
	Duplicates func(text string)
	// StartBus starts the bus client unless it is running, and does not wait for a connection.
	StartBus func(ctx context.Context, e settings.Effective) error
	// First reports whether this agent was never ready on this machine.
	First func() bool
	// Deferred collects work that can wait until the verdict was announced.
	Deferred *Deferred

	supervising sync.Mutex // held while the supervisor is started
	closing     sync.Mutex // held while metadata services are closed

	mu       sync.Mutex // guards the fields below
	withheld string     // reason why no job may start
	resolved map[string]settings.Network
	asked    []netip.AddrPort // metadata services and registries that the agent connects to
}

// Networks returns the networks of the settings, with the addresses of leases.
func (m *Machine) Networks() map[string]settings.Network {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.resolved == nil {
		return m.Settings.Effective().Settings.Networks
	}
	return m.resolved
}
