package bootstrap

import (
	"context"
	"net/netip"
	"time"

	"cambium/bootstrap/engine"
	"cambium/internal/oneline"
	"cambium/internal/secret"
	"cambium/platform/firewall"
	"cambium/platform/host"
	"cambium/platform/tree"
	"cambium/platform/user"
)

// Hooks of the stemcell.
const (
	runtimeHook = "bosh-agent-rc"
	auditHook   = "bosh-start-logging-and-auditing"
)

// hostIs returns a function that wants a fixed state of the host.
func (m *Machine) hostIs(want host.Desired) func(context.Context, engine.Report) ([]engine.Goal, error) {
	return func(context.Context, engine.Report) ([]engine.Goal, error) { return []engine.Goal{m.host(want)}, nil }
}

func (m *Machine) runtimeHook(context.Context, engine.Report) ([]engine.Goal, error) {
	if !m.Host.HasHook(runtimeHook) {
		return []engine.Goal{m.groups(tree.Devices)}, nil
	}
	return []engine.Goal{m.host(host.Desired{Hooks: []string{runtimeHook}})}, nil
}

func (m *Machine) hasMedia() bool { return m.Host != nil && (m.OnMedia || m.Host.HasDrives()) }

func (m *Machine) passwords(context.Context, engine.Report) ([]engine.Goal, error) {
	bosh := m.Settings.Effective().Settings.Env.Bosh
	hashes := map[string]secret.String{"vcap": bosh.Password}
	if !bosh.KeepRootPassword {
		hashes["root"] = bosh.Password
	}
	return []engine.Goal{m.users(user.Desired{Passwords: hashes})}, nil
}

func (m *Machine) envKeys() []string {
	return m.Settings.Effective().Settings.Env.Bosh.AuthorizedKeys
}

func (m *Machine) hasEnvKeys() bool { return m.Users != nil && len(m.envKeys()) > 0 }

// envKeysFirst wants the keys in the settings, for which no network is needed. It keeps the IaaS's key of an earlier
// boot until a source has answered.
func (m *Machine) envKeysFirst(context.Context, engine.Report) ([]engine.Goal, error) {
	return []engine.Goal{m.users(user.Desired{Keys: map[string][]string{"vcap": m.envKeys()}, KeepKeys: true})}, nil
}

// allKeys wants the keys in the settings and the IaaS's key. Asking for the latter may take at most half of the step's
// time.
func (m *Machine) allKeys(ctx context.Context, r engine.Report) ([]engine.Goal, error) {
	asking, cancel := ctx, context.CancelFunc(func() {})
	if deadline, limited := ctx.Deadline(); limited {
		asking, cancel = context.WithTimeout(ctx, time.Until(deadline)/2)
	}
	defer cancel()
	fromIaaS, err := m.PublicKey(asking)
	if err != nil {
		r.Evidence("no SSH key from the sources; authorized keys are left unchanged: %s", oneline.Of(err.Error()))
		return nil, nil
	}
	keys := append([]string(nil), m.envKeys()...)
	if fromIaaS != "" {
		keys = append(keys, fromIaaS)
	}
	if len(keys) == 0 {
		return nil, nil
	}
	return []engine.Goal{m.users(user.Desired{Keys: map[string][]string{"vcap": keys}})}, nil
}

func (m *Machine) wantsIPv6() bool {
	if m.Host == nil {
		return false
	}
	s := m.Settings.Effective().Settings
	if s.Env.Bosh.IPv6.Enable {
		return true
	}
	for _, n := range s.Networks {
		if ip, err := netip.ParseAddr(n.IP); err == nil && ip.Is6() && !n.VIP() {
			return true
		}
	}
	return false
}

// names wants the host name and, once per agent id, the hosts file, which releases and sync_dns edit later.
func (m *Machine) names(context.Context, engine.Report) (goals []engine.Goal, err error) {
	want := host.Desired{Hostname: m.Settings.Effective().Settings.AgentID}
	if !m.Settings.HostsConfigured() {
		want.Hosts, _, err = host.HostsFile(want.Hostname, nil)
	}
	return []engine.Goal{m.host(want)}, err
}

func (m *Machine) recordHosts(context.Context, *engine.Span) error {
	if m.Settings.HostsConfigured() {
		return nil
	}
	return m.Settings.SetHostsConfigured()
}

// firewallRules wants the rules that keep jobs away from monit and metadata services. The rules for the bus are updated
// with its addresses.
func (m *Machine) firewallRules(_ context.Context, r engine.Report) ([]engine.Goal, error) {
	metadata, unknown := m.metadataAccess()
	for _, text := range unknown {
		r.Warn("%s; it does not reach the metadata service", text)
	}
	want := firewall.Desired{Off: !m.Settings.Effective().Firewall(m.Linux.Firewall),
		Monit: !m.Linux.UseMonitIptablesFirewall, Metadata: metadata}
	return []engine.Goal{goal(m.Firewall, firewall.Diff, want, nil)}, nil
}

func (m *Machine) timeServers(context.Context, engine.Report) ([]engine.Goal, error) {
	return []engine.Goal{m.host(host.Desired{TimeServers: m.Settings.Effective().NTP})}, nil
}

func (m *Machine) withoutTools(context.Context, engine.Report) ([]engine.Goal, error) {
	var want host.Desired
	bosh := m.Settings.Effective().Settings.Env.Bosh
	for _, list := range []struct {
		wanted bool
		file   string
	}{{bosh.RemoveDevTools, "dev_tools_file_list"}, {bosh.RemoveStaticLibraries, "static_libraries_list"}} {
		if list.wanted {
			want.RemoveListed = append(want.RemoveListed, m.Dirs.StemcellFile(list.file))
		}
	}
	return []engine.Goal{m.host(want)}, nil
}
