package network

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"

	"cambium/platform/unit"
)

// daemon is systemd-networkd as this package needs it.
type daemon interface {
	probe(ctx context.Context) Networkd
	// reload reads the files again; links whose file changed are brought in line without
	// removing what both versions name. It returns when the given links have settled.
	reload(ctx context.Context, settle map[int]Settle) error
	// reconfigure starts one link over, dropping all its addresses: for DHCP links only.
	reconfigure(ctx context.Context, index int) error
}

func (k *Kernel) daemon() daemon {
	if k.networkd != nil {
		return k.networkd
	}
	return systemBus{k}
}

const (
	networkdName   = "org.freedesktop.network1"
	networkdObject = "/org/freedesktop/network1"
	// networkdAlias exists when networkd is enabled: then the bus can start it.
	networkdAlias = "dbus-org.freedesktop.network1.service"
)

// systemBus talks to the real networkd. Each call has its own connection: calls are rare, and a
// bus that went away in between must not matter.
type systemBus struct{ k *Kernel }

func (b systemBus) connect(ctx context.Context) (*dbus.Conn, error) {
	return unit.SystemBus(ctx, b.k.path())
}

func (b systemBus) probe(ctx context.Context) (found Networkd) {
	_, err := os.Lstat(b.k.path(pendingFile))
	found.ReloadPending = err == nil
	conn, err := b.connect(ctx)
	if err != nil {
		return found
	}
	defer conn.Close()
	found.Available = b.running(ctx, conn)
	if !found.Available {
		for _, dir := range []string{"etc/systemd/system", "run/systemd/system", "usr/lib/systemd/system"} {
			if _, err := os.Lstat(b.k.path(dir, networkdAlias)); err == nil {
				found.Available = true
			}
		}
	}
	version, err := conn.Object("org.freedesktop.systemd1", "/org/freedesktop/systemd1").GetProperty("org.freedesktop.systemd1.Manager.Version")
	if err == nil {
		text, _ := version.Value().(string)
		found.Version = systemdVersion(text)
	}
	return found
}

// systemdVersion reads the leading number of texts like "252.39-1~deb12u2" or "v255".
func systemdVersion(text string) int {
	text = strings.TrimPrefix(text, "v")
	end := slices.IndexFunc([]byte(text), func(b byte) bool { return b < '0' || b > '9' })
	if end >= 0 {
		text = text[:end]
	}
	version, err := strconv.Atoi(text)
	if err != nil {
		return 0
	}
	return version
}

// settleLimit bounds the wait for networkd to act on links that lose a lease. It does so within
// milliseconds; one that does not must not hold up everything else.
const settleLimit = 2 * time.Second

// reload returns before networkd has acted on the files. That does not matter for a static link,
// on which networkd finds everything as its file says. But a lease that is about to go would be
// taken for a new one by whoever looks right away.
func (b systemBus) reload(ctx context.Context, settle map[int]Settle) error {
	conn, err := b.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	manager := conn.Object(networkdName, networkdObject)

	waiting := map[dbus.ObjectPath]Settle{}
	signals := make(chan *dbus.Signal, 256)
	if len(settle) > 0 && b.running(ctx, conn) {
		conn.Signal(signals)
		if err := conn.AddMatchSignalContext(ctx, dbus.WithMatchInterface("org.freedesktop.DBus.Properties"),
			dbus.WithMatchMember("PropertiesChanged"), dbus.WithMatchPathNamespace(networkdObject+"/link")); err != nil {
			return fmt.Errorf("watch networkd: %w", err)
		}
		for index, link := range settle {
			var name string
			var path dbus.ObjectPath
			if manager.CallWithContext(ctx, networkdName+".Manager.GetLinkByIndex", 0, int32(index)).Store(&name, &path) == nil {
				waiting[path] = link
			}
		}
	}
	if err := manager.CallWithContext(ctx, networkdName+".Manager.Reload", 0).Err; err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	for begun := map[dbus.ObjectPath]bool{}; len(waiting) > 0; {
		select {
		case signal := <-signals:
			link, ours := waiting[signal.Path]
			state := administrativeState(signal)
			if !ours || state == "" {
				continue
			}
			if link.DHCP || begun[signal.Path] && (state == "configured" || state == "failed") {
				delete(waiting, signal.Path)
			}
			begun[signal.Path] = true
		case <-ctx.Done():
			b.k.Log.WithField("links", len(waiting)).Warn("networkd has not acted on its files yet")
			return nil
		}
	}
	return nil
}

func (b systemBus) running(ctx context.Context, conn *dbus.Conn) (owned bool) {
	err := conn.BusObject().CallWithContext(ctx, "org.freedesktop.DBus.NameHasOwner", 0, networkdName).Store(&owned)
	return err == nil && owned
}

// administrativeState reads a link's new state from a signal, if it tells one.
func administrativeState(s *dbus.Signal) string {
	if s == nil || len(s.Body) < 2 {
		return ""
	}
	changed, _ := s.Body[1].(map[string]dbus.Variant)
	state, _ := changed["AdministrativeState"].Value().(string)
	return state
}

func (b systemBus) reconfigure(ctx context.Context, index int) error {
	conn, err := b.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	return conn.Object(networkdName, networkdObject).CallWithContext(ctx, networkdName+".Manager.ReconfigureLink", 0, int32(index)).Err
}
