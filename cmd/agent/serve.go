package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"sort"
	"strconv"

	"cambium/agent"
	"cambium/agent/action"
	"cambium/agent/dummy"
	"cambium/agent/task"
	"cambium/internal/status"
	"cambium/internal/vcap"
	"cambium/jobs"
	"cambium/jobs/bundle"
	"cambium/jobs/compile"
	"cambium/jobs/dummysupervisor"
	"cambium/jobs/logs"
	"cambium/jobs/monit"
	"cambium/jobs/script"
	"cambium/settings"

	"github.com/sirupsen/logrus"
)

// disks is what actions do with disks, on a real machine or a dummy one.
type disks interface {
	action.Disks
	action.Associations
}

// serve makes the table of actions, and starts what reports to the Health Monitor.
func (a *app) serve(ctx context.Context, tasks *task.Tasks) (action.Table, error) {
	e := a.current.Effective()
	blobs := &blobs{dirs: a.dirs, log: a.log.WithField("component", "blobstore")}
	if use, err := blobs.Prepare(e.Blobstore); err != nil {
		// The agent serves without a blobstore, so that the machine can be inspected and repaired;
		// each use of the store fails with the reason.
		a.log.WithError(err).Warn("blobstore is not usable")
	} else {
		use()
	}
	owner := jobOwner()
	instance := &jobs.Instance{Dirs: a.dirs, Blobs: blobs, Supervisor: a.supervisor, Pending: a.pendingStart, Owner: owner, Parallel: e.Settings.Env.Bosh.Parallel,
		Root: "/", Log: a.log.WithField("component", "jobs")}
	collector := logs.Collector{Dirs: a.dirs, Root: "/", Log: a.log.WithField("component", "jobs"), Journal: logs.Journal, Progress: a.collection}
	if err := errors.Join(instance.Sweep(), blobs.Sweep(), collector.Sweep()); err != nil {
		a.log.WithError(err).Warn("leftovers were not removed")
	}
	deps := action.Deps{
		Tasks: tasks,
		State: action.StateSource{AgentID: e.Settings.AgentID, VMName: func() string { return a.current.Effective().Settings.VM.Name }, Jobs: instance, Vitals: a.vitals},
		Disks: a.disks,
		UpdateSettings: action.UpdateSettings{Store: a.current, Bus: a.bus, Blobstore: blobs, Certificates: certificates{a.machine.Host},
			Disks: a.disks},
		SensitiveBlobs: blobs,
		Removable:      []string{a.dirs.Tmp(), "/tmp", "/var/tmp"},
		SSH:            &action.SSH{Users: a.sshUsers, HostKey: a.hostKey, Networks: a.networks},
		DNS:            &action.DNS{Blobs: blobs, Hosts: a.hostsFile(), Records: a.dirs.DNSRecords(), GID: owner.GID},
		Neighbors:      neighbors{ours: a.machine.Network != nil},
		Power:          power{a.manager},
	}
	a.report(ctx, instance)
	log := a.log.WithField("component", "jobs")
	return action.Merge(action.Actions(deps), action.JobRows(action.JobDeps{
		Instance: instance,
		Scripts:  script.Runner{Dirs: a.dirs, Log: log},
		Compiler: compile.Compiler{Dirs: a.dirs, Blobs: blobs, Owner: owner, Parallel: instance.Parallel, Log: log},
		Logs:     collector,
		Uploads:  blobs,
		Networks: a.networksInForce,
		SayShutdown: func(ctx context.Context) {
			if err := a.bus.Publish(ctx, "hm", "shutdown", nil); err != nil {
				log.WithError(err).Warn("Health Monitor not told of the shutdown")
			}
		},
	}))
}

// collection puts the progress of one long collection of logs into the status. Several can be under
// way.
func (a *app) collection() func(logs.Progress) {
	name := fmt.Sprintf("collect_logs %d", a.collections.Add(1))
	return func(p logs.Progress) {
		if err := a.rec.SetProgress(name, status.Progress{Text: p.String(), Done: p.Bytes, Files: p.Files, Rate: p.Rate()}); err != nil {
			a.log.WithError(err).Debug("status not written")
		}
	}
}

// networksInForce are the settings' networks with the addresses that leases turned out to have.
func (a *app) networksInForce(context.Context) (map[string]action.NetworkInForce, error) {
	found := map[string]action.NetworkInForce{}
	for name, n := range a.networks() {
		found[name] = action.NetworkInForce{Dynamic: n.DHCP(), IP: n.IP, Netmask: n.Netmask, Gateway: n.Gateway}
	}
	return found, nil
}

// networks are the settings' networks with the addresses that leases turned out to have.
func (a *app) networks() map[string]settings.Network {
	if a.o.platform != "dummy" {
		return a.machine.Networks()
	}
	found, err := dummy.Networks(a.dirs, a.machine.Networks())
	if err != nil {
		a.log.WithError(err).Warn("networks without the address of the dummy's lease")
	}
	return found
}

// hostKey is the public key of the machine's sshd.
func (a *app) hostKey() (string, error) {
	if a.o.platform == "dummy" {
		return dummy.HostKey, nil
	}
	return action.HostKeyBelow("/")
}

// hostsFile is where the names of the deployment go.
func (a *app) hostsFile() action.HostsFile {
	if a.o.platform == "dummy" {
		return dummy.Hosts{Dirs: a.dirs}
	}
	return hostsFile{a.machine.Host, a.agentID}
}

// report starts heartbeats and alerts.
func (a *app) report(ctx context.Context, instance *jobs.Instance) {
	log := a.log.WithField("component", "report")
	run := func(name string, f func(context.Context) error) {
		a.spawn(func() {
			if err := f(ctx); err != nil && ctx.Err() == nil {
				log.WithError(err).WithField("report", name).Error("report ended")
			}
		})
	}
	a.bus.OnConnect(a.alerts.Wake)
	run("alerts", a.alerts.Run)
	run("heartbeats", agent.Heartbeats{Bus: a.bus, Jobs: instance, Vitals: a.vitals, Ready: a.dispatcher.Opened(), Connected: a.bus.Connections(), Sent: func() { _ = a.rec.Mark(status.MarkHeartbeat) }, Log: log}.Run)
	run("expiry", agent.Expiry{Bus: a.bus, Certificates: a.certificates, Connected: a.bus.Connections(),
		Path: a.settingsDir().CertificateWarnings(), Log: log}.Run)
	if a.o.supervisor == "monit" && a.manager != nil {
		run("monit alerts", func(ctx context.Context) error {
			return monit.Alerts{Log: log, Listener: a.mails, Keep: a.keepMails, Unserved: a.mailsUnserved}.Run(ctx, monit.AlertsAddress, func(m monit.Alert) {
				if instance.Expected(m) {
					log.WithFields(logrus.Fields{"service": m.Service, "event": m.Event}).Debug("alert dropped: the agent itself starts or stops the service")
					return
				}
				a.monitAlert(m)
			})
		})
	}
}

// monitAlert passes an alert of monit on to the Health Monitor.
func (a *app) monitAlert(m monit.Alert) {
	if alert, worth := agent.MonitAlert(m, a.addresses()); worth {
		a.alerts.Send(alert)
	}
}

// openMails opens the port of monit's alerts before a job can take it, or takes over the socket that systemd has kept
// since an earlier process of the agent.
func (a *app) openMails(ctx context.Context, kept net.Listener) {
	if a.o.supervisor != "monit" || a.manager == nil {
		return
	}
	if listener, ok := kept.(*net.TCPListener); ok {
		a.mails = listener
		return
	}
	listener, err := monit.ListenAlerts(ctx, monit.AlertsAddress)
	if err != nil {
		return // Alerts.Run retries, and reports the failure
	}
	a.mails = listener
	a.keepMails(listener)
}

// keepMails lets systemd keep the port while the agent is started again.
func (a *app) keepMails(listener *net.TCPListener) {
	if err := a.notifier.Keep(monit.AlertsSocket, listener); err != nil {
		a.log.WithError(err).Warn("port of monit's alerts is not kept open during a restart of the agent")
	}
	_, _ = a.releasePortIfReplaced() // it may have been replaced before systemd kept the port
}

// mailsUnserved puts into the status, and once into the log, why monit's mails do not arrive.
func (a *app) mailsUnserved(why error) {
	text := ""
	if why != nil {
		text = why.Error()
	}
	changed, err := a.rec.SetWarning("alerts of monit do not arrive", text)
	if err != nil {
		a.log.WithError(err).Warn("status not written")
	}
	if changed && why != nil {
		a.log.WithError(why).Warn("alerts of monit do not arrive; trying again each second")
	}
}

// certificates are those whose expiry operators are warned of.
func (a *app) certificates() []agent.Certificate {
	cert := a.current.Effective().Bus.Cert
	return []agent.Certificate{{Name: "bus client", PEM: cert.Certificate}, {Name: "bus authority", PEM: cert.CA}}
}

// addresses are all addresses of the machine's networks, sorted.
func (a *app) addresses() []string {
	var ips []string
	for _, n := range a.networks() {
		if n.IP != "" {
			ips = append(ips, n.IP)
		}
	}
	sort.Strings(ips)
	return ips
}

// newSupervisor is what runs the processes of the jobs.
func (a *app) newSupervisor() jobs.Supervisor {
	switch a.o.supervisor {
	case "dummy":
		return &dummysupervisor.Dummy{}
	case "dummy-nats":
		return &dummysupervisor.Dummy{Applied: a.applied}
	}
	return jobs.Withheld{Supervisor: monit.Supervisor{Client: monitClient(a.dirs, a.monitManager)}, Reason: a.machine.JobsWithheld,
		Running: func(ctx context.Context) bool { return a.monitManager.Running(ctx, monit.UnitName) }}
}

// applied reports whether a spec has been applied to the machine.
func (a *app) applied() bool {
	_, err := os.Stat(a.dirs.Spec())
	return err == nil
}

func monitClient(dirs vcap.Dirs, manager services) *monit.Client {
	return &monit.Client{URL: monit.DefaultURL, UserFile: dirs.MonitUser(), JobFiles: dirs.MonitFiles(),
		Daemon: monit.Unit{Services: manager, Name: monit.UnitName}}
}

// jobOwner is root and the group vcap, or root alone where that group does not exist.
func jobOwner() bundle.Owner {
	if g, err := user.LookupGroup("vcap"); err == nil {
		if gid, err := strconv.Atoi(g.Gid); err == nil {
			return bundle.Owner{GID: gid}
		}
	}
	return bundle.Owner{}
}

// vitals measures the machine.
func (a *app) vitals(ctx context.Context) (any, error) {
	return a.gauge.Measure(ctx)
}
