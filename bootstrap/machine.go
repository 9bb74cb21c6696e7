package bootstrap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/internal/secret"
	"cambium/internal/status"
	"cambium/internal/vcap"
	"cambium/plan"
	"cambium/platform/host"
	"cambium/platform/network"
	"cambium/platform/network/confirm"
	"cambium/platform/network/neighbour"
	"cambium/platform/network/wait"
	"cambium/platform/tree"
	"cambium/platform/user"
	"cambium/settings"
	"cambium/settings/agentjson"
	"cambium/settings/store"
	"cambium/storage"
)

// linkPatience is how long a NIC that the settings name may take to appear.
const linkPatience = 30 * time.Second

// Settings are the settings in force.
type Settings interface {
	Load(context.Context) (store.Loaded, error)
	Effective() settings.Effective
	HostsConfigured() bool
	SetHostsConfigured() error
}

// Users changes accounts.
type Users interface {
	Converge(ctx context.Context, want user.Desired) ([]user.Change, error)
}

// Disks prepares what the settings name.
type Disks interface {
	SetupRaw(ctx context.Context, hints []settings.DiskHint) ([]storage.Change, error)
	Setup(ctx context.Context, hint *settings.DiskHint, swapMiB *uint64, agentID string) ([]storage.Change, error)
	GrowRoot(ctx context.Context, ephemeral *settings.DiskHint) ([]storage.Change, error)
	MountLast(ctx context.Context) (changes []storage.Change, warning string, err error)
	// CheckKnown refuses associations of unknown disks, and disks that nothing accounts for.
	CheckKnown(associations []settings.DiskAssociation) error
	Associate(ctx context.Context, associations []settings.DiskAssociation) ([]storage.Change, error)
}

// Machine is what the boot's steps work on. A part that is nil is one the machine does not have.
type Machine struct {
	Dirs    vcap.Dirs
	Options agentjson.Linux
	Log     *logrus.Entry
	Status  *status.Recorder

	Settings  Settings
	PublicKey func(context.Context) (string, error)
	Network   *network.Kernel
	SetDNS    func(ctx context.Context, servers []netip.Addr) error
	Host      *host.Host
	Tree      *tree.Kernel
	Users     Users
	// Firewall builds the rules for monit; those for the bus follow its addresses.
	Firewall        func(ctx context.Context) error
	Disks           Disks
	JobDirectories  func(ctx context.Context) error
	StartSupervisor func(ctx context.Context) error
	// StartBus starts the bus client unless it runs, and does not wait for a connection.
	StartBus func(ctx context.Context, e settings.Effective) error
	// First reports whether this agent has never been ready on this machine.
	First func() bool
	// Beside runs f until it returns or the agent ends.
	Beside func(f func(context.Context))

	mu       sync.Mutex // guards what follows
	loading  *Span      // the step that asks the sources, while it does
	resolved map[string]settings.Network
	changes  int
	later    []func(context.Context)
	overdue  *time.Timer // of later
}

// Later leaves for after the verdict what nobody waits for: it would take the processor from what somebody does.
// No longer than a step lets others go first, though.
func (m *Machine) Later(f func(context.Context)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.later = append(m.later, f); len(m.later) == 1 {
		m.overdue = time.AfterFunc(yieldLimit, m.Settle)
	}
}

// Settle does what was left for later.
func (m *Machine) Settle() {
	m.mu.Lock()
	due := m.later
	if m.later = nil; m.overdue != nil {
		m.overdue.Stop()
	}
	m.mu.Unlock()
	for _, f := range due {
		m.Beside(f)
	}
}

// Networks are the settings' networks with the addresses that leases turned out to have.
func (m *Machine) Networks() map[string]settings.Network {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.resolved == nil {
		return m.Settings.Effective().Settings.Networks
	}
	return m.resolved
}

// Changes is how many changes the last boot made to the machine.
func (m *Machine) Changes() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changes
}

// Reset forgets the changes of an earlier run of the table.
func (m *Machine) Reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.changes = 0
}

// Count adds changes that a part of the machine made by itself. A boot that was said to have
// changed nothing has changed something then: background steps end later.
func (m *Machine) Count(changes int) {
	if changes == 0 {
		return
	}
	m.mu.Lock()
	m.changes += changes
	m.mu.Unlock()
	if err := m.Status.Update(func(d *status.Document) { d.Unchanged = false }); err != nil {
		m.Log.WithError(err).Warn("status not written")
	}
}

// changed records what a step did as its evidence.
func changed[C fmt.Stringer](m *Machine, s *Span, changes []C) {
	m.Count(len(changes))
	for _, c := range changes {
		s.Evidence("%s", c)
	}
}

// runtimeHook is the stemcell's program that prepares devices.
const runtimeHook = "bosh-agent-rc"

func (m *Machine) runRuntimeHook(ctx context.Context, s *Span) error {
	if !m.Host.HasHook(runtimeHook) {
		return m.converge(ctx, s, tree.Devices)
	}
	return m.runHook(ctx, s, runtimeHook)
}

func (m *Machine) runHook(ctx context.Context, s *Span, name string) error {
	done, err := m.Host.Converge(ctx, host.Desired{Hooks: []string{name}})
	changed(m, s, done)
	return err
}

// SettingsWait is told what the sources wait for, and reports whether a boot waits with them;
// outside a boot nobody needs to know.
func (m *Machine) SettingsWait(text string) bool {
	m.mu.Lock()
	span := m.loading
	m.mu.Unlock()
	if span != nil {
		span.Waiting(text)
	}
	return span != nil
}

func (m *Machine) setLoading(s *Span) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.loading = s
}

func (m *Machine) loadSettings(ctx context.Context, s *Span) error {
	m.setLoading(s)
	loaded, err := m.Settings.Load(ctx)
	m.setLoading(nil)
	if err != nil {
		return err
	}
	e := m.Settings.Effective()
	described := status.Settings{From: loaded.From, Cached: loaded.Cached}
	if loaded.Why != nil {
		described.Why = OneLine(loaded.Why.Error())
	}
	first := m.First != nil && m.First()
	if err := m.Status.Update(func(d *status.Document) { d.AgentID, d.Settings, d.First = e.Settings.AgentID, &described, first }); err != nil {
		m.Log.WithError(err).Warn("status not written")
	}
	s.Evidence("from %s", loaded.From)
	switch {
	case loaded.Spent:
		s.Evidence("the sources were cleared when the settings were cached")
	case loaded.Cached:
		s.Warn("the sources failed and the cached copy serves: %s", described.Why)
	}
	if loaded.NotCached != nil {
		s.Warn("settings are not cached: %s", loaded.NotCached)
	}
	if loaded.Foreign != "" {
		s.Warn("found the state of another agent, %s, and set it aside", loaded.Foreign)
	}
	for _, entry := range loaded.Report.Entries {
		s.Evidence("%s", entry)
	}
	return nil
}

func (m *Machine) setPasswords(ctx context.Context, s *Span) error {
	bosh := m.Settings.Effective().Settings.Env.Bosh
	hashes := map[string]secret.String{"vcap": bosh.Password}
	if !bosh.KeepRootPassword {
		hashes["root"] = bosh.Password
	}
	done, err := m.Users.Converge(ctx, user.Desired{Passwords: hashes})
	changed(m, s, done)
	return err
}

func (m *Machine) wantsIPv6() bool {
	if m.Host == nil {
		return false
	}
	s := m.Settings.Effective().Settings
	if s.Env.Bosh.IPv6Enable {
		return true
	}
	for _, n := range s.Networks {
		if ip, err := netip.ParseAddr(n.IP); err == nil && ip.Is6() && !n.VIP() {
			return true
		}
	}
	return false
}

func (m *Machine) enableIPv6(ctx context.Context, s *Span) error {
	done, err := m.Host.Converge(ctx, host.Desired{IPv6: true})
	changed(m, s, done)
	return err
}

// setHostname also writes the hosts file, once per agent id: releases and sync_dns edit it
// later.
func (m *Machine) setHostname(ctx context.Context, s *Span) error {
	id := m.Settings.Effective().Settings.AgentID
	want := host.Desired{Hostname: id}
	configured := m.Settings.HostsConfigured()
	if !configured {
		hosts, _, err := host.HostsFile(id, nil)
		if err != nil {
			return err
		}
		want.Hosts = hosts
	}
	done, err := m.Host.Converge(ctx, want)
	changed(m, s, done)
	if err != nil || configured {
		return err
	}
	return m.Settings.SetHostsConfigured()
}

func (m *Machine) setFirewall(ctx context.Context, _ *Span) error { return m.Firewall(ctx) }

func (m *Machine) setUpNetwork(ctx context.Context, s *Span) error {
	e := m.Settings.Effective()
	nets := e.Settings.Networks
	have, err := m.Network.Observe(ctx)
	if err != nil {
		return err
	}
	want, warnings, planErr := plan.Network(nets, have)
	if planErr != nil {
		// A NIC may still be on its way; a hardware address that never comes is then the error.
		s.Waiting("links with the settings' hardware addresses")
		waiting, cancel := context.WithTimeout(ctx, linkPatience)
		err := wait.Links(waiting, m.Network, plan.MACs(nets))
		cancel()
		if err == nil {
			if have, err = m.Network.Observe(ctx); err != nil {
				return err
			}
			want, warnings, planErr = plan.Network(nets, have)
		}
		s.Waiting("")
	}
	for _, w := range warnings {
		s.Warn("%s", w)
	}
	want.AwaitIPv6 = busOverIPv6(e)
	changes, diffErr := network.Diff(have, want)
	changed(m, s, changes)
	defer s.WaitingSoon(awaited(want))()
	back, err := m.applyNetwork(ctx, s, have, want, changes)
	if err := errors.Join(err, planErr, diffErr); err != nil {
		// What could be applied may be enough to tell the Director what could not.
		return errors.Join(err, m.StartBus(ctx, e))
	}
	if back {
		return m.resolve(ctx, s, nets, want) // what was wanted will not come
	}
	later, err := wait.Ready(ctx, m.Network, want)
	for _, w := range later {
		s.Warn("%s", w)
	}
	if err != nil {
		return errors.Join(err, m.StartBus(ctx, e))
	}
	if !want.Preconfigured {
		m.Beside(func(ctx context.Context) {
			for _, w := range neighbour.Probe(ctx, m.Network, want) {
				m.Log.WithField("warning", w).Warn("network probe warns")
			}
		})
		m.Beside(func(ctx context.Context) { neighbour.Announce(ctx, m.Network, want) })
	}
	return m.resolve(ctx, s, nets, want)
}

// awaited names what a network is not ready without.
func awaited(want network.Desired) string {
	var leases, links []string
	for _, l := range want.Links {
		links = append(links, l.Name)
		if len(l.Leases) > 0 {
			leases = append(leases, l.Name)
		}
	}
	switch {
	case len(leases) > 0:
		return "an address from DHCP on " + strings.Join(leases, ", ")
	case len(links) > 0:
		return "addresses and routes on " + strings.Join(links, ", ")
	}
	return "the network"
}

// applyNetwork takes a change back that cuts the machine off, unless it is the first one or
// what was there belonged to another agent. It reports whether it did.
func (m *Machine) applyNetwork(ctx context.Context, s *Span, have network.State, want network.Desired, changes []network.Change) (back bool, err error) {
	if m.First == nil || m.First() {
		now, later := network.Split(changes)
		if len(later) > 0 {
			defer m.Later(func(ctx context.Context) {
				if _, err := m.Network.Apply(ctx, later); err != nil {
					m.Log.WithError(err).Warn("networkd does not know the network yet")
				}
			})
		}
		_, err := m.Network.Apply(ctx, now)
		return false, err
	}
	outcome, err := confirm.Apply(ctx, m.Network, have, want, changes, confirm.Options{SameAgent: true})
	if outcome.RolledBack {
		s.Warn("the new network configuration was taken back: %s", outcome.Reason)
	}
	return outcome.RolledBack, err
}

// resolve finds the addresses of dynamic networks, once per change rather than at each reading.
func (m *Machine) resolve(ctx context.Context, s *Span, nets map[string]settings.Network, want network.Desired) error {
	found, err := wait.Resolve(ctx, m.Network, want.Dynamic)
	if err != nil {
		s.Warn("%s", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.resolved = plan.Resolved(nets, found)
	return nil
}

// busOverIPv6 reports whether a bus server is named by an IPv6 address.
func busOverIPv6(e settings.Effective) bool {
	for _, u := range e.Bus.URLs {
		if parsed, err := url.Parse(u.Reveal()); err == nil {
			if ip, err := netip.ParseAddr(parsed.Hostname()); err == nil && ip.Is6() {
				return true
			}
		}
	}
	return false
}

func (m *Machine) setDNS(ctx context.Context, s *Span) error {
	servers, warnings := plan.DNS(m.Settings.Effective().Settings.Networks)
	for _, w := range warnings {
		s.Warn("%s", w)
	}
	return m.SetDNS(ctx, servers)
}

func (m *Machine) startBus(ctx context.Context, _ *Span) error {
	return m.StartBus(ctx, m.Settings.Effective())
}

func (m *Machine) envKeys() []string {
	return m.Settings.Effective().Settings.Env.Bosh.AuthorizedKeys
}

func (m *Machine) hasEnvKeys() bool { return m.Users != nil && len(m.envKeys()) > 0 }

// authorizeEnvKeys waits for no network. The IaaS's key of an earlier boot stays until it is known anew.
func (m *Machine) authorizeEnvKeys(ctx context.Context, s *Span) error {
	return m.authorize(ctx, s, m.envKeys(), true)
}

func (m *Machine) authorizeKeys(ctx context.Context, s *Span) error {
	keys := append([]string(nil), m.envKeys()...)
	fromIaaS, err := m.PublicKey(ctx)
	if err != nil {
		s.Evidence("no SSH key from the sources, what is there stays: %s", OneLine(err.Error()))
		return nil
	}
	if fromIaaS != "" {
		keys = append(keys, fromIaaS)
	}
	if len(keys) == 0 {
		return nil
	}
	return m.authorize(ctx, s, keys, false)
}

func (m *Machine) authorize(ctx context.Context, s *Span, keys []string, keep bool) error {
	done, err := m.Users.Converge(ctx, user.Desired{Keys: map[string][]string{"vcap": keys}, KeepKeys: keep})
	changed(m, s, done)
	return err
}

func (m *Machine) hasRawDisks() bool {
	return m.Disks != nil && !m.Options.SkipDiskSetup && len(m.Settings.Effective().Settings.Disks.RawEphemeral) > 0
}

func (m *Machine) setUpRawDisks(ctx context.Context, s *Span) error {
	defer s.WaitingSoon("the raw ephemeral disks")()
	return m.countDisks(m.Disks.SetupRaw(ctx, m.Settings.Effective().Settings.Disks.RawEphemeral))
}

func (m *Machine) setUpEphemeralDisk(ctx context.Context, span *Span) error {
	s := m.Settings.Effective().Settings
	if hint := s.Disks.Ephemeral; hint != nil {
		defer span.WaitingSoon("the disk " + cmp.Or(hint.Path, hint.DeviceID, hint.VolumeID, hint.LUN))()
	}
	return m.countDisks(m.Disks.Setup(ctx, s.Disks.Ephemeral, s.Env.Bosh.SwapSizeMiB, s.AgentID))
}

func (m *Machine) growRootDisk(ctx context.Context, _ *Span) error {
	return m.countDisks(m.Disks.GrowRoot(ctx, m.Settings.Effective().Settings.Disks.Ephemeral))
}

// countDisks counts the changes that an operation on disks returns.
func (m *Machine) countDisks(changes []storage.Change, err error) error {
	m.Count(len(changes))
	return err
}

// mountPersistentDisk also renews the names of associated disks. Without their devices jobs that
// use them fail by themselves and say so, hence only a warning.
func (m *Machine) mountPersistentDisk(ctx context.Context, s *Span) error {
	defer s.WaitingSoon("the persistent disk")()
	changes, warning, err := m.Disks.MountLast(ctx)
	if err := m.countDisks(changes, err); err != nil {
		return err
	}
	if warning != "" {
		s.Warn("%s", warning)
	}
	associations := m.Settings.Effective().Associations
	if err := m.Disks.CheckKnown(associations); err != nil {
		return err
	}
	if err := m.countDisks(m.Disks.Associate(ctx, associations)); err != nil {
		s.Warn("%s", err)
	}
	return nil
}

func (m *Machine) treeOptions() tree.Options {
	bosh := m.Settings.Effective().Settings.Env.Bosh
	return tree.Options{UseDefaultTmpDir: m.Options.UseDefaultTmpDir, JobDirTmpfs: bosh.JobDirTmpfs,
		JobDirSize: bosh.JobDirTmpfsSize, RunDirSize: bosh.RunDirTmpfsSize, SettingsTmpfs: bosh.SettingsTmpfs}
}

func (m *Machine) converge(ctx context.Context, s *Span, groups ...string) error {
	done, err := m.Tree.Converge(ctx, tree.Select(tree.Table(m.Dirs, m.treeOptions()), groups...))
	changed(m, s, done)
	return err
}

// makeDirectories takes seriously what jobs cannot live without; the rest hardens the machine
// and only warns. From then on the agent and what it starts have a place for temporary files in
// which programs can be executed, unlike /tmp.
func (m *Machine) makeDirectories(ctx context.Context, s *Span) error {
	for _, group := range []string{tree.SharedMemory, tree.Home} {
		if err := m.converge(ctx, s, group); err != nil {
			s.Warn("%s", err)
		}
	}
	if err := m.converge(ctx, s, tree.Log, tree.Opt, tree.Data, tree.Temp, tree.CanRestart, tree.Blobs, tree.Store, tree.SSH, tree.Associations); err != nil {
		return err
	}
	return os.Setenv("TMPDIR", m.Dirs.Tmp())
}

func (m *Machine) setTimeServers(ctx context.Context, s *Span) error {
	done, err := m.Host.Converge(ctx, host.Desired{TimeServers: m.Settings.Effective().NTP})
	changed(m, s, done)
	return err
}

func (m *Machine) startAuditing(ctx context.Context, s *Span) error {
	return m.runHook(ctx, s, "bosh-start-logging-and-auditing")
}

// inMemory reports a machine whose secrets do not survive a reboot.
func (m *Machine) inMemory() bool {
	bosh := m.Settings.Effective().Settings.Env.Bosh
	return m.Tree != nil && (bosh.SettingsTmpfs || bosh.JobDirTmpfs)
}

func (m *Machine) armBootOnce(context.Context, *Span) error { return ArmBootOnce(m.Dirs) }

func (m *Machine) makeJobDirectories(ctx context.Context, _ *Span) error {
	return m.JobDirectories(ctx)
}

func (m *Machine) startSupervisor(ctx context.Context, _ *Span) error {
	return m.StartSupervisor(ctx)
}

func (m *Machine) removeDevTools(ctx context.Context, s *Span) error {
	bosh := m.Settings.Effective().Settings.Env.Bosh
	var want host.Desired
	for _, list := range []struct {
		wanted bool
		file   string
	}{{bosh.RemoveDevTools, "dev_tools_file_list"}, {bosh.RemoveStaticLibraries, "static_libraries_list"}} {
		if list.wanted {
			want.RemoveListed = append(want.RemoveListed, filepath.Join(m.Dirs.BoshEtc(), list.file))
		}
	}
	done, err := m.Host.Converge(ctx, want)
	changed(m, s, done)
	return err
}
