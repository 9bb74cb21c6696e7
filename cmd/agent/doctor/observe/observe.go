// Package observe collects everything that decides whether a Director sees this machine: the agent's
// status, settings and certificates, the way to each bus server, the clock, links and gateways,
// disks, units and the supervisor. It works without a running agent, before the network is up and
// with damaged files, and changes nothing. What was observed holds no secret. Package doctor decides
// what it means; agent support and agent metrics print it.
package observe

import (
	"context"
	"os"
	"sync"
	"time"

	"cambium/agent/task"
	"cambium/internal/status"
	"cambium/internal/vcap"
	"cambium/platform/network"
	"cambium/platform/unit"
	"cambium/settings"
	"cambium/settings/agentjson"
)

// Options say where to look.
type Options struct {
	Dirs   vcap.Dirs
	Config string // path of agent.json
	Status string // path of the status file
	// Drift says what a boot would change in network, DNS, accounts, directories and host, with the settings in force;
	// nil if that is not to be looked at.
	Drift func(ctx context.Context, agentJSON string, dirs vcap.Dirs) ([]string, error)
	// Timeout bounds each observation that waits for another machine.
	Timeout time.Duration
}

// Facts collects all observations. Fields named Err give the reason why something could not be observed. Without
// Superuser, Settings, Identity, Bus, Drops, Disk, Supervisor, Tasks, Drift and Leftovers are empty: only root may
// look at them.
type Facts struct {
	Time        time.Time    `json:"time"`
	Superuser   bool         `json:"superuser"`
	Runit       bool         `json:"runit,omitempty"` // and not systemd: services are started by sv
	Config      Config       `json:"config"`
	Agent       Agent        `json:"agent"`
	Settings    Settings     `json:"settings"`
	Identity    Identity     `json:"identity"`
	Bus         Bus          `json:"bus"`
	Clock       Clock        `json:"clock"`
	Blobstore   Blobstore    `json:"blobstore"`
	NameServers []NameServer `json:"name_servers,omitempty"`
	Network     Network      `json:"network"`
	Drops       []string     `json:"firewall_drops"` // chains of others that drop outgoing packets
	FileSystems []FileSystem `json:"file_systems"`
	Disk        Disk         `json:"persistent_disk"`
	Units       Units        `json:"units"`
	Supervisor  Supervisor   `json:"supervisor"`
	Tasks       task.Counts  `json:"tasks"`
	Drift       Drift        `json:"drift"`
	Leftovers   []string     `json:"leftovers"` // of another agent, or of another configuration of the network
}

// Drift lists the differences between the machine and the settings in force, in the words of agent plan.
type Drift struct {
	Changes []string `json:"changes,omitempty"`
	Err     string   `json:"error,omitempty"`
}

// driftTimeout bounds the plan: it asks no other machine.
const driftTimeout = 2 * time.Second

func drift(ctx context.Context, o Options) (found Drift) {
	if o.Drift == nil {
		return found
	}
	ctx, cancel := context.WithTimeout(ctx, driftTimeout)
	defer cancel()
	var err error
	if found.Changes, err = o.Drift(ctx, o.Config, o.Dirs); err != nil {
		found.Err = err.Error()
	}
	return found
}

// Config is agent.json.
type Config struct {
	Path     string   `json:"path"`
	Err      string   `json:"error,omitempty"`
	Denied   bool     `json:"denied,omitempty"` // this user may not read it
	Warnings []string `json:"warnings,omitempty"`
}

// Agent is the agent's process and its account of the boot.
type Agent struct {
	Status    *status.Document `json:"status"`
	StatusErr string           `json:"status_error,omitempty"`
	Running   bool             `json:"running"`
	// Unit is the state of its unit, such as "active (running)"; empty without systemd.
	Unit string `json:"unit,omitempty"`
	// Restarts counts systemd's automatic restarts of the agent.
	Restarts int `json:"restarts"`
	// MainPID is systemd's; 0 without systemd. PIDs are all processes that run as agents.
	MainPID int   `json:"main_pid,omitempty"`
	PIDs    []int `json:"pids,omitempty"`
}

// FileSystem describes one file system: its size, free space and inodes.
type FileSystem struct {
	Path       string `json:"path"` // one of the paths on it
	Size       uint64 `json:"size_bytes"`
	Free       uint64 `json:"free_bytes"` // for users; root may have more
	Inodes     uint64 `json:"inodes"`     // 0 where the file system has no fixed number
	FreeInodes uint64 `json:"free_inodes"`
	ReadOnly   bool   `json:"read_only"`
	Journal    bool   `json:"journal,omitempty"` // systemd's journal is on it
}

// Disk is the persistent disk that the records name.
type Disk struct {
	CID string `json:"cid,omitempty"` // empty: none is recorded as mounted
	// Mounted is the device that is mounted on the store; empty if none is.
	Mounted string `json:"mounted,omitempty"`
	// Gone means that it is mounted, but the kernel has lost the device.
	Gone bool `json:"gone,omitempty"`
	// Silent means that a read of the device has no answer, Frozen that the file system does not take a change. Failing
	// is the error of either.
	Silent  bool   `json:"silent,omitempty"`
	Frozen  bool   `json:"frozen,omitempty"`
	Failing string `json:"failing,omitempty"`
}

// Units lists the units that the service manager reports as failed.
type Units struct {
	Failed []string `json:"failed"`
	Err    string   `json:"error,omitempty"`
}

// Supervisor is monit and its services.
type Supervisor struct {
	// Expected means that this machine is set up for one: the agent has written its account.
	Expected bool   `json:"expected"`
	Err      string `json:"error,omitempty"`
	// PortTaken means that Err names another process that has monit's port.
	PortTaken bool `json:"port_taken,omitempty"`
	// Unit is the state of its unit if it does not answer, such as "inactive"; empty without one.
	Unit     string    `json:"unit,omitempty"`
	Services []Service `json:"services"`
}

// Service is a process that the supervisor looks after.
type Service struct {
	Name  string `json:"name"`
	State string `json:"state"`
	// Monitored is false for one that is stopped on purpose.
	Monitored bool `json:"monitored"`
	// Stopped means that its process was stopped by a signal: the supervisor takes it for running.
	Stopped bool `json:"stopped,omitempty"`
	PID     int  `json:"pid,omitempty"`
	// Logs are the log files of its job, the newest first; only of one that does not run.
	Logs []string `json:"logs,omitempty"`
}

// Network is links, addresses, routes and the answers of gateways.
type Network struct {
	State    network.State `json:"state"`
	Err      string        `json:"error,omitempty"`
	Gateways []Gateway     `json:"gateways"`
	// Duplicates are addresses that another machine uses, too; only root can ask for them.
	Duplicates []string `json:"duplicate_addresses,omitempty"`
}

// Gateway is the next hop of a default route.
type Gateway struct {
	Link    string `json:"link"`
	IP      string `json:"ip"`
	Answers bool   `json:"answers"`
}

// Runit reports a machine whose services are not units.
func Runit() bool {
	_, err := os.Stat("/etc/sv/agent")
	return err == nil && !unit.Booted("/")
}

// Local observes what this machine itself can tell, in milliseconds: no other machine is asked, and the
// settings are those of the cached copy.
func Local(ctx context.Context, o Options) Facts {
	m := Facts{Time: time.Now(), Superuser: os.Geteuid() == 0, Runit: Runit()}
	m.observeAgent(ctx, o)
	if !m.Superuser {
		return m
	}
	m.Supervisor, m.Tasks = supervisor(ctx, o.Dirs), tasks(o.Dirs)
	effective := loadSettings(ctx, o, agentjson.Config{}, false, &m.Settings)
	m.Identity = identity(effective)
	m.Disk = persistentDisk(o.Dirs, m.Settings.ManagedCID)
	return m
}

// observeAgent looks at the file systems before the status: the agent reports a migration in its status before it makes the store read-only.
func (m *Facts) observeAgent(ctx context.Context, o Options) {
	m.FileSystems = fileSystems(o.Dirs)
	m.Agent = agentState(ctx, o)
}

// Near observes what Local does, and links and gateways, which have o.Timeout to answer.
func Near(ctx context.Context, o Options) (m Facts) {
	var network Network
	var asked sync.WaitGroup
	asked.Go(func() { network = links(ctx, o.Timeout) })
	m = Local(ctx, o)
	m.Disk.askMounted(ctx, o.Dirs)
	asked.Wait()
	m.Network, m.Clock = network, kernelClock()
	m.Settings.Err = "" // the sources were not asked, so that it is not known
	m.Clock.Moved = moved(m)
	return m
}

// moved returns the amount by which the wall clock was set since the agent started. The reference is CLOCK_BOOTTIME,
// which cannot be set.
func moved(m Facts) time.Duration {
	d := m.Agent.Status
	if d == nil || d.Origin == nil || !m.Agent.Running {
		return 0
	}
	return m.Time.Sub(d.Started) - time.Duration(d.Age())
}

// All observes everything, side by side.
func All(ctx context.Context, o Options) Facts {
	m := Facts{Time: time.Now(), Superuser: os.Geteuid() == 0, Runit: Runit()}
	// The settings say whom to ask; the rest does not wait for them.
	var all sync.WaitGroup
	all.Go(func() { m.observeAgent(ctx, o) })
	all.Go(func() { m.Network = links(ctx, o.Timeout) })
	all.Go(func() { m.Units = units(ctx) })
	if m.Superuser {
		all.Go(func() { m.Drops = drops(ctx) })
		all.Go(func() { m.Supervisor = supervisor(ctx, o.Dirs) })
		all.Go(func() { m.Tasks = tasks(o.Dirs) })
		all.Go(func() { m.Leftovers = leftovers(o.Dirs) })
		all.Go(func() { m.Drift = drift(ctx, o) })
	}
	all.Go(func() {
		config, found := agentConfig(o.Config)
		m.Config = found
		var effective settings.Effective
		if m.Superuser {
			effective = loadSettings(ctx, o, config, found.Err == "", &m.Settings)
			m.Disk = persistentDisk(o.Dirs, m.Settings.ManagedCID)
			m.Disk.askMounted(ctx, o.Dirs)
		}
		m.Identity = identity(effective)
		var asked sync.WaitGroup
		asked.Go(func() { m.Bus = bus(ctx, effective, o.Timeout) })
		asked.Go(func() { m.Blobstore = askBlobstore(ctx, effective, o.Timeout) })
		asked.Go(func() { m.NameServers = askNameServers(ctx, m.Settings.DNS, o.Timeout) })
		asked.Go(func() { m.Clock = clock(ctx, config, effective, o.Timeout) })
		asked.Wait()
	})
	all.Wait()
	if m.Superuser {
		m.askNeighbors(ctx, o.Timeout)
	}
	m.Clock.Moved = moved(m)
	return m
}
