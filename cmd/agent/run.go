package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/agent"
	"cambium/agent/action"
	"cambium/agent/task"
	"cambium/bootstrap"
	"cambium/bootstrap/engine"
	"cambium/cmd/agent/cli"
	"cambium/cmd/agent/logging"
	"cambium/cmd/agent/loglevel"
	"cambium/cmd/agent/watchdog"
	"cambium/internal/atomicfile"
	"cambium/internal/status"
	"cambium/internal/vcap"
	"cambium/internal/watch"
	"cambium/jobs"
	"cambium/jobs/monit"
	"cambium/platform/device"
	"cambium/platform/firewall"
	"cambium/platform/unit"
	"cambium/platform/vitals"
	"cambium/settings/store"
)

// runOptions are the flags that stemcells pass.
type runOptions struct {
	platform   string
	config     string
	supervisor string
	base       string
}

func parseRun(args []string, stdout, stderr io.Writer) (o runOptions, code int, ok bool) {
	flags := cli.NewFlags("run", cli.Help{Arguments: "-P PLATFORM [-C AGENT_JSON] [-M SUPERVISOR] [-b BASE]",
		Purpose:  "Runs the agent in the foreground until it gets SIGTERM. 'agent -P … -C …' without the\nword run does the same: it is how stemcells start it.",
		Examples: []string{"agent -P ubuntu -C /var/vcap/bosh/agent.json", "agent -P dummy -M dummy-nats -b /tmp/vm -C /tmp/vm/agent.json"}}, stdout, stderr)
	flags.StringVar(&o.platform, "P", "", "`PLATFORM`: ubuntu or centos, which are the same, or dummy for everything that touches no machine")
	flags.StringVar(&o.config, "C", "", "path of `AGENT_JSON`; bosh/agent.json below BASE if not given")
	flags.StringVar(&o.supervisor, "M", "monit", "`SUPERVISOR`: monit, dummy or dummy-nats")
	flags.StringVar(&o.base, "b", vcap.DefaultBase, "`BASE` directory")
	showVersion := flags.Bool("v", false, "print the version and exit")
	flags.String("r", "/", "accepted and ignored")
	flags.Bool("no-alerts", false, "accepted and ignored")
	if code, ok := flags.ParseLeading(args); !ok {
		return o, code, false
	}
	if *showVersion {
		// The first line is all that cloudfoundry/bosh-agent prints.
		fmt.Fprintf(stdout, "%s\nsupervisor %s\n", version, o.supervisor)
		return o, cli.ExitOK, false
	}
	o.config = cmp.Or(o.config, vcap.New(o.base).AgentJSON())
	for _, c := range []struct {
		flag, value string
		allowed     []string
	}{{"-P", o.platform, []string{"ubuntu", "centos", "dummy"}}, {"-M", o.supervisor, []string{"monit", "dummy", "dummy-nats"}}} {
		if !contains(c.allowed, c.value) {
			fmt.Fprintf(stderr, "agent: %s is %q, want one of %q\n", c.flag, c.value, c.allowed)
			return o, cli.ExitFailed, false
		}
	}
	return o, cli.ExitOK, true
}

func contains(list []string, word string) bool {
	for _, w := range list {
		if w == word {
			return true
		}
	}
	return false
}

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
	limitHeap()
	notifier, err := unit.TakeNotifier()
	if err != nil {
		log.WithError(err).Warn("service manager cannot be notified")
	}
	kept, err := unit.TakeListener(monit.AlertsSocket)
	if err != nil {
		log.WithError(err).Warn("sockets of the service manager are not usable")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a, err := assemble(ctx, o, log, notifier)
	if err != nil {
		// Only a broken start configuration leads here; the service manager starts the agent again.
		v := engine.Verdict{State: status.Failed, Step: "start", Cause: err, Advice: "correct it; 'agent validate " + o.config + "' tells whether it is good"}
		bootstrap.Announcer{Root: "/", Log: log, Notify: (&status.ServiceLine{Send: notifier.Status, Log: log}).Show}.Failed(ctx, v)
		if err := record(o, v); err != nil {
			log.WithError(err).Warn("status not written")
		}
		if o.platform != "dummy" {
			untilChanged(ctx, o.config, startPause)
		}
		return cli.ExitFailed
	}
	a.openMails(ctx, kept)
	a.spawn(func() { loglevel.Toggle(ctx, toggles, a.log, a.rec) })
	return a.run(ctx, cancel, a.boot)
}

// startPause is how long an agent that cannot start waits before it exits: systemd would restart one that exits
// at once ten times a second, and fill journal and console. The service manager's own pause must be short, for
// an agent that is to be started again on purpose.
const startPause = 30 * time.Second

// untilChanged returns when the file has changed, or after a while.
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

// record puts the verdict of an agent that could not even be assembled into the status.
func record(o runOptions, v engine.Verdict) error {
	rec, err := openStatus(o, vcap.New(o.base))
	if err != nil {
		return err
	}
	// Without settings it is not known whether this agent has been ready before.
	return errors.Join(rec.Update(func(d *status.Document) { d.State, d.Verdict, d.First = status.Failed, v.Line(), true }), rec.Flush())
}

// app is the running agent.
type app struct {
	o           runOptions
	dirs        vcap.Dirs
	log         *logrus.Entry
	rec         *status.Recorder
	history     status.History
	notifier    unit.Notifier
	mails       *net.TCPListener // for monit's alerts; nil while another process has the port
	serviceLine *status.ServiceLine
	announcer   bootstrap.Announcer
	marker      bootstrap.ReadyMarker
	machine     *bootstrap.Machine
	dispatcher  *agent.Dispatcher
	bus         *agent.BusClient
	current     *store.Current
	disks       disks
	manager     services // nil on a dummy machine
	sshUsers    action.SSHUsers
	gauge       *vitals.Gauge
	supervisor  jobs.Supervisor
	alerts      *agent.Alerts
	firewall    *firewall.Firewall // nil on a dummy machine
	firewallOn  func() bool
	background  *sync.WaitGroup
	settingsDir func() vcap.Place
	agentID     func() string
	missing     string // features of the platform; see checkPlatform
	// monitManager runs monit: runit on jammy, else the manager. It is nil on a dummy machine.
	monitManager services
	// pendingStart is the Director's last start, while it is put to monit again.
	pendingStart *jobs.PendingStart
	// collections counts the long collections of logs, to name them.
	collections atomic.Int64
}

// run runs the agent until ctx ends or boot returns an error; cancel ends ctx, and with it everything that
// was begun when the agent was assembled.
func (a *app) run(ctx context.Context, cancel func(), boot func(context.Context) error) int {
	defer func() {
		cancel()
		a.background.Wait()
		if err := a.rec.Stop(); err != nil {
			a.log.WithError(err).Debug("status not written")
		}
	}()
	a.log.WithFields(logrus.Fields{"version": version, "supervisor": a.o.supervisor, "stemcell": a.etc("stemcell_version"), "stemcell_git_sha": a.etc("stemcell_git_sha1"), "base": a.dirs.Base()}).Info("agent starts")
	a.checkPlatform()
	if err := bootstrap.CheckBootOnce(a.dirs); err != nil {
		a.failed(ctx, engine.Verdict{State: status.Failed, Step: "boot-once", Cause: err}, false)
		<-ctx.Done()
		return cli.ExitFailed
	}
	a.spawn(func() {
		watchdog.Feed(ctx, cmp.Or(a.notifier.Watchdog()/3, alivePeriod), a.dispatcher, func() error { return errors.Join(a.notifier.Alive(), a.rec.Alive()) }, a.log)
	})
	if systemd, ok := a.monitManager.(interface {
		Warm(context.Context, ...string)
	}); ok {
		a.spawn(func() { systemd.Warm(ctx, monit.UnitName) })
	}
	a.spawn(func() { a.releasePortWhenReplaced(ctx) })
	if err := boot(ctx); err != nil && ctx.Err() == nil {
		a.log.WithError(err).Error("agent stops")
		return cli.ExitFailed
	}
	<-ctx.Done()
	a.log.Info("agent stops on a signal")
	if err := a.notifier.Stopping(); err != nil {
		a.log.WithError(err).Debug("service manager not notified")
	}
	// Upstream's exit code after a signal; the service manager starts it again either way.
	return cli.ExitFailed
}

// alivePeriod is how often an agent without a watchdog records that it runs.
const alivePeriod = 20 * time.Second

// programReplaced reports whether another file has the name of the program that runs.
func programReplaced() bool {
	path, err := os.Readlink(ownProgram)
	return err == nil && strings.HasSuffix(path, replacedMark)
}

// replacedMark is what the kernel appends to the name of a program whose file is not there any more.
const replacedMark = " (deleted)"

// releasePortWhenReplaced releases the alert port as soon as the agent's program file is replaced, since an agent that
// is killed later cannot, and at the latest when ctx ends. systemd keeps the socket of monit's alerts for the next
// process of the unit, whatever its program; cloudfoundry/bosh-agent opens the port itself, and exits if it cannot.
func (a *app) releasePortWhenReplaced(ctx context.Context) {
	path, err := os.Readlink(ownProgram)
	if err == nil {
		err = watch.Until(ctx, strings.TrimSuffix(path, replacedMark), a.releasePortIfReplaced)
	}
	switch {
	case err == nil:
		return
	case ctx.Err() == nil:
		a.log.WithError(err).Warn("that the agent's program is replaced is noticed only when the agent stops")
		<-ctx.Done()
	}
	_, _ = a.releasePortIfReplaced()
}

// releasePortIfReplaced releases the port if the agent's program was replaced, and reports whether it was. The port comes before the
// identity files: once these are gone, the port is free.
func (a *app) releasePortIfReplaced() (replaced bool, _ error) {
	if !programReplaced() {
		return false, nil
	}
	if err := a.notifier.Release(monit.AlertsSocket); err != nil {
		a.log.WithError(err).Warn("service manager keeps the port of monit's alerts")
	}
	a.withdrawIdentity()
	a.log.Info("the agent's program was replaced")
	return true, nil
}

// identity is the content of the files below instance that identify the agent to jobs and operators.
func (a *app) identity() map[string]string {
	return map[string]string{a.dirs.AgentVersion(): version, a.dirs.AgentSupervisor(): a.o.supervisor}
}

// showIdentity writes these files.
func (a *app) showIdentity() error {
	if err := os.MkdirAll(a.dirs.Instance(), 0o755); err != nil {
		return err
	}
	for path, content := range a.identity() {
		if _, err := atomicfile.WriteIfChanged(path, []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// withdrawIdentity removes them for a program that does not write them itself.
func (a *app) withdrawIdentity() {
	for path := range a.identity() {
		if err := atomicfile.Remove(path); err != nil {
			a.log.WithError(err).Debug("the instance still shows this version")
		}
	}
}

// spawn runs f in a goroutine; run waits for it.
func (a *app) spawn(f func()) { a.background.Go(f) }

// etc reads a file of the stemcell's identity, for the log only.
func (a *app) etc(name string) string {
	data, err := os.ReadFile(a.dirs.StemcellFile(name))
	if err != nil || len(data) == 0 {
		return "?"
	}
	return string(data)
}

// boot runs the boot table until the machine is ready.
func (a *app) boot(ctx context.Context) error {
	log := a.log.WithField("component", "boot")
	loop := bootstrap.Loop{
		Engine: &engine.Engine{Log: log, Status: a.rec, Notify: a.showStep, Boundary: boundary(a.dirs),
			Failing: func(v engine.Verdict) { a.failing(ctx, v) }},
		Machine: a.machine, Log: log, Go: a.spawn, Ready: a.ready, Retrying: a.dispatcher.Retrying}
	return loop.Run(ctx)
}

// showStep passes the current step on to the service manager, and to Directors that ping.
func (a *app) showStep(text string) {
	a.dispatcher.Waiting(strings.TrimPrefix(text, "STATUS="))
	a.serviceLine.ShowDelayed(text)
}

// showState passes on to the service manager what an agent that serves requests is, and how its bus is.
func (a *app) showState() {
	if d := a.rec.Snapshot(); d.Served() {
		a.serviceLine.Show(fmt.Sprintf("STATUS=%s; bus: %s", d.State, d.Bus))
	}
}

// lateDiskGrace is how long the Director of a new VM gets "restarting agent" instead of a verdict while a disk
// is missing. A Director deletes the VM after a verdict; cloudfoundry/bosh-agent never gives one, but exits,
// is restarted and looks again until the Director has waited for ten minutes.
const lateDiskGrace = 2 * time.Minute

// failed announces a verdict. The Director of a new VM gets it when no retry can succeed.
func (a *app) failed(ctx context.Context, v engine.Verdict, first bool) {
	line := v.Line()
	a.warnOfPlatform()
	if err := errors.Join(a.rec.Update(func(d *status.Document) { d.State, d.Verdict, d.First = status.Failed, line, first }), a.rec.Flush()); err != nil {
		a.log.WithError(err).Warn("status not written")
	}
	if first && errors.Is(v.Cause, device.ErrTimedOut) && time.Duration(a.rec.Now()) < lateDiskGrace {
		a.dispatcher.Waiting(line)
	} else {
		a.dispatcher.Failed(line, first)
		a.bus.AlertOnce(line)
	}
	a.announcer.Failed(ctx, v)
	a.spawn(func() { a.history.Keep(ctx, 0) })
}

// failing announces a failed step or an expired wait, and withdraws that when the step succeeds after all.
func (a *app) failing(ctx context.Context, v engine.Verdict) {
	if v.Cause == nil {
		a.dispatcher.Retrying()
		a.bus.ForgetAlert()
		return
	}
	a.failed(ctx, v, a.marker.First(a.agentID()))
}

// ready opens the gate: everything the Director relies on is set up.
func (a *app) ready(ctx context.Context, v engine.Verdict) error {
	tasks, err := task.Open(ctx, task.Options{Path: a.settingsDir().TaskRecord(),
		Log: a.log.WithField("component", "task")})
	if err != nil {
		a.log.WithError(err).Warn("the record of tasks is not usable; tasks do not survive a restart")
	}
	table, err := a.serve(ctx, tasks)
	if err != nil {
		return err
	}
	a.warnOfPlatform()
	// Before the first pong, so that its caller finds the status complete.
	after, changes := time.Duration(a.rec.Now()), 0
	if err := errors.Join(a.rec.Update(func(d *status.Document) {
		changes = d.Changes()
		d.Unchanged, d.ReadyNS = changes == 0, int64(after)
	}), a.rec.Flush()); err != nil {
		a.log.WithError(err).Warn("status not written")
	}
	a.dispatcher.Ready(table, tasks)
	a.bus.ForgetAlert()
	if err := a.showIdentity(); err != nil {
		a.log.WithError(err).Warn("the instance does not show the agent's version")
	}
	_, _ = a.releasePortIfReplaced() // it may have been replaced before these files were written
	if reason := a.machine.JobsWithheld(); reason != "" {
		a.showWithheld(reason)
		a.bus.AlertOnce(status.JobsWithheld + ": " + reason)
		a.spawn(func() { a.machine.AwaitStore(ctx) })
	}
	// After the first pong: a power cut in between only makes the next boot count as the first one
	// again.
	if err := a.marker.Set(a.agentID()); err != nil {
		a.log.WithError(err).Warn("ready marker not written")
	}
	a.log.WithFields(logrus.Fields{"state": string(v.State), "took": after.Round(100 * time.Microsecond).String(), "changes": changes}).Info("agent is ready")
	a.showState()
	a.announcer.Ready(v, after)
	a.spawn(func() {
		a.history.Keep(ctx, 0) // a power cut may come before the boot is over
		a.history.Keep(ctx, status.BootOver)
	})
	if err := a.notifier.Ready(); err != nil {
		a.log.WithError(err).Warn("service manager not notified")
	}
	return nil
}
