package bootstrap

import (
	"context"
	"errors"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"cambium/bootstrap/engine"
	"cambium/desired"
	"cambium/internal/oneline"
	"cambium/internal/retry"
	"cambium/platform/host"
	"cambium/platform/network"
	"cambium/platform/network/confirm"
	"cambium/platform/network/neighbor"
	"cambium/platform/network/wait"
	"cambium/platform/resolver"
	"cambium/settings"
)

// linkTimeout bounds the wait for a NIC named in the settings.
const linkTimeout = 30 * time.Second

func (m *Machine) planNetwork(ctx context.Context, f *engine.Forecast) ([]engine.Change, error) {
	have, err := m.Network.Observe(ctx)
	if err != nil {
		return nil, err
	}
	if enablesIPv6(f.Planned()) {
		have.Links = slices.Clone(have.Links)
		for i := range have.Links {
			have.Links[i].IPv6Disabled = false
		}
	}
	want, warnings, planErr := desired.Network(m.Settings.Effective().Settings.Networks, have)
	for _, w := range warnings {
		f.Warn("%s", w)
	}
	changes, diffErr := network.Diff(have, want)
	return engine.Changes(changes), errors.Join(planErr, diffErr)
}

// enablesIPv6 reports whether a change enables IPv6 on all links: the kernel copies the value for all to each link.
func enablesIPv6(changes []engine.Change) bool {
	return slices.ContainsFunc(changes, func(c engine.Change) bool {
		detail, ok := c.Detail.(host.Change)
		return ok && detail.Op == host.OpSetSysctl && strings.HasSuffix(detail.Path, "/all/disable_ipv6")
	})
}

func (m *Machine) setUpNetwork(ctx context.Context, s *engine.Span) error {
	e := m.Settings.Effective()
	nets := e.Settings.Networks
	have, want, planErr, err := m.observeNetwork(ctx, s, nets)
	if err != nil {
		return err
	}
	want.AwaitIPv6 = busOverIPv6(e)
	changes, diffErr := network.Diff(have, want)
	defer s.WaitingSoon(awaitedOf(want))()
	back, err := m.applyNetwork(ctx, s, have, want, changes)
	if err := errors.Join(err, planErr, diffErr); err != nil {
		// The part that was applied may be enough to reach the Director and report the rest.
		return errors.Join(err, m.StartBus(ctx, e))
	}
	if back {
		return m.resolve(ctx, s, nets, want) // what was wanted will not come
	}
	late, err := wait.Ready(ctx, m.Network, want)
	for _, w := range late {
		s.Warn("%s", w)
	}
	if err != nil {
		return errors.Join(err, m.StartBus(ctx, e))
	}
	if !want.Preconfigured {
		m.Deferred.Go(func(ctx context.Context) { m.probeNetwork(ctx, want) })
		m.Deferred.Go(func(ctx context.Context) { neighbor.Announce(ctx, m.Network, want) })
	}
	return m.resolve(ctx, s, nets, want)
}

// duplicatePause is the interval at which a duplicate address is checked again, since no event announces its end.
const duplicatePause = time.Minute

// probeNetwork reports gateways that do not answer, and addresses that another machine uses, too. It checks such
// addresses again until no other machine uses them.
func (m *Machine) probeNetwork(ctx context.Context, want network.Desired) {
	duplicates, silent := neighbor.Probe(ctx, m.Network, want)
	for _, w := range silent {
		m.Log.WithField("warning", w).Warn("network probe warning")
	}
	for len(duplicates) > 0 && m.Duplicates != nil {
		m.Duplicates(strings.Join(duplicates, "; "))
		if retry.Sleep(ctx, duplicatePause) != nil {
			return
		}
		if duplicates, _ = neighbor.Probe(ctx, m.Network, want); len(duplicates) == 0 && ctx.Err() == nil {
			m.Duplicates("")
		}
	}
}

// observeNetwork waits for NICs that have not appeared yet. planErr reports networks in the settings that cannot be set
// up; the others still can.
func (m *Machine) observeNetwork(ctx context.Context, s *engine.Span,
	nets map[string]settings.Network) (have network.State, want network.Desired, planErr, err error) {
	have, err = m.Network.Observe(ctx)
	if err != nil {
		return have, want, nil, err
	}
	want, warnings, planErr := desired.Network(nets, have)
	if errors.Is(planErr, desired.ErrNoNIC) {
		s.Waiting("network cards: " + oneline.Of(planErr.Error()))
		waiting, cancel := context.WithTimeout(ctx, linkTimeout)
		// If a NIC does not come, the last planErr says so.
		_ = wait.Until(waiting, m.Network, func(have network.State) error {
			if _, _, err := desired.Network(nets, have); errors.Is(err, desired.ErrNoNIC) {
				return err
			}
			return nil
		})
		cancel()
		if ctx.Err() != nil {
			return have, want, nil, context.Cause(ctx)
		}
		if have, err = m.Network.Observe(ctx); err != nil {
			return have, want, nil, err
		}
		want, warnings, planErr = desired.Network(nets, have)
		s.Waiting("")
	}
	for _, w := range warnings {
		s.Warn("%s", w)
	}
	return have, want, planErr, nil
}

// awaitedOf describes what a network needs to be ready.
func awaitedOf(want network.Desired) string {
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

// applyNetwork applies the changes. It rolls them back if they cut the machine off, unless this is the first
// configuration, or the old one belonged to another agent. It reports whether it has rolled back.
func (m *Machine) applyNetwork(ctx context.Context, s *engine.Span, have network.State, want network.Desired,
	changes []network.Change) (back bool, err error) {
	if m.First == nil || m.First() {
		now, later := network.Split(changes)
		if len(later) > 0 {
			defer m.Deferred.UntilVerdict(func(ctx context.Context) {
				made, err := m.Network.Apply(ctx, later)
				s.Changed(engine.Changes(made)...)
				if err != nil {
					m.Log.WithError(err).Warn("networkd has not loaded the network configuration yet")
				}
			})
		}
		made, err := m.Network.Apply(ctx, now)
		s.Changed(engine.Changes(made)...)
		return false, err
	}
	outcome, err := confirm.Apply(ctx, m.Network, have, want, changes, confirm.Options{SameAgent: true})
	s.Changed(engine.Changes(outcome.Made)...)
	if outcome.RolledBack {
		s.Warn("the new network configuration was rolled back: %s", outcome.Reason)
	}
	return outcome.RolledBack, err
}

// resolve finds the addresses of dynamic networks, once after each change of the network.
func (m *Machine) resolve(ctx context.Context, s *engine.Span, nets map[string]settings.Network,
	want network.Desired) error {
	found, err := wait.Resolve(ctx, m.Network, want.Dynamic)
	if err != nil {
		s.Warn("%s", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.resolved = desired.FillAddresses(nets, found)
	return nil
}

// busOverIPv6 reports whether the URL of a bus server has an IPv6 address.
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

func (m *Machine) startBus(ctx context.Context, _ *engine.Span) error {
	return m.StartBus(ctx, m.Settings.Effective())
}

func (m *Machine) nameServers(_ context.Context, r engine.Report) ([]engine.Goal, error) {
	servers, warnings := desired.DNS(m.Settings.Effective().Settings.Networks)
	for _, w := range warnings {
		r.Warn("%s", w)
	}
	return []engine.Goal{goal(m.Resolver, resolver.Diff, resolver.Desired{Servers: servers}, nil)}, nil
}
