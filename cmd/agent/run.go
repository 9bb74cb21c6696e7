package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/agent"
	"cambium/agent/action"
	"cambium/agent/dummy"
	"cambium/agent/task"
	"cambium/bootstrap"
	"cambium/bootstrap/engine"
	"cambium/cmd/agent/cli"
	"cambium/cmd/agent/logging"
	"cambium/cmd/agent/loglevel"
	"cambium/internal/atomicfile"
	"cambium/internal/status"
	"cambium/internal/vcap"
	"cambium/internal/watch"
	"cambium/jobs"
	"cambium/jobs/compile"
	"cambium/jobs/dummysupervisor"
	"cambium/jobs/logs"
	"cambium/jobs/monit"
	"cambium/jobs/script"
	"cambium/mbus"
	"cambium/platform/device"
	"cambium/platform/unit"
	"cambium/platform/vitals"
	"cambium/settings/agentjson"
)

// This file is the agent from top to bottom: runAgent makes a booting agent of agent.json, which knows the sources of
// the settings and the machine; that runs the boot table, which starts the bus; and when the machine is ready it makes
// the serving agent, whose actions the Director calls over the bus.

func runAgent(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, code, ok := parseRun(args, stdout, stderr)
	if !ok {
		return code
	}
	log := logging.SetUp(stderr)
	// Registered before anything else: without a handler the signal ends the process.
	toggles := make(chan os.Signal, 1)
	signal.Notify(toggles, syscall.SIGUSR1)
	defer signal.Stop(toggles)
	retries := make(chan os.Signal, 1) // one that comes during an attempt is for the next
	signal.Notify(retries, syscall.SIGHUP)
	defer signal.Stop(retries)
	limitHeap()
	notifier, err := unit.TakeNotifier()
	if err != nil {
		log.WithError(err).Warn("cannot notify the service manager")
	}
	kept, err := unit.TakeListener(monit.AlertsSocket)
	if err != nil {
		log.WithError(err).Warn("cannot use the sockets passed by the service manager")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b, err := newBooting(ctx, o, log, notifier, kept, retries)
	if err != nil {
		cannotStart(ctx, o, log, notifier, retries, err)
		if ctx.Err() != nil {
			return cli.ExitOK
		}
		return cli.ExitFailed
	}
	b.spawn(func() { loglevel.Toggle(ctx, toggles, log, b.display.rec) })
	return b.run(ctx, cancel, b.boot)
}

// booting is the agent from its start on. A test fails if its constructor leaves out a part.
type booting struct {
	o          runOptions
	dirs       vcap.Dirs
	log        *logrus.Entry
	background *sync.WaitGroup
	display    *display
	program    program
	machine    *machine
	supervisor jobs.Supervisor
	dispatcher *agent.Dispatcher
	bus        *agent.BusClient
	alerts     *agent.Alerts
	gauge      *vitals.Gauge
	alertPort  *net.TCPListener // for monit's alerts; nil while another process has the port
	reboot     *reboot          // the reboot that led to this boot; nil if there was none, or it was reported before
}

// newBooting assembles the agent. It reads agent.json and the state files, and does not change the machine.
func newBooting(ctx context.Context, o runOptions, log *logrus.Entry, notifier unit.Notifier,
	kept net.Listener, retries <-chan os.Signal) (*booting, error) {
	config, err := loadConfig(o.config, log)
	if err != nil {
		return nil, err
	}
	dirs, background := vcap.New(o.base), &sync.WaitGroup{}
	rec, err := openStatus(o, dirs)
	if err != nil {
		return nil, err
	}
	show := newDisplay(o, config.Platform.Linux.VerdictPort, rec, notifier, log)
	alerts := agent.NewAlerts(log.WithField("component", "report"))
	open := newMachine
	if o.dummy() {
		open = newDummyMachine
	}
	m, err := open(machineOptions{dirs: dirs, config: config, log: log, status: rec, monit: o.monit(),
		ownSupervisor: o.ownSupervisor(),
		announceWait:  show.announcer.Waiting, withheld: show.showWithheld,
		background: func(f func(context.Context)) { background.Go(func() { f(ctx) }) },
		progress:   show.showMigration, workProgress: show.showWork,
		shortfall: show.shortfall(alerts), retries: retries})
	if err != nil {
		return nil, errors.Join(err, rec.Flush())
	}
	dispatcher := newDispatcher(ctx, o, m, log)
	supervisor, handler := jobs.Supervisor(monit.Supervisor{Client: m.monitClient}), mbus.Handler(dispatcher)
	switch o.supervisor {
	case "dummy":
		supervisor = &dummysupervisor.Dummy{}
	case "dummy-nats": // the suite's own messages come before the dispatcher
		jobs := &dummysupervisor.Dummy{Applied: func() bool { return atomicfile.Exists(dirs.Spec()) }}
		supervisor = jobs
		handler = dummy.Handler{Next: dispatcher, Jobs: jobs, Alert: func(a monit.Alert) { m.sendAlert(alerts, a) }}
	}
	busLog := log.WithField("component", "bus")
	bus := agent.NewBusClient(agent.BusOptions{Status: rec, Log: busLog, Changed: show.showState,
		Transports: transports{handler: handler, audit: newAudit(ctx, o, background, log), dirs: dirs, log: busLog,
			beforeConnect: m.beforeConnect, delivered: func(subject string) {
				if strings.HasPrefix(subject, "hm.agent.heartbeat.") {
					_ = rec.Mark(status.MarkHeartbeat)
				}
			}}.kinds()})
	bus.OnConnect(func() { _ = rec.Mark(status.MarkBus) }) // only for the timeline
	m.StartBus = bus.Start
	m.Duplicates = func(text string) {
		if show.duplicates(text) && text != "" {
			alerts.Send(agent.DuplicateAlert(text))
		}
	}
	self := program{dirs, o.supervisor, notifier, log}
	var alertPort *net.TCPListener
	if o.receivesAlerts() {
		alertPort = self.openPort(ctx, kept)
	}
	return &booting{
		o:          o,
		dirs:       dirs,
		log:        log,
		background: background,
		display:    show,
		program:    self,
		machine:    m,
		supervisor: supervisor,
		dispatcher: dispatcher,
		bus:        bus,
		alerts:     alerts,
		gauge:      vitals.New("/", dirs.Data(), dirs.Store()),
		alertPort:  alertPort,
	}, nil
}

func newDispatcher(ctx context.Context, o runOptions, m *machine, log *logrus.Entry) *agent.Dispatcher {
	d := agent.NewDispatcher(ctx, log.WithField("component", "dispatcher"))
	d.AnswerHold = func() time.Duration {
		return m.current.Effective().TaskAnswerHold(m.Linux.TaskAnswerHold, agentjson.DefaultTaskAnswerHold)
	}
	d.EarlyPings = func() bool { return m.current.Effective().EarlyPings(m.Linux.EarlyPings) }
	if o.dummy() {
		d.Narrate = dummy.Narrate(log)
	}
	return d
}

// newAudit returns the auditor, which writes to the system's log. A dummy agent has none, to keep its requests out of
// the host's log.
func newAudit(ctx context.Context, o runOptions, background *sync.WaitGroup, log *logrus.Entry) mbus.Auditor {
	if o.dummy() {
		return nil
	}
	syslog := mbus.NewSyslog(mbus.Program{Version: version, Supervisor: o.supervisor})
	background.Go(func() {
		if err := syslog.Run(ctx); err != nil && ctx.Err() == nil {
			log.WithError(err).Warn("audit log stopped")
		}
	})
	return syslog
}

// loadConfig reads agent.json and reports all of its errors at once.
func loadConfig(path string, log *logrus.Entry) (agentjson.Config, error) {
	cfg, rep, err := agentjson.Load(path)
	if err == nil {
		err = rep.Err()
	}
	if err != nil {
		return cfg, err
	}
	for _, e := range rep.Entries {
		log.WithField("warning", e.String()).Warn("agent.json: warning")
	}
	return cfg, nil
}

// openStatus opens the status below /run. A dummy agent, one of many on its machine, keeps it below its base directory.
func openStatus(o runOptions, dirs vcap.Dirs) (*status.Recorder, error) {
	dir := vcap.RunDir
	if o.dummy() {
		dir = vcap.Run(dirs.Bosh())
	}
	rec, err := status.Open(dir.Status(), version)
	if err != nil {
		return nil, err
	}
	return rec, rec.Update(func(d *status.Document) { d.Supervisor = o.supervisor })
}

// cannotStart reports why the agent cannot start, which happens only if its configuration or state is broken. It
// returns, so that the service manager starts the agent again, when agent.json has changed, on request, or after
// startPause.
func cannotStart(ctx context.Context, o runOptions, log *logrus.Entry, notifier unit.Notifier,
	retries <-chan os.Signal, cause error) {
	v := engine.Verdict{State: status.Failed, Step: "start", Cause: cause,
		Advice: "correct it, and check it with 'agent validate " + o.config + "'"}
	line := &status.ServiceLine{Send: notifier.Status, Log: log}
	bootstrap.Announcer{Root: "/", Log: log, Notify: line.Show}.Failed(ctx, v)
	if err := record(o, v); err != nil {
		log.WithError(err).Warn("cannot write the status")
	}
	if !o.dummy() {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		go func() {
			defer cancel()
			select {
			case <-retries:
			case <-ctx.Done():
			}
		}()
		untilChanged(ctx, o.config, startPause)
	}
}

// startPause delays the exit of an agent that cannot start. If it ended at once, systemd would restart it ten times a
// second and flood the journal and the console. The service manager's own pause must be short, for intended restarts.
const startPause = 30 * time.Second

// untilChanged returns when the file has changed, or after the given time.
func untilChanged(ctx context.Context, path string, while time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, while)
	defer cancel()
	before, _ := os.ReadFile(path)
	if err := watch.Until(ctx, path, func() (bool, error) {
		now, _ := os.ReadFile(path)
		return !bytes.Equal(now, before), nil
	}); err != nil {
		<-ctx.Done() // it cannot be watched
	}
}

// record writes the verdict of an agent that could not be assembled to the status.
func record(o runOptions, v engine.Verdict) error {
	rec, err := openStatus(o, vcap.New(o.base))
	if err != nil {
		return err
	}
	next := time.Now().Add(startPause).UTC()
	// Without settings it is not known whether this agent has been ready before.
	return errors.Join(rec.Update(func(d *status.Document) {
		d.State, d.Verdict, d.First = status.Failed, v.Line(), true
		d.VerdictNS, d.Try, d.NextTry = rec.Now(), 1, &next
	}), rec.Flush())
}

// run runs the agent until ctx ends or boot returns an error. cancel must end ctx, which also stops the background
// work.
func (b *booting) run(ctx context.Context, cancel func(), boot func(context.Context) error) int {
	defer func() {
		cancel()
		b.background.Wait()
		if err := b.display.rec.Stop(); err != nil {
			b.log.WithError(err).Debug("cannot write the status")
		}
	}()
	b.log.WithFields(logrus.Fields{"version": version, "supervisor": b.o.supervisor, "base": b.dirs.Base(),
		"stemcell": b.etc("stemcell_version"), "stemcell_git_sha": b.etc("stemcell_git_sha1")}).Info("agent starting")
	b.spawn(func() {
		if missing := b.display.missing(); missing != "" {
			b.log.WithField("missing", missing).Warn("kernel or container engine lacks features")
		}
	})
	if err := bootstrap.CheckBootOnce(b.dirs); err != nil {
		b.failed(ctx, engine.Verdict{State: status.Failed, Step: "boot-once", Cause: err}, false)
		<-ctx.Done()
		return cli.ExitOK
	}
	b.spawn(func() {
		alive := func() error {
			return errors.Join(b.program.notifier.Alive(), b.display.rec.Alive(), b.display.history.Alive())
		}
		feedWatchdog(ctx, cmp.Or(b.program.notifier.Watchdog()/3, alivePeriod), b.dispatcher, alive, b.log)
	})
	b.reboot = findReboot(ctx, b.display)
	b.spawn(func() { b.machine.runBackground(ctx) })
	b.spawn(func() { b.program.releasePortWhenReplaced(ctx) })
	b.spawn(func() {
		if err := b.bus.Run(ctx); err != nil {
			b.logFor("bus").WithError(err).Error("bus stopped")
		}
	})
	b.bus.OnConnect(b.alerts.Wake)
	b.spawn(func() { b.alerts.Run(ctx, b.bus) })
	if err := boot(ctx); err != nil && ctx.Err() == nil {
		b.log.WithError(err).Error("agent stopping")
		return cli.ExitFailed
	}
	<-ctx.Done()
	b.log.Info("agent stopping on a signal")
	b.noteGoingDown(context.WithoutCancel(ctx))
	if err := b.program.notifier.Stopping(); err != nil {
		b.log.WithError(err).Debug("cannot notify the service manager")
	}
	// A stop is not a failure: units of every stemcell have Restart=always, which does not ask for the exit code.
	return cli.ExitOK
}

// alivePeriod is the interval at which an agent without a watchdog records that it runs.
const alivePeriod = 20 * time.Second

// spawn runs f in a goroutine. run waits for it before it returns.
func (b *booting) spawn(f func()) { b.background.Go(f) }

// logFor returns the log of a component.
func (b *booting) logFor(component string) *logrus.Entry {
	return b.log.WithField("component", component)
}

// etc reads a file that identifies the stemcell, for the log.
func (b *booting) etc(name string) string {
	data, err := os.ReadFile(b.dirs.StemcellFile(name))
	if err != nil || len(data) == 0 {
		return "?"
	}
	return string(data)
}

// boot runs the boot table until the machine is ready.
func (b *booting) boot(ctx context.Context) error {
	log := b.logFor("boot")
	loop := bootstrap.Loop{
		Engine: &engine.Engine{Log: log, Status: b.display.rec, Notify: b.showStep, Boundary: boundary(b.dirs),
			Failing: func(v engine.Verdict) { b.failing(ctx, v) }},
		Machine: b.machine.Machine, Log: log, Go: b.spawn, Ready: b.ready, Retrying: b.dispatcher.WithdrawVerdict}
	return loop.Run(ctx)
}

// showStep shows the current step to the service manager, and to Directors that ping.
func (b *booting) showStep(text string) {
	b.dispatcher.SetStep(strings.TrimPrefix(text, "STATUS="))
	b.display.serviceLine.ShowDelayed(text)
}

// lateDiskGrace bounds the time in which the Director of a new VM gets "restarting agent" and not a verdict while a
// disk is missing. A Director deletes the VM after a verdict. cloudfoundry/bosh-agent never gives one: it exits, is
// restarted and looks again until the Director has waited for ten minutes.
const lateDiskGrace = 2 * time.Minute

// failed announces a verdict. The Director of a new VM gets it unless a missing disk may still appear.
func (b *booting) failed(ctx context.Context, v engine.Verdict, first bool) {
	line := v.Line()
	b.display.warnOfPlatform()
	b.display.write(func(d *status.Document) {
		d.State, d.Verdict, d.First, d.VerdictNS = status.Failed, line, first, b.display.rec.Now()
	})
	if first && errors.Is(v.Cause, device.ErrTimedOut) && time.Duration(b.display.rec.Now()) < lateDiskGrace {
		b.dispatcher.SetStep(line)
	} else {
		b.dispatcher.FailBoot(line, first)
		b.alerts.Verdict(line)
	}
	b.display.announcer.Failed(ctx, v)
	b.spawn(func() { b.display.history.SaveBoot(ctx, 0) })
}

// failing announces a failed step or an expired wait, or withdraws the announcement if the step succeeds after all.
func (b *booting) failing(ctx context.Context, v engine.Verdict) {
	if v.Cause == nil {
		b.dispatcher.WithdrawVerdict()
		b.alerts.Verdict("")
		return
	}
	b.failed(ctx, v, b.machine.First())
}

// ready assembles the serving agent and lets the dispatcher serve requests.
func (b *booting) ready(ctx context.Context, v engine.Verdict) error {
	tasks, err := task.Open(ctx, task.Options{Path: b.machine.current.Place().TaskRecord(),
		Log: b.logFor("task")})
	if err != nil {
		b.log.WithError(err).Warn("cannot use the task record; tasks will not survive a restart")
	}
	s := newServing(b, tasks)
	s.report(ctx)
	b.display.warnOfPlatform()
	// Before the first pong, so that its caller finds the status complete.
	after, changes := time.Duration(b.display.rec.Now()), 0
	b.display.write(func(d *status.Document) {
		changes = d.Changes()
		d.Unchanged, d.ReadyNS = changes == 0, int64(after)
	})
	b.dispatcher.OpenGate(action.Actions(s.deps), tasks)
	b.alerts.Verdict("")
	if err := b.program.showIdentity(); err != nil {
		b.log.WithError(err).Warn("cannot write the files that identify the agent")
	}
	_, _ = b.program.releasePortIfReplaced() // it may have been replaced before these files were written
	if reason := b.machine.JobsWithheld(); reason != "" {
		b.display.showWithheld(reason)
		b.alerts.Verdict(status.JobsWithheld + ": " + reason)
		b.spawn(func() { b.machine.AwaitStore(ctx) })
	}
	// After the first pong: a power cut in between only makes the next boot count as the first one
	// again.
	if err := (bootstrap.ReadyMarker{Dirs: b.dirs}).Set(b.machine.Settings.Effective().Settings.AgentID); err != nil {
		b.log.WithError(err).Warn("cannot write the ready marker")
	}
	b.log.WithFields(logrus.Fields{"state": string(v.State), "took": after.Round(100 * time.Microsecond).String(),
		"changes": changes}).Info("agent is ready")
	b.spawn(func() { s.instance.Boot.Run(ctx) })
	b.spawn(func() { s.explainReboot(ctx) })
	b.display.showState()
	b.display.announcer.Ready(v, after)
	b.spawn(func() {
		b.display.history.SaveBoot(ctx, 0) // a power cut may come before the boot is over
		b.display.history.SaveBoot(ctx, status.BootOver)
	})
	if err := b.program.notifier.Ready(); err != nil {
		b.log.WithError(err).Warn("cannot notify the service manager")
	}
	return nil
}

// serving is the agent that a Director can use.
type serving struct {
	*booting
	instance *jobs.Instance
	deps     action.Deps
}

// newServing assembles the dependencies of the actions.
func newServing(b *booting, tasks *task.Tasks) *serving {
	m, log := b.machine, b.logFor("jobs")
	e := m.current.Effective()
	blobs := &blobs{dirs: b.dirs, log: b.logFor("blobstore")}
	if use, err := blobs.Prepare(e.Blobstore); err != nil {
		// The agent serves without a blobstore, so that the machine can be inspected and repaired;
		// each use of the store fails with the reason.
		b.log.WithError(err).Warn("cannot use the blobstore")
	} else {
		use()
	}
	owner := jobOwner()
	instance := &jobs.Instance{Dirs: b.dirs, Blobs: blobs, Supervisor: b.supervisor, Withheld: m.JobsWithheld,
		Running: m.monitRunning, CheckMonitFiles: b.o.checkMonitFiles(), Pending: m.pendingStart, Owner: owner,
		Parallel: e.Settings.Env.Bosh.Parallel, Root: "/", Log: log}
	scripts := script.Runner{Dirs: b.dirs, Log: log}
	instance.Boot = newBootScripts(b, instance, scripts)
	collector := logs.Collector{Dirs: b.dirs, Root: "/", Log: log, Journal: logs.Journal,
		Progress: b.display.collection}
	if err := errors.Join(instance.Sweep(), blobs.Sweep(), collector.Sweep()); err != nil {
		b.log.WithError(err).Warn("cannot remove leftovers of an earlier process")
	}
	return &serving{b, instance, action.Deps{
		Tasks: tasks,
		State: action.StateSource{AgentID: e.Settings.AgentID, Jobs: instance,
			Vitals: func(ctx context.Context) (any, error) { return b.gauge.Measure(ctx) },
			VMName: func() string { return m.current.Effective().Settings.VM.Name }},
		Disks: m.disks,
		UpdateSettings: action.UpdateSettings{Store: m.current, Bus: b.bus, Blobstore: blobs,
			Certificates: m.certificates, Disks: m.disks},
		SensitiveBlobs: blobs,
		Removable:      []string{b.dirs.Tmp(), "/tmp", "/var/tmp"},
		SSH:            &action.SSH{Users: m.users, HostKey: m.hostKey, Networks: m.networks},
		DNS:            &action.DNS{Blobs: blobs, Hosts: m.hosts, Records: b.dirs.DNSRecords(), GID: owner.GID},
		Neighbors:      m.neighbors,
		Power:          servedPower{m.power, b.display},
		Instance:       instance,
		Scripts:        scripts,
		Compiler: compile.Compiler{Dirs: b.dirs, Blobs: blobs, Owner: owner, Parallel: instance.Parallel,
			Log: log},
		Logs:     collector,
		Uploads:  blobs,
		Networks: m.networks,
		NotifyShutdown: func(ctx context.Context) {
			if err := b.bus.Publish(ctx, "hm", "shutdown", nil); err != nil {
				log.WithError(err).Warn("cannot notify the Health Monitor of the shutdown")
			}
		},
	}}
}

// report starts the heartbeats, and the alerts from monit and about expiring certificates.
func (s *serving) report(ctx context.Context) {
	log := s.logFor("report")
	run := func(name string, f func(context.Context) error) {
		s.spawn(func() {
			if err := f(ctx); err != nil && ctx.Err() == nil {
				log.WithError(err).WithField("report", name).Error("report stopped")
			}
		})
	}
	run("heartbeats", agent.Heartbeats{Bus: s.bus, Jobs: s.instance, Vitals: s.deps.State.Vitals,
		Ready: s.dispatcher.GateOpened(), Connected: s.bus.Connections(), Log: log}.Run)
	run("expiry", agent.Expiry{Bus: s.bus, Certificates: s.machine.busCertificates, Connected: s.bus.Connections(),
		Path: s.machine.current.Place().CertificateWarnings(), Log: log}.Run)
	if !s.o.receivesAlerts() {
		return
	}
	port := monit.Port{Client: s.machine.monitClient, Log: log, Held: s.display.warnPortTaken,
		Alert: func(by error) { s.alerts.Send(agent.PortAlert(by)) }}
	run("monit's port", port.Run)
	alerts := monit.Alerts{Log: log, Listener: s.alertPort, Keep: s.program.keepPort,
		Unserved: s.display.warnAlertsUnreceived}
	run("monit alerts", func(ctx context.Context) error {
		return alerts.Run(ctx, monit.AlertsAddress, func(m monit.Alert) {
			if s.instance.Expected(m) {
				log.WithFields(logrus.Fields{"service": m.Service, "event": m.Event}).
					Debug("alert dropped: the agent itself is starting or stopping the service")
				return
			}
			s.machine.sendAlert(s.alerts, m)
		})
	})
}
