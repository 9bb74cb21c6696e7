package main

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/agent"
	"cambium/agent/dummy"
	"cambium/bootstrap"
	"cambium/cmd/agent/compile"
	"cambium/internal/status"
	"cambium/internal/vcap"
	"cambium/jobs/dummysupervisor"
	"cambium/mbus"
	"cambium/platform/firewall"
	"cambium/platform/network/neighbor"
	"cambium/platform/unit"
	"cambium/platform/user"
	"cambium/platform/vitals"
	"cambium/settings"
	"cambium/settings/agentjson"
	"cambium/storage"
)

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
	a := &app{o: o, dirs: dirs, log: log, rec: rec, history: status.History{Path: filepath.Join(dirs.Bosh(), status.BootsFile), Of: rec, Log: log}, notifier: notifier, background: &sync.WaitGroup{},
		sshUsers:    noUsers{},
		gauge:       vitals.New("/", dirs.Data(), dirs.Store()),
		serviceLine: serviceLine, announcer: bootstrap.Announcer{Root: "/", Log: log, Notify: serviceLine.Show}, marker: bootstrap.ReadyMarker{Dirs: dirs}}
	a.dispatcher = agent.NewDispatcher(ctx, log.WithField("component", "dispatcher"))
	m, err := newMachine(machineOptions{dirs: dirs, config: cfg, log: log, dummy: o.platform == "dummy", monit: o.supervisor == "monit",
		announceWait: a.announcer.Waiting,
		background:   func(f func(context.Context)) { a.spawn(func() { f(ctx) }) },
		progress:     a.showMigration})
	if err != nil {
		return nil, errors.Join(err, rec.Close())
	}
	a.machine, a.current, a.manager, a.monitManager, a.firewall = m.Machine, m.current, m.manager, m.monitManager, m.firewall
	a.agentID, a.settingsDir = m.agentID, m.current.Place
	linux := cfg.Platform.Linux
	a.dispatcher.AnswerHold = func() time.Duration {
		return m.current.Effective().TaskAnswerHold(linux.TaskAnswerHold, agentjson.DefaultTaskAnswerHold)
	}
	a.dispatcher.EarlyPings = func() bool { return m.current.Effective().EarlyPings(linux.EarlyPings) }
	a.firewallOn = func() bool { return m.current.Effective().Firewall(linux.Firewall) }
	a.supervisor = a.newSupervisor()
	a.startBusClient(ctx)
	m.Status, m.StartBus = rec, a.bus.Start
	if o.platform == "dummy" {
		// No boot step makes them where there is no machine, and errands and compilations need them.
		if err := errors.Join(dummy.MakeDirs(dirs), compile.MakeWorkDirs(dirs)); err != nil {
			return nil, err
		}
		a.disks, a.dispatcher.Narrate = m.dummyDisks, dummy.Narrate(log)
		return a, nil
	}
	a.sshUsers = user.Sessions{Accounts: m.accounts, HomeBase: dirs.SSHHomes()}
	a.disks = actionDisks{m.disks.Persistent, m.disks.Migration, a.machine.SettleStore}
	a.machine.WithheldChanged = a.showWithheld
	a.spawn(func() {
		if err := m.disks.Persistent.WatchSizes(ctx); err != nil {
			log.WithField("component", "disk").WithError(err).Warn("disks that grow are noticed only at the next start")
		}
	})
	return a, nil
}

// startBusClient starts the client of the bus, which has none before the boot knows the settings.
func (a *app) startBusClient(ctx context.Context) {
	log := a.log.WithField("component", "bus")
	a.bus = agent.NewBusClient(agent.BusOptions{Status: a.rec, Log: log, Patience: status.ParseBusPatience(os.Getenv(busPatienceVariable)), Changed: a.showState, Transports: transports{handler: a.handler(), audit: a.audit(ctx), dirs: a.dirs, log: log,
		beforeConnect: a.beforeConnect}.kinds()})
	a.alerts = agent.NewAlerts(a.bus, a.log.WithField("component", "report"))
	a.bus.OnConnect(func() { _ = a.rec.Mark(status.MarkBus) }) // only for the timeline
	a.spawn(func() {
		if err := a.bus.Run(ctx); err != nil {
			log.WithError(err).Error("bus ended")
		}
	})
}

// handler serves requests: the dispatcher, and with -M dummy-nats before it what tells the dummy its state.
func (a *app) handler() mbus.Handler {
	jobs, ok := a.supervisor.(*dummysupervisor.Dummy)
	if !ok || a.o.supervisor != "dummy-nats" {
		return a.dispatcher
	}
	return dummy.Handler{Next: a.dispatcher, Jobs: jobs, Alert: a.monitAlert}
}

// busPatienceVariable shortens, for tests, how long an agent may be without its bus before it counts as degraded.
const busPatienceVariable = "CAMBIUM_BUS_PATIENCE"

// audit records requests in the system's log; a dummy machine keeps them out of its host's.
func (a *app) audit(ctx context.Context) mbus.Auditor {
	if a.o.platform == "dummy" {
		return nil
	}
	syslog := mbus.NewSyslog(mbus.Program{Version: version, Supervisor: a.o.supervisor})
	a.spawn(func() {
		if err := syslog.Run(ctx); err != nil && ctx.Err() == nil {
			a.log.WithError(err).Warn("audit ended")
		}
	})
	return syslog
}

// loadConfig reads agent.json and says everything that is wrong with it at once.
func loadConfig(path string, log *logrus.Entry) (agentjson.Config, error) {
	cfg, rep, err := agentjson.Load(path)
	if err != nil {
		return cfg, err
	}
	if err := rep.Err(); err != nil {
		return cfg, err
	}
	for _, e := range rep.Entries {
		log.WithField("entry", e.String()).Warn("agent.json: warning")
	}
	return cfg, nil
}

// openStatus keeps the status below /run; a dummy agent, of which there are many on one machine,
// keeps it with its other files.
func openStatus(o runOptions, dirs vcap.Dirs) (*status.Recorder, error) {
	path := status.DefaultPath
	if o.platform == "dummy" {
		path = filepath.Join(dirs.Bosh(), "status.json")
	}
	rec, err := status.Open(path, version)
	if err != nil {
		return nil, err
	}
	return rec, rec.Update(func(d *status.Document) { d.Supervisor = o.supervisor })
}

// actionDisks are the disks as actions use them.
type actionDisks struct {
	*storage.Persistent
	*storage.Migration
	// changed looks whether jobs may be started now.
	changed func(context.Context)
}

// Mount may end the phase of a machine without its store.
func (d actionDisks) Mount(ctx context.Context, cid string) error {
	err := d.Persistent.Mount(ctx, cid)
	if err == nil {
		d.changed(ctx)
	}
	return err
}

// Remove ends it where the store's disk is no longer attached.
func (d actionDisks) Remove(ctx context.Context, cid string) error {
	err := d.Persistent.Remove(ctx, cid)
	if err == nil {
		d.changed(ctx)
	}
	return err
}

func (d actionDisks) Associate(ctx context.Context, associations []settings.DiskAssociation) error {
	_, err := d.Persistent.Associate(ctx, associations)
	return err
}

// withheldTopic is what the status calls the phase of a machine without its store.
const withheldTopic = "no job is started"

// showWithheld puts into the status why no job may be started.
func (a *app) showWithheld(reason string) {
	_, err := a.rec.SetWarning(withheldTopic, reason)
	err = errors.Join(err, a.rec.Update(func(d *status.Document) {
		switch {
		case reason != "" && d.State == status.Ready:
			d.State = status.Degraded
		case reason == "" && d.State == status.Degraded && len(d.Warnings) == 0:
			d.State = status.Ready
		}
	}), a.rec.Flush())
	if err != nil {
		a.log.WithError(err).Warn("status not written")
	}
}

// showMigration puts the progress of a migration into the status.
func (a *app) showMigration(p storage.MigrationProgress) {
	if err := a.rec.SetProgress("migrate_disk", status.Progress{Text: p.String(), Done: p.Bytes, Total: p.TotalBytes, Files: p.Files, Rate: p.Rate(),
		Remaining: int64(p.Remaining().Seconds())}); err != nil {
		a.log.WithError(err).Debug("status not written")
	}
}

// beforeConnect forgets the bus servers' hardware addresses, since after a Director has moved a
// stale neighbor entry costs minutes, and lets the firewall follow their addresses.
func (a *app) beforeConnect(ctx context.Context, servers []netip.AddrPort) {
	if a.firewall == nil { // a dummy machine
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var ips []netip.Addr
	for _, s := range servers {
		ips = append(ips, s.Addr())
	}
	if err := neighbor.Flush(ctx, ips); err != nil {
		a.log.WithError(err).Debug("neighbors not flushed")
	}
	if !a.firewallOn() {
		return
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
