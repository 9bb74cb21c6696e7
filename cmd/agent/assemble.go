package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/agent"
	"cambium/bootstrap"
	"cambium/cmd/agent/compile"
	"cambium/infrastructure"
	"cambium/internal/status"
	"cambium/internal/vcap"
	"cambium/jobs"
	"cambium/jobs/monit"
	"cambium/mbus"
	"cambium/platform/device"
	"cambium/platform/firewall"
	"cambium/platform/host"
	"cambium/platform/network"
	"cambium/platform/network/neighbour"
	"cambium/platform/resolver"
	"cambium/platform/tree"
	"cambium/platform/unit"
	"cambium/platform/user"
	"cambium/platform/vitals"
	"cambium/settings"
	"cambium/settings/agentjson"
	"cambium/settings/store"
	"cambium/storage"
	"cambium/storage/dummy"
)

// services is what the agent asks of systemd or runit.
type services interface {
	Start(ctx context.Context, name string) error
	Kill(ctx context.Context, name string, signal syscall.Signal) error
	Setup(ctx context.Context, name string) error
	Running(ctx context.Context, name string) bool
	Started(name string)
	Restart(ctx context.Context, name string) error
	Reload(ctx context.Context, name string) error
	PowerOff(ctx context.Context) error
}

// assemble makes the agent out of its parts. It reads agent.json and the state files; it changes
// nothing on the machine.
func assemble(ctx context.Context, o runOptions, log *logrus.Entry, notifier unit.Notifier) (*app, error) {
	dirs := vcap.New(o.base)
	cfg, err := loadConfig(o.config, log)
	if err != nil {
		return nil, err
	}
	rec, err := openStatus(o, dirs)
	if err != nil {
		return nil, err
	}
	serviceLine := &status.ServiceLine{Send: notifier.Status, Log: log}
	a := &app{o: o, dirs: dirs, log: log, rec: rec, notifier: notifier, background: &sync.WaitGroup{},
		sshUsers:    noUsers{},
		serviceLine: serviceLine, announcer: bootstrap.Announcer{Root: "/", Log: log, Notify: serviceLine.Show}, marker: bootstrap.ReadyMarker{Dirs: dirs}}
	a.dispatcher = agent.NewDispatcher(ctx, log.WithField("component", "dispatcher"))
	m := &bootstrap.Machine{Dirs: dirs, Options: cfg.Platform.Linux, Log: log.WithField("component", "boot"), Status: rec,
		Beside: func(f func(context.Context)) { a.spawn(func() { f(ctx) }) }}
	a.machine = m
	real := o.platform != "dummy"
	if real {
		a.addMachine(m)
	}
	var current *store.Current
	fetch := &fetcher{network: m.Network, cached: func() bool { return current.Present() }, waiting: a.settingsWait, turn: make(chan struct{}, 1), log: log.WithField("component", "sources")}
	fetch.sources, err = infrastructure.New(cfg, infrastructure.Options{
		NetworkUp:   fetch.networkUp,
		Accept:      func(raw []byte) error { return current.Check(raw) },
		Status:      a.settingsWait,
		HasCache:    fetch.cached,
		SideEffects: true,
		Log:         log.WithField("component", "sources"),
	})
	if err != nil {
		return nil, err
	}
	current, err = store.Open(dirs, store.Options{Fetch: fetch.fetch, MountTmpfs: a.mountTmpfs, Others: []string{taskJournal}, Log: log.WithField("component", "settings")})
	if err != nil {
		return nil, err
	}
	m.Settings, m.PublicKey = current, fetch.publicKey
	a.agentID = func() string { return current.Effective().Settings.AgentID }
	a.settingsDir = current.Place
	a.startBusClient(ctx)
	m.StartBus = a.bus.Start
	m.First = func() bool { return a.marker.First(a.agentID()) }
	a.current = current
	a.dispatcher.AnswerHold = func() time.Duration { return taskAnswerHold(current.Effective(), cfg.Platform.Linux) }
	if real {
		if err := a.addDisks(ctx, m, cfg.Platform.Linux); err != nil {
			return nil, err
		}
	} else {
		// No boot step makes them where there is no machine, and errands and compilations need them.
		if err := compile.MakeWorkDirs(dirs); err != nil {
			return nil, err
		}
		a.disks = &dummy.Disks{Dirs: dirs, Records: current, Reload: a.reload}
	}
	a.addJobs(m, cfg.Platform.Linux)
	return a, nil
}

// startBusClient starts the client of the bus, which has none before the boot knows the settings.
func (a *app) startBusClient(ctx context.Context) {
	log := a.log.WithField("component", "bus")
	a.bus = agent.NewBusClient(agent.BusOptions{Status: a.rec, Log: log, Transports: transports{handler: a.dispatcher, audit: a.audit(ctx), dirs: a.dirs, log: log,
		beforeConnect: a.beforeConnect(a.machine.Network)}.kinds()})
	a.spawn(func() {
		if err := a.bus.Run(ctx); err != nil {
			log.WithError(err).Error("bus ended")
		}
	})
}

// audit records requests in the system's log; a dummy machine keeps them out of its host's.
func (a *app) audit(ctx context.Context) mbus.Auditor {
	if a.o.platform == "dummy" {
		return nil
	}
	syslog := mbus.NewSyslog()
	a.spawn(func() {
		if err := syslog.Run(ctx); err != nil && ctx.Err() == nil {
			a.log.WithError(err).Warn("audit ended")
		}
	})
	return syslog
}

// settingsWait lets status and console tell what a boot's sources wait for.
func (a *app) settingsWait(text string) {
	if a.machine.SettingsWait(text) && text != "" {
		a.announcer.Waiting(text)
	}
}

// loadConfig reads agent.json and says everything that is wrong with it at once.
func loadConfig(path string, log *logrus.Entry) (agentjson.Config, error) {
	if path == "" {
		return agentjson.Config{}, errors.New("no agent.json: give its path with -C")
	}
	cfg, rep, err := agentjson.Load(path)
	if err != nil {
		return cfg, err
	}
	if err := rep.Err(); err != nil {
		return cfg, err
	}
	for _, e := range rep.Entries {
		log.WithField("entry", e.String()).Warn("agent.json is odd")
	}
	return cfg, nil
}

// openStatus keeps the status below /run; a dummy agent, of which there are many on one machine,
// keeps it with its other files.
func openStatus(o runOptions, dirs vcap.Dirs) (*status.Recorder, error) {
	if o.platform == "dummy" {
		return status.Open(filepath.Join(dirs.Bosh(), "status.json"), version)
	}
	return status.Open(status.DefaultPath, version)
}

// addMachine gives the boot the parts of a real machine that need no settings.
func (a *app) addMachine(m *bootstrap.Machine) {
	at := func(name string) *logrus.Entry { return a.log.WithField("component", name) }
	m.Network = &network.Kernel{Root: "/", Log: at("network")}
	m.Tree = &tree.Kernel{Root: "/", Log: at("tree")}
	m.Host = &host.Host{Root: "/", Dirs: a.dirs, Log: at("host")}
	a.gauge = vitals.New("/", a.dirs.Data(), a.dirs.Store())
	a.firewall = &firewall.Firewall{Log: at("firewall")}
	m.Firewall = func(ctx context.Context) error {
		changes, err := a.firewall.Converge(ctx, firewall.Desired{Monit: !m.Options.UseMonitIptablesFirewall})
		m.Count(len(changes))
		return err
	}
	accounts := &user.Accounts{Root: "/", Log: at("user")}
	m.Users, a.sshUsers = accounts, user.Sessions{Accounts: accounts, HomeBase: a.dirs.SSHHomes()}
}

func (a *app) serviceManager(linux agentjson.Linux) services {
	if linux.ServiceManager == "systemd" || unit.Booted("/") {
		return &unit.Systemd{Root: "/", Log: a.log.WithField("component", "unit")}
	}
	return &unit.Runit{Root: "/", Log: a.log.WithField("component", "unit")}
}

func (a *app) reload(ctx context.Context) error {
	_, err := a.current.Load(ctx)
	return err
}

// addDisks gives the boot and the actions the machine's disks.
func (a *app) addDisks(ctx context.Context, m *bootstrap.Machine, linux agentjson.Linux) error {
	log := a.log.WithField("component", "disk")
	resolve, err := device.New(deviceOptions(linux), log)
	if err != nil {
		return err
	}
	disks := storage.New(storage.Config{Dirs: a.dirs, Resolver: resolve, Records: a.current, Reload: a.reload, Log: log, Program: ownProgram,
		Options: storageOptions(linux), Foreign: func() string { return foreign(a.current.Effective(), linux) },
		AfterBoot: func(f func()) { m.Later(func(context.Context) { f() }) },
		Progress:  a.showMigration})
	a.spawn(func() {
		if err := disks.Persistent.WatchSizes(ctx); err != nil {
			log.WithError(err).Warn("disks that grow are noticed only at the next start")
		}
	})
	m.Disks = bootDisks{disks.Ephemeral, disks.Persistent}
	a.disks = actionDisks{disks.Persistent, disks.Migration}
	return nil
}

// bootDisks are the disks as the boot's steps use them.
type bootDisks struct {
	*storage.Ephemeral
	*storage.Persistent
}

// actionDisks are the disks as actions use them.
type actionDisks struct {
	*storage.Persistent
	*storage.Migration
}

func (d actionDisks) Associate(ctx context.Context, associations []settings.DiskAssociation) error {
	_, err := d.Persistent.Associate(ctx, associations)
	return err
}

// showMigration puts the progress of a migration into the status.
func (a *app) showMigration(p storage.MigrationProgress) {
	if err := a.rec.SetProgress("migrate_disk", status.Progress{Text: p.String(), Done: p.Bytes, Total: p.TotalBytes, Files: p.Files, Rate: p.Rate(),
		Remaining: int64(p.Remaining().Seconds())}); err != nil {
		a.log.WithError(err).Debug("status not written")
	}
}

func deviceOptions(l agentjson.Linux) device.Options {
	return device.Options{Type: l.DevicePathResolutionType, IDPattern: l.DiskIDTransformPattern, IDReplacement: l.DiskIDTransformReplacement,
		LUNLinks: l.LunDeviceSymlinkPath, InstanceStoragePattern: l.InstanceStorageDevicePattern,
		ManagedVolumePattern: l.InstanceStorageManagedVolumePattern, Root: "/"}
}

func storageOptions(l agentjson.Linux) storage.Options {
	return storage.Options{UsePreformattedPersistentDisk: l.UsePreformattedPersistentDisk, BindMountPersistentDisk: l.BindMountPersistentDisk,
		CreatePartitionIfNoEphemeralDisk: l.CreatePartitionIfNoEphemeralDisk, SkipDiskSetup: l.SkipDiskSetup, PartitionerType: l.PartitionerType,
		MissingEphemeralDisk: l.MissingEphemeralDisk, ManagedVolumes: l.InstanceStorageManagedVolumePattern != ""}
}

// taskAnswerHold is how long the answer about a running task is held: the deployment's word counts more than
// the stemcell's.
func taskAnswerHold(e settings.Effective, l agentjson.Linux) time.Duration {
	if seconds := e.Settings.Env.Bosh.TaskAnswerHoldSeconds; seconds != nil {
		return min(time.Duration(min(*seconds, 60))*time.Second, agentjson.DefaultTaskAnswerHold)
	}
	return l.TaskAnswerHold
}

// foreign is what to do with a persistent disk that is not ours: the deployment's word counts
// more than the stemcell's.
func foreign(e settings.Effective, l agentjson.Linux) string {
	if wish := e.Settings.Env.PersistentDiskForeign; wish != "" {
		return wish
	}
	return l.ForeignPersistentDisk
}

// addJobs gives the boot what concerns jobs and their supervisor.
func (a *app) addJobs(m *bootstrap.Machine, linux agentjson.Linux) {
	state := &jobs.State{Dirs: a.dirs}
	if m.Host == nil {
		return
	}
	manager := a.serviceManager(linux)
	a.manager = manager
	m.Host.Units = manager
	dns := &resolver.Kernel{Root: "/", PreferResolved: linux.ServiceManager == "systemd", Units: manager, Log: a.log.WithField("component", "dns")}
	m.SetDNS = func(ctx context.Context, servers []netip.Addr) error {
		changes, err := dns.Converge(ctx, resolver.Desired{Servers: servers})
		m.Count(len(changes))
		return err
	}
	m.JobDirectories = func(ctx context.Context) error {
		spec, err := state.Spec()
		if err != nil {
			return err
		}
		made, err := m.Tree.Converge(ctx, tree.JobDirs(a.dirs, spec.JobNames()))
		m.Count(len(made))
		return err
	}
	if a.o.supervisor == "monit" {
		m.StartSupervisor = a.startMonit
	}
}

// startMonit starts the supervisor.
func (a *app) startMonit(ctx context.Context) error {
	made, err := monit.Starter{Dirs: a.dirs, Client: a.monitClient(), Services: a.manager,
		FilesOfStopped: func() ([]string, error) { return jobs.FilesOfStopped(a.dirs) },
		KeepStopped:    func() ([]string, error) { return jobs.KeepStopped(a.dirs) }}.Start(ctx)
	a.machine.Count(len(made))
	return err
}

func (a *app) mountTmpfs(ctx context.Context, path string) error {
	if a.machine.Tree == nil {
		return errors.New("a dummy machine mounts nothing")
	}
	want := tree.Select(tree.Table(a.dirs, tree.Options{SettingsTmpfs: true}), tree.Settings)
	if len(want) == 0 {
		return fmt.Errorf("%s is not in the directory table", path)
	}
	_, err := a.machine.Tree.Converge(ctx, want)
	return err
}

// beforeConnect forgets the bus servers' hardware addresses, since after a Director has moved a
// stale neighbour entry costs minutes, and lets the firewall follow their addresses.
func (a *app) beforeConnect(kernel *network.Kernel) func(context.Context, []netip.AddrPort) {
	return func(ctx context.Context, servers []netip.AddrPort) {
		if kernel == nil {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		var ips []netip.Addr
		for _, s := range servers {
			ips = append(ips, s.Addr())
		}
		if err := neighbour.Flush(ctx, ips); err != nil {
			a.log.WithError(err).Debug("neighbours not flushed")
		}
		// Servers that have not been tried yet get their rules too; what is slow to resolve must
		// not hold up the connection.
		soon, done := context.WithTimeout(ctx, 500*time.Millisecond)
		defer done()
		all := append(a.firewall.Resolve(soon, a.current.Effective().Bus.URLs), servers...)
		if _, err := a.firewall.Converge(ctx, firewall.Desired{NATS: all}); err != nil {
			a.log.WithError(err).Debug("firewall does not follow the bus")
		}
	}
}
