package bootstrap

import (
	"context"
	"net/netip"
	"time"

	"cambium/bootstrap/engine"
	"cambium/internal/secret"
	"cambium/platform/firewall"
	"cambium/platform/host"
	"cambium/platform/tree"
	"cambium/platform/user"
)

// The stemcell's own programs.
const (
	runtimeHook = "bosh-agent-rc"
	auditHook   = "bosh-start-logging-and-auditing"
)

func (m *Machine) planRuntimeHook(ctx context.Context, f *engine.Forecast) ([]engine.Change, error) {
	if !m.Host.HasHook(runtimeHook) {
		return m.planTree(ctx, f, m.directories(tree.Devices))
	}
	return m.planHost(ctx, host.Desired{Hooks: []string{runtimeHook}})
}

func (m *Machine) runRuntimeHook(ctx context.Context, s *engine.Span) error {
	if !m.Host.HasHook(runtimeHook) {
		return converge(ctx, s, m.Tree, m.directories(tree.Devices))
	}
	return m.convergeHost(ctx, s, host.Desired{Hooks: []string{runtimeHook}})
}

func (m *Machine) hasMedia() bool { return m.Host != nil && (m.OnMedia || m.Host.HasDrives()) }

func (m *Machine) planMedia(ctx context.Context, _ *engine.Forecast) ([]engine.Change, error) {
	return m.planHost(ctx, host.Desired{RootMedia: true})
}

func (m *Machine) keepMediaToRoot(ctx context.Context, s *engine.Span) error {
	return m.convergeHost(ctx, s, host.Desired{RootMedia: true})
}

func (m *Machine) planAuditing(ctx context.Context, _ *engine.Forecast) ([]engine.Change, error) {
	return m.planHost(ctx, host.Desired{Hooks: []string{auditHook}})
}

func (m *Machine) startAuditing(ctx context.Context, s *engine.Span) error {
	return m.convergeHost(ctx, s, host.Desired{Hooks: []string{auditHook}})
}

// hostChanges marks the programs and services among the changes.
func hostChanges(changes []host.Change) []engine.Change {
	all := engine.Changes(changes)
	for i, c := range changes {
		switch c.Op {
		case host.OpRunHook, host.OpApplyUdevRules, host.OpRestartTimesyncd, host.OpReloadChrony:
			all[i].Runs = true
		}
	}
	return all
}

func (m *Machine) planHost(ctx context.Context, want host.Desired) ([]engine.Change, error) {
	changes, err := m.Host.Plan(ctx, want)
	return hostChanges(changes), err
}

func (m *Machine) convergeHost(ctx context.Context, s *engine.Span, want host.Desired) error {
	changes, err := m.Host.Converge(ctx, want)
	s.Changed(hostChanges(changes)...)
	return err
}

func (m *Machine) passwords() user.Desired {
	bosh := m.Settings.Effective().Settings.Env.Bosh
	hashes := map[string]secret.String{"vcap": bosh.Password}
	if !bosh.KeepRootPassword {
		hashes["root"] = bosh.Password
	}
	return user.Desired{Passwords: hashes}
}

func (m *Machine) planPasswords(ctx context.Context, _ *engine.Forecast) ([]engine.Change, error) {
	return planDomain(ctx, m.Users, m.passwords())
}

func (m *Machine) setPasswords(ctx context.Context, s *engine.Span) error {
	return converge(ctx, s, m.Users, m.passwords())
}

func (m *Machine) envKeys() []string {
	return m.Settings.Effective().Settings.Env.Bosh.AuthorizedKeys
}

func (m *Machine) hasEnvKeys() bool { return m.Users != nil && len(m.envKeys()) > 0 }

// envKeysFirst needs no network. The IaaS's key of an earlier boot stays until a source has
// answered.
func (m *Machine) envKeysFirst() user.Desired {
	return user.Desired{Keys: map[string][]string{"vcap": m.envKeys()}, KeepKeys: true}
}

func (m *Machine) planEnvKeys(ctx context.Context, _ *engine.Forecast) ([]engine.Change, error) {
	return planDomain(ctx, m.Users, m.envKeysFirst())
}

func (m *Machine) authorizeEnvKeys(ctx context.Context, s *engine.Span) error {
	return converge(ctx, s, m.Users, m.envKeysFirst())
}

// keysWith returns all authorized keys of vcap.
func (m *Machine) keysWith(fromIaaS string) user.Desired {
	keys := append([]string(nil), m.envKeys()...)
	if fromIaaS != "" {
		keys = append(keys, fromIaaS)
	}
	return user.Desired{Keys: map[string][]string{"vcap": keys}}
}

// planKeys lets the question for the IaaS's key take no more than half of the time there is.
func (m *Machine) planKeys(ctx context.Context, f *engine.Forecast) ([]engine.Change, error) {
	asking, cancel := ctx, context.CancelFunc(func() {})
	if deadline, limited := ctx.Deadline(); limited {
		asking, cancel = context.WithTimeout(ctx, time.Until(deadline)/2)
	}
	key, err := m.PublicKey(asking)
	cancel()
	if err != nil {
		f.Warn("no SSH key from the sources now, authorized keys may change: %s", err)
		return nil, nil
	}
	want := m.keysWith(key)
	if len(want.Keys["vcap"]) == 0 {
		return nil, nil
	}
	changes, err := m.Users.PlanAfter(ctx, m.envKeysFirst(), want)
	return engine.Changes(changes), err
}

func (m *Machine) authorizeKeys(ctx context.Context, s *engine.Span) error {
	key, err := m.PublicKey(ctx)
	if err != nil {
		s.Evidence("no SSH key from the sources, what is there stays: %s", engine.OneLine(err.Error()))
		return nil
	}
	want := m.keysWith(key)
	if len(want.Keys["vcap"]) == 0 {
		return nil
	}
	return converge(ctx, s, m.Users, want)
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

func (m *Machine) planIPv6(ctx context.Context, _ *engine.Forecast) ([]engine.Change, error) {
	return m.planHost(ctx, host.Desired{IPv6: true})
}

func (m *Machine) enableIPv6(ctx context.Context, s *engine.Span) error {
	return m.convergeHost(ctx, s, host.Desired{IPv6: true})
}

// names are the host name and, once per agent id, the hosts file: releases and sync_dns edit it later.
func (m *Machine) names() (want host.Desired, err error) {
	want.Hostname = m.Settings.Effective().Settings.AgentID
	if !m.Settings.HostsConfigured() {
		want.Hosts, _, err = host.HostsFile(want.Hostname, nil)
	}
	return want, err
}

func (m *Machine) planHostname(ctx context.Context, _ *engine.Forecast) ([]engine.Change, error) {
	want, err := m.names()
	if err != nil {
		return nil, err
	}
	return m.planHost(ctx, want)
}

func (m *Machine) setHostname(ctx context.Context, s *engine.Span) error {
	want, err := m.names()
	if err != nil {
		return err
	}
	if err := m.convergeHost(ctx, s, want); err != nil || want.Hosts == nil {
		return err
	}
	return m.Settings.SetHostsConfigured()
}

// monitRules keep jobs away from monit; the rules for the bus follow its addresses.
func (m *Machine) monitRules() firewall.Desired {
	return firewall.Desired{Off: !m.Settings.Effective().Firewall(m.Options.Firewall), Monit: !m.Options.UseMonitIptablesFirewall}
}

func (m *Machine) planFirewall(ctx context.Context, _ *engine.Forecast) ([]engine.Change, error) {
	return planDomain(ctx, m.Firewall, m.monitRules())
}

func (m *Machine) setFirewall(ctx context.Context, s *engine.Span) error {
	return converge(ctx, s, m.Firewall, m.monitRules())
}

func (m *Machine) timeServers() host.Desired {
	return host.Desired{TimeServers: m.Settings.Effective().NTP}
}

func (m *Machine) planTimeServers(ctx context.Context, _ *engine.Forecast) ([]engine.Change, error) {
	return m.planHost(ctx, m.timeServers())
}

func (m *Machine) setTimeServers(ctx context.Context, s *engine.Span) error {
	return m.convergeHost(ctx, s, m.timeServers())
}

func (m *Machine) unwantedTools() (want host.Desired) {
	bosh := m.Settings.Effective().Settings.Env.Bosh
	for _, list := range []struct {
		wanted bool
		file   string
	}{{bosh.RemoveDevTools, "dev_tools_file_list"}, {bosh.RemoveStaticLibraries, "static_libraries_list"}} {
		if list.wanted {
			want.RemoveListed = append(want.RemoveListed, m.Dirs.StemcellFile(list.file))
		}
	}
	return want
}

func (m *Machine) planDevTools(ctx context.Context, _ *engine.Forecast) ([]engine.Change, error) {
	return m.planHost(ctx, m.unwantedTools())
}

func (m *Machine) removeDevTools(ctx context.Context, s *engine.Span) error {
	return m.convergeHost(ctx, s, m.unwantedTools())
}
