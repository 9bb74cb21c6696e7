package bootstrap

import (
	"context"
	"fmt"
	"net/netip"
	osuser "os/user"
	"slices"
	"strconv"

	"cambium/bootstrap/engine"
	"cambium/platform"
	"cambium/platform/firewall"
	"cambium/settings/agentjson"
)

// AsksMetadata records a metadata service or registry before the agent connects to it. Only the settings fetched from
// there can ask to close it, so the step firewall does that later.
func (m *Machine) AsksMetadata(server netip.AddrPort) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !slices.Contains(m.asked, server) {
		m.asked = append(m.asked, server)
	}
}

// CloseMetadata closes the recorded services at once if agent.json or the cached settings ask for it.
func (m *Machine) CloseMetadata(ctx context.Context) {
	m.closing.Lock()
	defer m.closing.Unlock()
	want, unknown := m.metadataAccess()
	if m.Firewall == nil || want.Open {
		return
	}
	made, err := platform.Converge(ctx, m.Firewall, firewall.Diff, firewall.Desired{Metadata: want})
	if span := engine.SpanOf(ctx); span != nil {
		span.Changed(engine.Changes(made)...)
	}
	if err != nil || len(unknown) > 0 {
		m.Log.WithError(err).WithField("reason", unknown).Debug("metadata services are not closed as wanted")
	}
}

// metadataAccess returns the wanted rules, and an error text for each user that does not exist.
func (m *Machine) metadataAccess() (want *firewall.Metadata, unknown []string) {
	e := m.Settings.Effective()
	if e.MetadataAccess(m.Linux.MetadataAccess) != agentjson.MetadataRoot {
		return &firewall.Metadata{Open: true}, nil
	}
	m.mu.Lock()
	want = &firewall.Metadata{Servers: slices.Concat(m.MetadataServers, m.asked)}
	m.mu.Unlock()
	for _, name := range e.MetadataUsers(m.Linux.MetadataUsers) {
		id, err := userID(name)
		if err != nil {
			unknown = append(unknown, err.Error())
			continue
		}
		want.Users = append(want.Users, id)
	}
	return want, unknown
}

// userID returns the uid of a user, given by name or number.
func userID(user string) (uint32, error) {
	number := user
	if found, err := osuser.Lookup(user); err == nil {
		number = found.Uid
	}
	id, err := strconv.ParseUint(number, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("metadata_users: there is no user %q", user)
	}
	return uint32(id), nil
}
