package main

import (
	"context"
	"net/netip"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/blobstore"
	"cambium/bootstrap/engine"
	"cambium/internal/vcap"
	"cambium/platform"
	"cambium/platform/device"
	"cambium/platform/firewall"
	"cambium/platform/host"
	"cambium/platform/network/neighbor"
	"cambium/settings"
	"cambium/settings/agentjson"
	"cambium/settings/store"
)

// The types below let actions and the bus use parts of a real machine through the interfaces that they declare.

// announcingResolver shows in the step that looks for a disk that it waits for it.
type announcingResolver struct{ *device.Resolver }

func (r announcingResolver) Resolve(ctx context.Context, h device.Hint) (device.Device, error) {
	if span := engine.SpanOf(ctx); span != nil {
		defer span.WaitingSoon("the disk (" + h.String() + ")")()
	}
	return r.Resolver.Resolve(ctx, h)
}

func (r announcingResolver) InstanceStorage(ctx context.Context, count int) ([]device.Device, error) {
	if span := engine.SpanOf(ctx); span != nil {
		defer span.WaitingSoon("the raw ephemeral disks")()
	}
	return r.Resolver.InstanceStorage(ctx, count)
}

// showChange shows a change of a disk as a part of the step that makes it.
func showChange(ctx context.Context, what string) (made func()) {
	if span := engine.SpanOf(ctx); span != nil {
		return span.Part(what)
	}
	return func() {}
}

// blobs is the blobstore in use.
type blobs struct {
	blobstore.Store
	dirs vcap.Dirs
	log  *logrus.Entry
}

// Prepare checks the blobstore of the settings. Calling use switches to it.
func (b *blobs) Prepare(s settings.Blobstore) (use func(), err error) {
	return b.Store.Prepare(blobstore.Options{Provider: s.Provider, Options: s.Options, Dirs: b.dirs, Log: b.log})
}

type certificates struct{ host *host.Host }

func (c certificates) Trust(ctx context.Context, pem string) error {
	_, err := platform.Converge(ctx, c.host, host.Diff, host.Desired{Certificates: &pem})
	return err
}

type hostsFile struct {
	host    *host.Host
	current *store.Current
}

func (h hostsFile) WriteHosts(ctx context.Context, records [][2]string) error {
	content, _, err := host.HostsFile(h.current.Effective().Settings.AgentID, records)
	if err != nil {
		return err
	}
	_, err = platform.Converge(ctx, h.host, host.Diff, host.Desired{Hosts: content})
	return err
}

type neighbors struct{}

func (neighbors) Flush(ctx context.Context, address netip.Addr) error {
	return neighbor.Flush(ctx, []netip.Addr{address})
}

// follower updates the neighbor table and the firewall for the addresses of the bus servers.
type follower struct {
	firewall *firewall.Firewall
	linux    agentjson.Linux
	current  *store.Current
	log      *logrus.Entry
}

// follow flushes the neighbor entries of the bus servers, because a stale entry delays the reconnect by minutes after a
// Director has moved. It also updates the firewall rules for their addresses.
func (f follower) follow(ctx context.Context, servers []netip.AddrPort) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var ips []netip.Addr
	for _, s := range servers {
		ips = append(ips, s.Addr())
	}
	if err := neighbor.Flush(ctx, ips); err != nil {
		f.log.WithError(err).Debug("cannot flush neighbor entries")
	}
	if !f.current.Effective().Firewall(f.linux.Firewall) {
		return
	}
	// Servers that have not been tried yet get their rules too; slow name resolution must not delay
	// the connection.
	limited, done := context.WithTimeout(ctx, 500*time.Millisecond)
	defer done()
	all := append(f.firewall.Resolve(limited, f.current.Effective().Bus.URLs), servers...)
	if _, err := platform.Converge(ctx, f.firewall, firewall.Diff, firewall.Desired{NATS: all}); err != nil {
		f.log.WithError(err).Debug("cannot update the firewall for the bus servers")
	}
}
