package main

import (
	"context"
	"net/netip"

	"github.com/sirupsen/logrus"

	"cambium/blobstore"
	"cambium/internal/vcap"
	"cambium/platform"
	"cambium/platform/host"
	"cambium/platform/network/neighbor"
	"cambium/settings"
)

// The types below let actions use parts of the machine through the interfaces that they declare.
// A dummy machine lacks these parts; what is asked of them there succeeds without an effect.

// blobs is the blobstore in use.
type blobs struct {
	blobstore.Replaceable
	dirs vcap.Dirs
	log  *logrus.Entry
}

// Prepare checks the store that the settings describe; the function it returns puts it into use.
func (b *blobs) Prepare(s settings.Blobstore) (use func(), err error) {
	return b.Replaceable.Prepare(blobstore.Options{Provider: s.Provider, Options: s.Options, Dirs: b.dirs, Log: b.log})
}

type certificates struct{ host *host.Host }

func (c certificates) Trust(ctx context.Context, pem string) error {
	if c.host == nil {
		return nil
	}
	_, err := platform.Converge(ctx, c.host, host.Diff, host.Desired{Certificates: &pem})
	return err
}

type hostsFile struct {
	host    *host.Host
	agentID func() string
}

func (h hostsFile) WriteHosts(ctx context.Context, records [][2]string) error {
	content, _, err := host.HostsFile(h.agentID(), records)
	if err != nil {
		return err
	}
	_, err = platform.Converge(ctx, h.host, host.Diff, host.Desired{Hosts: content})
	return err
}

// neighbors flushes entries where the machine's network is ours.
type neighbors struct{ ours bool }

func (n neighbors) Flush(ctx context.Context, address netip.Addr) error {
	if !n.ours {
		return nil
	}
	return neighbor.Flush(ctx, []netip.Addr{address})
}

type power struct{ manager services }

func (p power) Off(ctx context.Context) error {
	if p.manager == nil {
		return nil
	}
	return p.manager.PowerOff(ctx)
}

// noUsers is a machine without accounts.
type noUsers struct{}

func (noUsers) Create(context.Context, string, string) error    { return nil }
func (noUsers) Remove(context.Context, func(string) bool) error { return nil }
