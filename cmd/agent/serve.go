package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os/user"
	"path/filepath"
	"sort"
	"strconv"
	"sync"

	"cambium/agent"
	"cambium/agent/action"
	"cambium/agent/task"
	"cambium/blobstore"
	"cambium/internal/blob"
	"cambium/internal/secret"
	"cambium/internal/status"
	"cambium/internal/vcap"
	"cambium/jobs"
	"cambium/jobs/bundle"
	"cambium/jobs/compile"
	"cambium/jobs/dummysupervisor"
	"cambium/jobs/logs"
	"cambium/jobs/monit"
	"cambium/jobs/script"
	"cambium/platform/host"
	"cambium/platform/network"
	"cambium/platform/vitals"
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
		// The machine can still be looked at and repaired; each use of the store says why not.
		a.log.WithError(err).Warn("blobstore is not usable")
	} else {
		use()
	}
	owner := jobOwner()
	instance := &jobs.Instance{Dirs: a.dirs, Blobs: blobs, Supervisor: a.supervisor(), Owner: owner, Parallel: e.Settings.Env.Bosh.Parallel,
		Root: "/", Log: a.log.WithField("component", "jobs")}
	if err := errors.Join(instance.Sweep(), blobs.Sweep()); err != nil {
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
		SSH:            &action.SSH{Users: a.sshUsers, Root: "/", Networks: a.machine.Networks},
		DNS:            &action.DNS{Blobs: blobs, Hosts: hostsFile{a.machine.Host, a.agentID}, Records: a.dirs.DNSRecords(), GID: owner.GID},
		Neighbours:     neighbours{a.machine.Network},
		Power:          power{a.manager},
	}
	a.report(ctx, instance)
	log := a.log.WithField("component", "jobs")
	return action.Merge(action.Actions(deps), action.JobRows(action.JobDeps{
		Instance: instance,
		Scripts:  script.Runner{Dirs: a.dirs, Log: log},
		Compiler: compile.Compiler{Dirs: a.dirs, Blobs: blobs, Owner: owner, Parallel: instance.Parallel, Log: log},
		Logs:     logs.Collector{Dirs: a.dirs, Root: "/", Log: log, Progress: a.collection},
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
	for name, n := range a.machine.Networks() {
		found[name] = action.NetworkInForce{Dynamic: n.DHCP(), IP: n.IP, Netmask: n.Netmask, Gateway: n.Gateway}
	}
	return found, nil
}

// expiryFile is the file, beside the settings, that keeps a warning from being repeated.
const expiryFile = "cambium_expiry.json"

// report starts heartbeats and alerts.
func (a *app) report(ctx context.Context, instance *jobs.Instance) {
	log := a.log.WithField("component", "report")
	run := func(name string, f func(context.Context) error) {
		a.go_(func() {
			if err := f(ctx); err != nil && ctx.Err() == nil {
				log.WithError(err).WithField("part", name).Error("report ended")
			}
		})
	}
	alerts := agent.NewAlerts(a.bus, log)
	a.bus.onConnect(alerts.Wake)
	run("alerts", alerts.Run)
	run("heartbeats", agent.Heartbeats{Bus: a.bus, Jobs: instance, Vitals: a.vitals, Ready: a.dispatcher.Opened(), Connected: a.bus.connections(), Log: log}.Run)
	run("expiry", agent.Expiry{Bus: a.bus, Certificates: a.certificates, Connected: a.bus.connections(), Path: filepath.Join(a.place(), expiryFile), Log: log}.Run)
	if a.o.supervisor == "monit" && a.manager != nil {
		run("monit alerts", func(ctx context.Context) error {
			return monit.ListenAlerts(ctx, monit.AlertsAddress, log, func(m monit.Alert) {
				if alert, worth := agent.MonitAlert(m, a.addresses()); worth {
					alerts.Send(alert)
				}
			})
		})
	}
}

// certificates are those whose end somebody should be warned of.
func (a *app) certificates() []agent.Certificate {
	cert := a.current.Effective().Bus.Cert
	return []agent.Certificate{{Name: "bus client", PEM: cert.Certificate}, {Name: "bus authority", PEM: cert.CA}}
}

// addresses are all addresses of the machine's networks, sorted.
func (a *app) addresses() []string {
	var ips []string
	for _, n := range a.machine.Networks() {
		if n.IP != "" {
			ips = append(ips, n.IP)
		}
	}
	sort.Strings(ips)
	return ips
}

// supervisor is who runs the jobs' processes.
func (a *app) supervisor() jobs.Supervisor {
	switch a.o.supervisor {
	case "dummy":
		return &dummysupervisor.Dummy{}
	case "dummy-nats":
		return &dummysupervisor.Dummy{StatusFile: filepath.Join(a.dirs.Bosh(), "dummy-nats-job-supervisor-status.json")}
	}
	client := &monit.Client{URL: monit.DefaultURL, UserFile: a.dirs.MonitUser(), Daemon: monit.Unit{Services: a.manager, Name: monitUnit}}
	return monit.Supervisor{Client: client}
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

// blobs is the blobstore in use, which update_settings may replace at any time.
type blobs struct {
	dirs vcap.Dirs
	log  *logrus.Entry

	mu    sync.RWMutex
	store *blobstore.Store
	err   error // why there is none
}

// Prepare checks a store; the function it returns puts it into service.
func (b *blobs) Prepare(s settings.Blobstore) (func(), error) {
	store, err := blobstore.New(blobstore.Options{Provider: s.Provider, Options: s.Options, Dirs: b.dirs, Log: b.log})
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.store == nil {
		b.err = err
	}
	if err != nil {
		return nil, err
	}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.store, b.err = store, nil
	}, nil
}

func (b *blobs) current() (*blobstore.Store, error) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if b.store == nil && b.err == nil {
		return nil, errors.New("there is no blobstore")
	}
	return b.store, b.err
}

func (b *blobs) Open(ctx context.Context, ref blob.Ref) (io.ReadCloser, error) {
	store, err := b.current()
	if err != nil {
		return nil, err
	}
	return store.Open(ctx, ref)
}

func (b *blobs) Remove(id string) error {
	store, err := b.current()
	if err != nil {
		return err
	}
	return store.Remove(id)
}

func (b *blobs) Sweep() error {
	store, err := b.current()
	if err != nil {
		return nil // said when it was prepared
	}
	return store.Sweep()
}

// Put stores what the agent has produced.
func (b *blobs) Put(ctx context.Context, produce func(io.Writer) error) (id, digest string, err error) {
	store, err := b.current()
	if err != nil {
		return "", "", err
	}
	return store.Put(ctx, produce)
}

// PutSigned stores it at a signed URL.
func (b *blobs) PutSigned(ctx context.Context, url secret.URL, headers map[string]secret.String, produce func(io.Writer) error) (string, error) {
	store, err := b.current()
	if err != nil {
		return "", err
	}
	return store.PutSigned(ctx, url, headers, produce)
}

// WriteChecked stores what the Director uploads.
func (b *blobs) WriteChecked(id string, content io.Reader, digest blob.Digest) error {
	store, err := b.current()
	if err != nil {
		return err
	}
	return store.Sensitive().WriteChecked(id, content, digest)
}

type certificates struct{ host *host.Host }

func (c certificates) Trust(ctx context.Context, pem string) error {
	if c.host == nil {
		return nil
	}
	_, err := c.host.Converge(ctx, host.Desired{Certificates: &pem})
	return err
}

type hostsFile struct {
	host    *host.Host
	agentID func() string
}

func (h hostsFile) WriteHosts(ctx context.Context, records [][2]string) error {
	content, _, err := host.HostsFile(h.agentID(), records)
	if err != nil || h.host == nil {
		return err
	}
	_, err = h.host.Converge(ctx, host.Desired{Hosts: content})
	return err
}

type neighbours struct{ kernel *network.Kernel }

func (n neighbours) Flush(ctx context.Context, address netip.Addr) error {
	if n.kernel == nil {
		return nil
	}
	return n.kernel.FlushNeighbours(ctx, []netip.Addr{address})
}

type power struct{ manager services }

func (p power) Off(ctx context.Context) error {
	if p.manager == nil {
		return nil
	}
	return p.manager.PowerOff(ctx)
}

// vitals measures the machine.
func (a *app) vitals(ctx context.Context) (any, error) {
	if a.gauge == nil {
		return vitals.Vitals{Load: []string{"0.00", "0.00", "0.00"}}, nil
	}
	return a.gauge.Measure(ctx)
}

// noUsers is a machine without accounts of its own: a dummy.
type noUsers struct{}

func (noUsers) Create(context.Context, string, string) error    { return nil }
func (noUsers) Remove(context.Context, func(string) bool) error { return nil }
