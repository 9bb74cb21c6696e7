package main

import (
	"context"
	"errors"
	"net/netip"
	"os"
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
	"cambium/platform"
	"cambium/platform/firewall"
	"cambium/platform/network/neighbor"
	"cambium/platform/unit"
	"cambium/platform/user"
	"cambium/platform/vitals"
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
	a := &app{o: o, dirs: dirs, log: log, rec: rec, history: status.History{Path: dirs.Boots(), Of: rec, Log: log},
		notifier: notifier, background: &sync.WaitGroup{},
		sshUsers:    noUsers{},
		gauge:       vitals.New("/", dirs.Data(), dirs.Store()),
		serviceLine: serviceLine, announcer: bootstrap.Announcer{Root: "/", Log: log, Notify: serviceLine.Show}, marker: bootstrap.ReadyMarker{Dirs: dirs}}
	a.dispatcher = agent.NewDispatcher(ctx, log.WithField("component", "dispatcher"))
	m, err := newMachine(machineOptions{dirs: dirs, config: cfg, log: log, dummy: o.platform == "dummy", monit: o.supervisor == "monit",
		announceWait: a.announcer.Waiting,
		background:   func(f func(context.Context)) { a.spawn(func() { f(ctx) }) },
		progress:     a.showMigration, workProgress: a.showWork})
	if err != nil {
		return nil, errors.Join(err, rec.Close())
	}
	a.machine, a.current, a.manager, a.monitManager, a.firewall = m.Machine, m.current, m.manager, m.monitManager, m.firewall
	a.pendingStart = m.pendingStart
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
	a.disks = bootstrap.ServedDisks{Persistent: m.disks.Persistent, Migration: m.disks.Migration, Machine: m.Machine,
		Status: a.rec}
	a.machine.WithheldChanged, a.machine.StoreHold = a.showWithheld, parseStoreHold(os.Getenv(storeHoldVariable))
	a.spawn(func() {
		if err := m.disks.Persistent.WatchSizes(ctx); err != nil {
			log.WithField("component", "disk").WithError(err).Warn("kernel events of disks are not available; a grown disk is noticed at the next start")
		}
	})
	return a, nil
}

// startBusClient starts the client of the bus, which has none before the boot knows the settings.
func (a *app) startBusClient(ctx context.Context) {
	log := a.log.WithField("component", "bus")
	a.bus = agent.NewBusClient(agent.BusOptions{Status: a.rec, Log: log, Grace: status.ParseBusGrace(os.Getenv(busGraceVariable)), Changed: a.showState, Transports: transports{handler: a.handler(), audit: a.audit(ctx), dirs: a.dirs, log: log,
		beforeConnect: a.beforeConnect}.kinds()})
	a.alerts = agent.NewAlerts(a.bus, a.log.WithField("component", "report"))
	a.bus.OnConnect(func() { _ = a.rec.Mark(status.MarkBus) }) // only for the timeline
	a.spawn(func() {
		if err := a.bus.Run(ctx); err != nil {
			log.WithError(err).Error("bus ended")
		}
	})
}

// handler serves requests: the dispatcher, and with -M dummy-nats in front of it the handler of the suite's
// own messages.
func (a *app) handler() mbus.Handler {
	jobs, ok := a.supervisor.(*dummysupervisor.Dummy)
	if !ok || a.o.supervisor != "dummy-nats" {
		return a.dispatcher
	}
	return dummy.Handler{Next: a.dispatcher, Jobs: jobs, Alert: a.monitAlert}
}

// busGraceVariable shortens, for tests, how long an agent may be without its bus before it counts as degraded.
const busGraceVariable = "CAMBIUM_BUS_PATIENCE"

// storeHoldVariable shortens, for tests, how long a boot waits for a check or a mount of the store.
const storeHoldVariable = "CAMBIUM_STORE_HOLD"

// parseStoreHold reads a duration; what is no positive one means the default.
func parseStoreHold(text string) time.Duration {
	if hold, err := time.ParseDuration(text); err == nil && hold > 0 {
		return hold
	}
	return bootstrap.DefaultStoreHold
}

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
		log.WithField("warning", e.String()).Warn("agent.json: warning")
	}
	return cfg, nil
}

// openStatus keeps the status below /run; a dummy agent, of which there are many on one machine,
// keeps it with its other files.
func openStatus(o runOptions, dirs vcap.Dirs) (*status.Recorder, error) {
	dir := vcap.RunDir
	if o.platform == "dummy" {
		dir = vcap.Run(dirs.Bosh())
	}
	rec, err := status.Open(dir.Status(), version)
	if err != nil {
		return nil, err
	}
	return rec, rec.Update(func(d *status.Document) { d.Supervisor = o.supervisor })
}

// showWithheld puts into the status why no job may be started.
func (a *app) showWithheld(reason string) {
	_, err := a.rec.SetWarning(status.JobsWithheld, reason)
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

// showWork puts the check or the mount of a file system that takes long into the status.
func (a *app) showWork(text string) {
	if err := a.rec.SetProgress("disk", status.Progress{Text: text}); err != nil {
		a.log.WithError(err).Debug("status not written")
	}
}

// showMigration puts the progress of a migration into the status.
func (a *app) showMigration(p storage.MigrationProgress) {
	if err := a.rec.SetProgress("migrate_disk", status.Progress{Text: p.String(), Done: p.Bytes, Total: p.TotalBytes, Files: p.Files, Rate: p.Rate(),
		Remaining: int64(p.Remaining().Seconds())}); err != nil {
		a.log.WithError(err).Debug("status not written")
	}
}

// beforeConnect flushes the neighbor entries of the bus servers, since a stale one costs minutes
// after a Director has moved, and updates the firewall rules for their addresses.
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
	// Servers that have not been tried yet get their rules too; slow name resolution must not delay
	// the connection.
	limited, done := context.WithTimeout(ctx, 500*time.Millisecond)
	defer done()
	all := append(a.firewall.Resolve(limited, a.current.Effective().Bus.URLs), servers...)
	if _, err := platform.Converge(ctx, a.firewall, firewall.Diff, firewall.Desired{NATS: all}); err != nil {
		a.log.WithError(err).Debug("firewall does not follow the bus")
	}
}
