package main

import (
	"context"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/agent/dummy"
	"cambium/bootstrap"
	"cambium/bootstrap/fetch"
	"cambium/infrastructure"
	"cambium/internal/status"
	"cambium/internal/vcap"
	"cambium/jobs"
	"cambium/jobs/monit"
	"cambium/platform/device"
	"cambium/platform/firewall"
	"cambium/platform/host"
	"cambium/platform/network"
	"cambium/platform/resolver"
	"cambium/platform/tree"
	"cambium/platform/unit"
	"cambium/platform/user"
	"cambium/settings/agentjson"
	"cambium/settings/store"
	"cambium/storage"
	dummydisks "cambium/storage/dummy"
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

// machineOptions say for whom a machine is put together.
type machineOptions struct {
	dirs   vcap.Dirs
	config agentjson.Config
	log    *logrus.Entry
	// dummy is a machine without parts: settings and jobs only.
	dummy bool
	monit bool
	// readOnly is for agent plan: nothing is written, ejected, brought up or waited for without end.
	readOnly bool
	// cacheBudget is how long sources are asked if there is a cached copy; the default if zero.
	cacheBudget time.Duration
	// announceWait announces what the sources of a boot wait for.
	announceWait func(string)
	// background runs f in a goroutine until it returns or the agent ends.
	background func(f func(context.Context))
	// progress is called with the progress of a migration.
	progress func(storage.MigrationProgress)
	// workProgress is called with the progress of a long check or mount of a file system.
	workProgress func(text string)
}

// machine is the boot's machine, with the parts that the running agent uses as well. Parts that a
// dummy machine does not have are nil.
type machine struct {
	*bootstrap.Machine
	current  *store.Current
	disks    storage.Disks
	manager  services
	firewall *firewall.Firewall
	accounts *user.Accounts
	// dummyDisks are those of a dummy machine, and nil on any other.
	dummyDisks *dummydisks.Disks
	// monitManager runs monit: runit on jammy, else the manager.
	monitManager services
	// pendingStart is the Director's last start, while it is put to monit again.
	pendingStart *jobs.PendingStart
}

// newMachine puts the machine together that agent run boots and agent plan looks at. It reads the
// state files and changes nothing but, unless it is read-only, what a crash left of them.
func newMachine(o machineOptions) (*machine, error) {
	at := func(component string) *logrus.Entry { return o.log.WithField("component", component) }
	b := &bootstrap.Machine{Dirs: o.dirs, Options: o.config.Platform.Linux, Log: at("boot"), Deferred: &bootstrap.Deferred{Go: o.background}}
	m := &machine{Machine: b}
	if !o.dummy {
		m.addPlatform(at)
	}
	var err error
	m.current, err = store.Open(o.dirs, store.Options{MountTmpfs: b.MountSettingsTmpfs, ReadOnly: o.readOnly,
		Log: at("settings")})
	if err != nil {
		return nil, err
	}
	b.Settings = m.current
	if err := m.addSources(o, at("sources")); err != nil {
		return nil, err
	}
	marker := bootstrap.ReadyMarker{Dirs: o.dirs}
	b.First = func() bool { return marker.First(m.agentID()) }
	if o.dummy {
		m.dummyDisks = &dummydisks.Disks{Dirs: o.dirs, Records: m.current, Reload: m.current.Refresh}
		b.Persistent, b.Users = dummydisks.Boot{Disks: m.dummyDisks}, dummy.Users{Dirs: o.dirs}
		return m, nil
	}
	if err := m.addDisks(o, at("disk")); err != nil {
		return nil, err
	}
	m.addJobs(o)
	return m, nil
}

func (m *machine) agentID() string { return m.current.Effective().Settings.AgentID }

// addPlatform adds the parts of a real machine that need no settings.
func (m *machine) addPlatform(at func(component string) *logrus.Entry) {
	linux := m.Options
	m.manager = serviceManager(linux, at("unit"))
	m.monitManager = m.manager
	if monitUnderRunit("/", linux) {
		m.monitManager = &unit.Runit{Root: "/", Log: at("unit")}
	}
	m.firewall = &firewall.Firewall{Log: at("firewall")}
	m.accounts = &user.Accounts{Root: "/", Log: at("user")}
	m.Network = &network.Kernel{Root: "/", Log: at("network")}
	m.Resolver = &resolver.Kernel{Root: "/", PreferResolved: linux.ServiceManager == "systemd", Units: m.manager, Log: at("dns")}
	m.Tree = &tree.Kernel{Root: "/", Log: at("tree")}
	m.Host = &host.Host{Root: "/", Dirs: m.Dirs, Units: m.manager, Log: at("host")}
	m.Firewall, m.Users = m.firewall, m.accounts
}

func serviceManager(linux agentjson.Linux, log *logrus.Entry) services {
	if linux.ServiceManager == "systemd" || unit.Booted("/") {
		return &unit.Systemd{Root: "/", Log: log}
	}
	return &unit.Runit{Root: "/", Log: log}
}

// monitUnderRunit reports whether monit is a service of runit. On jammy's stemcells systemd is the init and runs runit as one
// of its units: networkd and resolved are systemd's, monit and the agent are runit's. Later stemcells have runit for its
// tools alone, and no such service.
func monitUnderRunit(root string, linux agentjson.Linux) bool {
	return linux.ServiceManager != "systemd" && unit.RunitHas(root, monit.UnitName)
}

// addSources lets the settings come from the sources that agent.json names.
func (m *machine) addSources(o machineOptions, log *logrus.Entry) error {
	waiting := func(text string) {
		if m.SettingsWait(text) {
			o.announceWait(text)
		}
	}
	up := fetch.NewNetwork(m.Network, o.readOnly, waiting, log)
	sources, err := infrastructure.New(o.config, infrastructure.Options{
		NetworkUp:   up.Up,
		Accept:      m.current.Check,
		Status:      waiting,
		Asked:       m.showSources,
		HasCache:    m.current.Present,
		CacheBudget: o.cacheBudget,
		Once:        o.readOnly,
		SideEffects: !o.readOnly,
		Log:         log,
	})
	if err != nil {
		return err
	}
	fetcher := &fetch.Fetcher{Sources: sources, Network: up, HasCache: m.current.Present}
	m.current.FetchFrom(fetcher.Fetch)
	m.OnMedia = slices.ContainsFunc(o.config.Infrastructure.Settings.Sources, func(s agentjson.Source) bool {
		return s.Type == agentjson.CDROM || s.Type == agentjson.ConfigDrive
	})
	m.PublicKey = fetcher.PublicKey
	return nil
}

// showSources records the verdict on each source in the step that asks them.
func (m *machine) showSources(began time.Time, verdicts infrastructure.Verdicts, over bool) {
	span := m.LoadingSpan()
	if span == nil {
		return
	}
	parts := make([]status.Part, len(verdicts))
	for i, v := range verdicts {
		parts[i] = status.Part{Name: v.Source, Outcome: v.Outcome, Why: v.Why}
		if over || v.Outcome == infrastructure.Failed || v.Outcome == infrastructure.NotNeeded {
			parts[i].End = int64(v.Took)
		}
	}
	span.Parts(began, parts)
}

func (m *machine) addDisks(o machineOptions, log *logrus.Entry) error {
	linux := m.Options
	resolve, err := device.New(deviceOptions(linux), log)
	if err != nil {
		return err
	}
	m.disks = storage.New(storage.Config{Dirs: o.dirs, Resolver: resolve, Records: m.current, Settings: m.current,
		Log: log, Program: ownProgram,
		Options:   storageOptions(linux),
		AfterBoot: func(f func()) { m.Deferred.UntilVerdict(func(context.Context) { f() }) },
		Progress:  o.progress, WorkProgress: o.workProgress})
	m.Ephemeral, m.Persistent = m.disks.Ephemeral, m.disks.Persistent
	return nil
}

func deviceOptions(l agentjson.Linux) device.Options {
	return device.Options{Type: l.DevicePathResolutionType, IDPattern: l.DiskIDTransformPattern, IDReplacement: l.DiskIDTransformReplacement,
		LUNLinks: l.LunDeviceSymlinkPath, InstanceStoragePattern: l.InstanceStorageDevicePattern,
		ManagedVolumePattern: l.InstanceStorageManagedVolumePattern, Root: "/"}
}

func storageOptions(l agentjson.Linux) storage.Options {
	return storage.Options{UsePreformattedPersistentDisk: l.UsePreformattedPersistentDisk, BindMountPersistentDisk: l.BindMountPersistentDisk,
		CreatePartitionIfNoEphemeralDisk: l.CreatePartitionIfNoEphemeralDisk, SkipDiskSetup: l.SkipDiskSetup, PartitionerType: l.PartitionerType,
		ForeignPersistentDisk: l.ForeignPersistentDisk, BlankDisks: l.BlankDisks,
		MissingEphemeralDisk: l.MissingEphemeralDisk, ManagedVolumes: l.InstanceStorageManagedVolumePattern != ""}
}

// repeatStart repeats the Director's last start, for a monit whose state file is older than it.
func repeatStart(ctx context.Context, supervisor monit.Supervisor, log *logrus.Entry) {
	started, err := supervisor.StartUnmonitored(ctx)
	switch {
	case err != nil && ctx.Err() == nil:
		log.WithError(err).Warn("the Director's last start was not repeated")
	case len(started) > 0:
		log.WithField("services", strings.Join(started, ",")).Info("monit had not recorded the Director's last start; services are started")
	}
}

// addJobs adds what concerns jobs and their supervisor.
func (m *machine) addJobs(o machineOptions) {
	state := &jobs.State{Dirs: o.dirs}
	m.pendingStart = &jobs.PendingStart{}
	m.JobNames = func() ([]string, error) {
		spec, err := state.Spec()
		return spec.JobNames(), err
	}
	if o.monit {
		client := monitClient(o.dirs, m.monitManager)
		m.Supervisor = monit.Starter{Dirs: o.dirs, Client: client, Services: m.monitManager,
			FilesOfStopped: func() ([]string, error) { return jobs.FilesOfStopped(o.dirs) },
			KeepStopped:    func() ([]string, error) { return jobs.KeepStopped(o.dirs) },
			AfterStart: func(stateWritten time.Time) {
				if (jobs.StartRequest{Dirs: o.dirs}).Due(stateWritten) {
					o.background(func(ctx context.Context) {
						m.pendingStart.Run(ctx, func(ctx context.Context) { repeatStart(ctx, monit.Supervisor{Client: client}, o.log) })
					})
				}
			}}
	}
}
