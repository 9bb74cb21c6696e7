// Package observe collects all facts that decide whether a Director sees this machine: the agent's status, settings and
// certificates, the connection to each bus server, the clock, links and gateways, disks, units and the supervisor. It
// works without a running agent, before the network is up and with damaged files, and it changes nothing. The facts
// hold no secrets. Package doctor interprets them; agent support and agent metrics print them.
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

// Options configures an observation.
type Options struct {
	Dirs   vcap.Dirs
	Config string // path of agent.json
	Status string // path of the status file
	// Drift returns what a boot with the settings in force would change in network, DNS, accounts, directories and
	// host. If it is nil, drift is not observed.
	Drift func(ctx context.Context, agentJSON string, dirs vcap.Dirs) ([]string, error)
	// Timeout bounds each observation that waits for another machine.
	Timeout time.Duration
}

// Facts holds all observations. A field Err has the error of a failed one. Settings, Identity, Bus, Drops, Disk,
// Supervisor, Tasks and Drift need root, and are empty unless Superuser is set.
type Facts struct {
	Time        time.Time    `json:"time"`
	Superuser   bool         `json:"superuser"`
	Runit       bool         `json:"runit,omitempty"` // services are started by sv, and not by systemd
	Config      Config       `json:"config"`
	Agent       Agent        `json:"agent"`
	Settings    Settings     `json:"settings"`
	Identity    Identity     `json:"identity"`
	Bus         Bus          `json:"bus"`
	Clock       Clock        `json:"clock"`
	Blobstore   Blobstore    `json:"blobstore"`
	NameServers []NameServer `json:"name_servers,omitempty"`
	Network     Network      `json:"network"`
	Drops       []string     `json:"firewall_drops"` // nftables chains of other programs that drop outgoing packets
	FileSystems []FileSystem `json:"file_systems"`
	Disk        Disk         `json:"persistent_disk"`
	Units       Units        `json:"units"`
	Supervisor  Supervisor   `json:"supervisor"`
	Tasks       task.Counts  `json:"tasks"`
	Drift       Drift        `json:"drift"`
}

// Drift lists the differences between the machine and the settings in force, as agent plan prints them.
type Drift struct {
	Changes []string `json:"changes,omitempty"`
	Err     string   `json:"error,omitempty"`
}

// driftTimeout bounds the plan, which contacts no other machine.
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

// Config is the state of agent.json.
type Config struct {
	Path     string   `json:"path"`
	Err      string   `json:"error,omitempty"`
	Denied   bool     `json:"denied,omitempty"` // this user may not read it
	Warnings []string `json:"warnings,omitempty"`
}

// Agent describes the agent's process and its last boot.
type Agent struct {
	Status    *status.Document `json:"status"`
	StatusErr string           `json:"status_error,omitempty"`
	Running   bool             `json:"running"`
	// Unit is the state of its unit, such as "active (running)"; empty without systemd.
	Unit string `json:"unit,omitempty"`
	// Restarts is the number of systemd's automatic restarts of the agent.
	Restarts int `json:"restarts"`
	// MainPID is systemd's main pid of the agent's unit; 0 without systemd. PIDs has all processes that run as agents.
	MainPID int   `json:"main_pid,omitempty"`
	PIDs    []int `json:"pids,omitempty"`
}

// FileSystem describes one file system: its size, free space and inodes.
type FileSystem struct {
	Path       string `json:"path"` // one of the paths on it
	Size       uint64 `json:"size_bytes"`
	Free       uint64 `json:"free_bytes"` // for users; root may have more
	Inodes     uint64 `json:"inodes"`     // 0 if the file system has no fixed number
	FreeInodes uint64 `json:"free_inodes"`
	ReadOnly   bool   `json:"read_only"`
	Journal    bool   `json:"journal,omitempty"` // systemd's journal is on it
}

// Disk describes the persistent disk in the records.
type Disk struct {
	CID string `json:"cid,omitempty"` // "" if none is recorded as mounted
	// Mounted is the device mounted on the store; "" if there is none.
	Mounted string `json:"mounted,omitempty"`
	// Gone means that it is mounted, but the kernel has lost the device.
	Gone bool `json:"gone,omitempty"`
	// Silent means that a read of the device does not return, and Frozen that a change of the file system does not.
	// Failing is the error of either.
	Silent  bool   `json:"silent,omitempty"`
	Frozen  bool   `json:"frozen,omitempty"`
	Failing string `json:"failing,omitempty"`
}

// Units lists the units that the service manager reports as failed.
type Units struct {
	Failed []string `json:"failed"`
	Err    string   `json:"error,omitempty"`
}

// Supervisor describes monit, or the agent's own supervisor, and its services.
type Supervisor struct {
	// Expected means that this machine should run one, because the agent has written its account.
	Expected bool   `json:"expected"`
	Err      string `json:"error,omitempty"`
	// PortTaken means that Err names another process that has monit's port.
	PortTaken bool `json:"port_taken,omitempty"`
	// Unit is the state of the unit, such as "inactive", if the supervisor does not answer; "" without a unit.
	Unit     string    `json:"unit,omitempty"`
	Services []Service `json:"services"`
}

// Service is a process of the supervisor.
type Service struct {
	Name  string `json:"name"`
	State string `json:"state"`
	// Monitored is false if it was stopped on purpose.
	Monitored bool `json:"monitored"`
	// Stopped means that a signal has stopped the process, which the supervisor takes for running.
	Stopped bool `json:"stopped,omitempty"`
	PID     int  `json:"pid,omitempty"`
	// Logs lists the log files of its job, the newest first. It is set only if the process does not run.
	Logs []string `json:"logs,omitempty"`
}

// Network has links, addresses and routes, and the answers of gateways.
type Network struct {
	State    network.State `json:"state"`
	Err      string        `json:"error,omitempty"`
	Gateways []Gateway     `json:"gateways"`
	// Duplicates lists addresses that another machine uses, too. Only root can ask for them.
	Duplicates []string `json:"duplicate_addresses,omitempty"`
}

// Gateway is the next hop of a default route.
type Gateway struct {
	Link    string `json:"link"`
	IP      string `json:"ip"`
	Answers bool   `json:"answers"`
}

// Runit reports whether runit manages the services of this machine.
func Runit() bool {
	_, err := os.Stat("/etc/sv/agent")
	return err == nil && !unit.Booted("/")
}

// Local observes what this machine knows by itself, in milliseconds. It contacts no other machine, and reads the
// settings from the cached copy.
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

// observeAgent looks at the file systems before the status: the agent reports a migration in its status before it makes
// the store read-only.
func (m *Facts) observeAgent(ctx context.Context, o Options) {
	m.FileSystems = fileSystems(o.Dirs)
	m.Agent = agentState(ctx, o)
}

// Nearby observes the same as Local, and also links and gateways, which have o.Timeout to answer.
func Nearby(ctx context.Context, o Options) (m Facts) {
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

// All observes everything, most of it concurrently.
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
