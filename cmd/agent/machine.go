package main

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"net/url"
	"os"
	osuser "os/user"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/agent"
	"cambium/agent/action"
	"cambium/agent/dummy"
	"cambium/bootstrap"
	"cambium/bootstrap/engine"
	"cambium/bootstrap/fetch"
	"cambium/cmd/agent/compile"
	"cambium/infrastructure"
	"cambium/internal/status"
	"cambium/internal/vcap"
	"cambium/jobs"
	"cambium/jobs/bundle"
	"cambium/jobs/monit"
	"cambium/platform/device"
	"cambium/platform/firewall"
	"cambium/platform/host"
	"cambium/platform/network"
	"cambium/platform/resolver"
	"cambium/platform/tree"
	"cambium/platform/unit"
	"cambium/platform/user"
	"cambium/settings"
	"cambium/settings/agentjson"
	"cambium/settings/store"
	"cambium/storage"
	dummydisks "cambium/storage/dummy"
	"cambium/supervisor"
)

// monitServices is the agent's interface to the service manager that runs monit.
type monitServices interface {
	monit.Daemon
	Running(ctx context.Context, name string) bool
}

// services is the agent's interface to systemd or runit.
type services interface {
	monitServices
	Setup(ctx context.Context, name string) error
	Started(name string)
	Restart(ctx context.Context, name string) error
	Reload(ctx context.Context, name string) error
	PowerOff(ctx context.Context) error
	GoingDown(ctx context.Context) (how string, err error)
}

// disks performs the disk operations of actions, on a real machine or a dummy one.
type disks interface {
	action.Disks
	action.Associations
}

// machineOptions configures a machine.
type machineOptions struct {
	dirs   vcap.Dirs
	config agentjson.Config
	log    *logrus.Entry
	status *status.Recorder
	monit  bool
	// ownSupervisor puts the agent's own supervisor in place of monit.
	ownSupervisor bool
	// readOnly is for agent plan: the machine writes and ejects nothing, brings no network up, and never waits without
	// a limit.
	readOnly bool
	// cacheBudget bounds the time for asking sources if there is a cached copy; 0 means the default.
	cacheBudget time.Duration
	// announceWait is called with what the sources are waiting for.
	announceWait func(string)
	// withheld is called with the reason why no job may start, and with "" when jobs may start again.
	withheld func(reason string)
	// background runs f in a goroutine until it returns or the agent ends.
	background func(f func(context.Context))
	// progress is called with the progress of a migration.
	progress func(storage.MigrationProgress)
	// workProgress is called with the progress of a long check or mount of a file system.
	workProgress func(text string)
	// shortfall is called with the reason why a file system is smaller than its disk, and with "" when it is not.
	shortfall func(dir, text string)
	// retries are the operators' requests to retry at once; nil if none can come.
	retries <-chan os.Signal
}

// logFor returns the log of a component.
func (o machineOptions) logFor(component string) *logrus.Entry {
	return o.log.WithField("component", component)
}

// machine combines the boot's machine, real or dummy, with the parts that the serving agent uses. A test fails if a
// constructor leaves out a part.
type machine struct {
	*bootstrap.Machine
	current      *store.Current
	disks        disks
	users        action.SSHUsers
	hosts        action.HostsFile
	certificates action.TrustedCertificates
	neighbors    action.Neighbors
	power        action.Power
	hostKey      func(ctx context.Context) (string, error)
	networks     func() map[string]settings.Network
	monitRunning func(ctx context.Context) bool
	monitClient  *monit.Client
	// pendingStart is the Director's last start, while it is repeated.
	pendingStart *jobs.PendingStart
	// beforeConnect updates the firewall and the neighbor table for the addresses of the bus servers.
	beforeConnect func(ctx context.Context, servers []netip.AddrPort)
	// goingDown returns how the machine is going down, or "" if it is not.
	goingDown func(ctx context.Context) string
	// runBackground runs until ctx ends.
	runBackground func(ctx context.Context)
}

// newMachine returns the machine that agent run boots and agent plan examines. It reads the state files. Unless it is
// read-only, it also repairs what a crash has left.
func newMachine(o machineOptions) (*machine, error) {
	linux := o.config.Platform.Linux
	manager := serviceManager(linux, o.logFor("unit"))
	monitManager := manager
	if monitUnderRunit("/", linux) {
		monitManager = &unit.Runit{Root: "/", Log: o.logFor("unit")}
	}
	client := monitClient(o.dirs, monitManager)
	accounts := &user.Accounts{Root: "/", Log: o.logFor("user")}
	b := newBoot(o)
	b.Network = &network.Kernel{Root: "/", Log: o.logFor("network")}
	b.Resolver = &resolver.Kernel{Root: "/", PreferResolved: linux.ServiceManager == "systemd", Units: manager,
		Log: o.logFor("dns")}
	b.Tree = &tree.Kernel{Root: "/", Log: o.logFor("tree")}
	b.Host = &host.Host{Root: "/", Dirs: o.dirs, Units: manager, Log: o.logFor("host")}
	b.Firewall, b.Users = &firewall.Firewall{Log: o.logFor("firewall")}, accounts
	current, err := openSettings(b, o)
	if err != nil {
		return nil, err
	}
	disks, err := openDisks(b, current, o)
	if err != nil {
		return nil, err
	}
	b.Ephemeral, b.Persistent = disks.Ephemeral, disks.Persistent
	pendingStart := &jobs.PendingStart{}
	if o.monit {
		program, err := supervisorProgram(o, monitManager)
		if err != nil {
			return nil, err
		}
		held := holdBack{b, monitManager}
		b.Supervisor = monit.Starter{Dirs: o.dirs, Client: client, Services: monitManager, Program: program,
			HeldBack: held.files, HoldBack: held.remove, AfterStart: o.repeatStart(client, pendingStart)}
	}
	return &machine{
		Machine:       b,
		current:       current,
		disks:         bootstrap.ServedDisks{Persistent: disks.Persistent, Migration: disks.Migration, Machine: b},
		users:         user.Sessions{Accounts: accounts, HomeBase: o.dirs.SSHHomes()},
		hosts:         hostsFile{b.Host, current},
		certificates:  certificates{b.Host},
		neighbors:     neighbors{},
		power:         manager,
		hostKey:       func(ctx context.Context) (string, error) { return action.AwaitHostKey(ctx, "/") },
		networks:      b.Networks,
		monitRunning:  func(ctx context.Context) bool { return monitManager.Running(ctx, monit.UnitName) },
		monitClient:   client,
		pendingStart:  pendingStart,
		beforeConnect: follower{b.Firewall, linux, current, o.logFor("bus")}.follow,
		goingDown: func(ctx context.Context) string {
			how, err := manager.GoingDown(ctx)
			if err != nil {
				o.logFor("unit").WithError(err).Debug("cannot determine whether the machine goes down")
			}
			return how
		},
		runBackground: func(ctx context.Context) {
			if err := disks.Persistent.WatchSizes(ctx); err != nil {
				o.logFor("disk").WithError(err).
					Warn("cannot receive the kernel's disk events; a grown disk is noticed only at the next start")
			}
		},
	}, nil
}

// newDummyMachine returns a machine that has only settings and jobs. Calls of its other parts succeed without any
// effect.
func newDummyMachine(o machineOptions) (*machine, error) {
	b := newBoot(o)
	current, err := openSettings(b, o)
	if err != nil {
		return nil, err
	}
	// No boot step makes them where there is no machine, and errands and compilations need them.
	if err := errors.Join(dummy.MakeDirs(o.dirs), compile.MakeWorkDirs(o.dirs)); err != nil {
		return nil, err
	}
	disks := &dummydisks.Disks{Dirs: o.dirs, Known: current, Reload: current.Refresh}
	b.Persistent, b.Users = dummydisks.Boot{Disks: disks}, dummy.Users{Dirs: o.dirs}
	none := dummy.NoEffect{}
	return &machine{
		Machine:      b,
		current:      current,
		disks:        disks,
		users:        none,
		hosts:        dummy.Hosts{Dirs: o.dirs},
		certificates: none,
		neighbors:    none,
		power:        none,
		hostKey:      func(context.Context) (string, error) { return dummy.HostKey, nil },
		networks: func() map[string]settings.Network {
			found, err := dummy.Networks(o.dirs, b.Networks())
			if err != nil {
				o.log.WithError(err).Warn("cannot read the dummy's DHCP lease; its network has no address")
			}
			return found
		},
		monitRunning:  func(context.Context) bool { return false },
		monitClient:   monitClient(o.dirs, none),
		pendingStart:  &jobs.PendingStart{},
		beforeConnect: func(context.Context, []netip.AddrPort) {},
		goingDown:     func(context.Context) string { return "" },
		runBackground: func(context.Context) {},
	}, nil
}

// sendAlert passes an alert of monit on to the Health Monitor.
func (m *machine) sendAlert(alerts *agent.Alerts, a monit.Alert) {
	if alert, worth := agent.MonitAlert(a, m.addresses()); worth {
		alerts.Send(alert)
	}
}

// busCertificates returns the certificates of the bus, whose expiry is watched.
func (m *machine) busCertificates() []agent.Certificate {
	cert := m.current.Effective().Bus.Cert
	return []agent.Certificate{{Name: "bus client", PEM: cert.Certificate}, {Name: "bus CA", PEM: cert.CA}}
}

// addresses returns the addresses of all networks, sorted.
func (m *machine) addresses() []string {
	var ips []string
	for _, n := range m.networks() {
		if n.IP != "" {
			ips = append(ips, n.IP)
		}
	}
	slices.Sort(ips)
	return ips
}

// newBoot returns the boot's machine with what agent.json and the command line define, before its parts are added.
func newBoot(o machineOptions) *bootstrap.Machine {
	sources := o.config.Infrastructure.Settings.Sources
	return &bootstrap.Machine{
		Dirs:            o.dirs,
		Linux:           o.config.Platform.Linux,
		Log:             o.logFor("boot"),
		Status:          o.status,
		OnMedia:         slices.ContainsFunc(sources, onMedium),
		MetadataServers: metadataServers(sources),
		Requests:        o.retries,
		JobNames: func() ([]string, error) {
			spec, err := (&jobs.SpecFile{Dirs: o.dirs}).Spec()
			return spec.JobNames(), err
		},
		WithheldChanged: o.withheld,
		Deferred:        &bootstrap.Deferred{Go: o.background},
	}
}

// onMedium reports whether a source is a CD or a config drive.
func onMedium(s agentjson.Source) bool {
	return s.Type == agentjson.CDROM || s.Type == agentjson.ConfigDrive
}

// openSettings opens the settings, and adds the sources that agent.json names.
func openSettings(b *bootstrap.Machine, o machineOptions) (*store.Current, error) {
	current, err := store.Open(o.dirs, store.Options{MountTmpfs: b.MountSettingsTmpfs, ReadOnly: o.readOnly,
		Log: o.logFor("settings")})
	if err != nil {
		return nil, err
	}
	b.Settings = current
	marker := bootstrap.ReadyMarker{Dirs: o.dirs}
	b.First = func() bool { return marker.First(current.Effective().Settings.AgentID) }
	return current, addSources(b, current, o)
}

// openDisks returns the disks of a real machine.
func openDisks(b *bootstrap.Machine, current *store.Current, o machineOptions) (storage.Disks, error) {
	resolve, err := device.New(deviceOptions(b.Linux), o.logFor("disk"))
	if err != nil {
		return storage.Disks{}, err
	}
	return storage.New(storage.Config{Dirs: o.dirs, Resolver: announcingResolver{resolve}, Known: current,
		Settings: current, Change: showChange, Log: o.logFor("disk"), Program: ownProgram, Options: b.Linux,
		AfterBoot: func(f func()) { b.Deferred.UntilVerdict(func(context.Context) { f() }) },
		Progress:  o.progress, WorkProgress: o.workProgress, Shortfall: o.shortfall}), nil
}

func monitClient(dirs vcap.Dirs, manager monit.Daemon) *monit.Client {
	return &monit.Client{URL: monit.DefaultURL, UserFile: dirs.MonitUser(), JobFiles: dirs.MonitFiles(), Daemon: manager,
		Taken: make(chan struct{}, 1)}
}

func serviceManager(linux agentjson.Linux, log *logrus.Entry) services {
	if linux.ServiceManager == "systemd" || unit.Booted("/") {
		return &unit.Systemd{Root: "/", Log: log}
	}
	return &unit.Runit{Root: "/", Log: log}
}

// monitUnderRunit reports whether monit is a service of runit. On jammy stemcells, systemd is the init and runs runit
// as a unit: networkd and resolved belong to systemd, monit and the agent to runit. Later stemcells have only runit's
// tools, and no such service.
func monitUnderRunit(root string, linux agentjson.Linux) bool {
	return linux.ServiceManager != "systemd" && unit.RunitHas(root, monit.UnitName)
}

// addSources adds the sources that agent.json names.
func addSources(m *bootstrap.Machine, current *store.Current, o machineOptions) error {
	log := o.logFor("sources")
	waiting := func(ctx context.Context, text string) {
		if aside := store.CorruptFiles(m.Dirs); text != "" && len(aside) > 0 && !current.Present() {
			text += "; the cached copy was damaged and set aside as " + strings.Join(aside, ", ")
		}
		if span := engine.SpanOf(ctx); span == nil && o.readOnly || span != nil && span.Waiting(text) {
			o.announceWait(text)
		}
	}
	up := fetch.NewNetwork(m.Network, o.readOnly, waiting, log)
	sources, err := infrastructure.New(o.config, infrastructure.Options{
		NetworkUp: up.IsUp,
		Connecting: func(ctx context.Context, server netip.AddrPort) {
			m.AsksMetadata(server)
			if !o.readOnly {
				m.CloseMetadata(ctx)
			}
		},
		Accept:      current.Check,
		Status:      waiting,
		Asked:       showSources,
		HasCache:    current.Present,
		CacheBudget: o.cacheBudget,
		Once:        o.readOnly,
		SideEffects: !o.readOnly,
		Log:         log,
	})
	if err != nil {
		return err
	}
	fetcher := &fetch.Fetcher{Sources: sources, Network: up, HasCache: current.Present}
	current.SetFetch(fetcher.Fetch)
	m.PublicKey = fetcher.PublicKey
	return nil
}

// metadataServers returns the addresses and ports in the URIs of sources. It does not look up names, because the
// network may not be up yet.
func metadataServers(sources []agentjson.Source) (servers []netip.AddrPort) {
	for _, s := range sources {
		uri, err := url.Parse(s.URI.Reveal())
		if err != nil {
			continue
		}
		port := cmp.Or(uri.Port(), map[string]string{"http": "80", "https": "443"}[uri.Scheme])
		if server, err := netip.ParseAddrPort(net.JoinHostPort(uri.Hostname(), port)); err == nil {
			servers = append(servers, server)
		}
	}
	return servers
}

// showSources records the result of each source in the current boot step.
func showSources(ctx context.Context, began time.Time, results infrastructure.Results, over bool) {
	span := engine.SpanOf(ctx)
	if span == nil {
		return
	}
	parts := make([]status.Part, len(results))
	for i, v := range results {
		parts[i] = status.Part{Name: v.Source, Outcome: v.Outcome, Why: v.Why}
		if over || v.Outcome == infrastructure.Failed || v.Outcome == infrastructure.NotNeeded {
			parts[i].End = int64(v.Took)
		}
	}
	span.Parts(began, parts)
}

func deviceOptions(l agentjson.Linux) device.Options {
	return device.Options{
		Type:                   l.DevicePathResolutionType,
		IDPattern:              l.DiskIDTransformPattern,
		IDReplacement:          l.DiskIDTransformReplacement,
		LUNLinks:               l.LunDeviceSymlinkPath,
		InstanceStoragePattern: l.InstanceStorageDevicePattern,
		ManagedVolumePattern:   l.InstanceStorageManagedVolumePattern,
		Root:                   "/",
	}
}

// repeatStart returns a function that repeats the Director's last start, if monit had not saved its state after it.
func (o machineOptions) repeatStart(client *monit.Client, pending *jobs.PendingStart) func(stateWritten time.Time) {
	repeat := func(ctx context.Context) {
		started, err := monit.Supervisor{Client: client}.StartUnmonitored(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			o.log.WithError(err).Warn("cannot repeat the Director's last start")
		case len(started) > 0:
			o.log.WithField("services", strings.Join(started, ",")).
				Info("monit had not recorded the Director's last start; starting services")
		}
	}
	return func(stateWritten time.Time) {
		if (jobs.StartRequest{Dirs: o.dirs}).Due(stateWritten) {
			o.background(func(ctx context.Context) { pending.Run(ctx, repeat) })
		}
	}
}

// supervisorProgram decides which program monit's unit runs: monit, or the agent's own supervisor, which needs systemd.
func supervisorProgram(o machineOptions, manager services) (monit.DropIn, error) {
	systemd, runs := manager.(*unit.Systemd)
	if !runs {
		if o.ownSupervisor {
			return monit.DropIn{}, errors.New(
				"-M systemd needs systemd's monit.service, but runit runs monit here: use -M monit")
		}
		return monit.DropIn{}, nil
	}
	program := monit.DropIn{Path: vcap.RunDir.MonitDropIn(), Link: vcap.RunDir.MonitProgram(),
		Agent: o.dirs.Agent(), Reload: systemd.ReloadUnits}
	if o.ownSupervisor {
		program.Content = monit.SupervisorUnit(vcap.RunDir.MonitProgram())
		program.Before = func(monitored map[string]bool) error {
			return supervisor.WriteState(o.dirs.SupervisorState(), monitored)
		}
	}
	return program, nil
}

// jobOwner returns root and the group vcap, or only root if that group does not exist.
func jobOwner() bundle.Owner {
	if g, err := osuser.LookupGroup("vcap"); err == nil {
		if gid, err := strconv.Atoi(g.Gid); err == nil {
			return bundle.Owner{GID: gid}
		}
	}
	return bundle.Owner{}
}
