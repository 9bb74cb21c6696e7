package network

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"

	"cambium/platform/unit"
)

// daemon is systemd-networkd as this package needs it. ReconfigureLink is not used: it removes and
// re-adds every address of the link, and a reload does all that is needed.
type daemon interface {
	probe() Networkd
	// reload reads the files again; links whose file changed are brought in line without
	// removing what both versions name. It returns when the given links have settled.
	reload(ctx context.Context, settle map[int]Settle) error
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

// systemBus calls the real networkd, through godbus: go-systemd has no calls for networkd. Each call
// has its own connection: calls are rare, and a restart of the bus in between must not matter.
type systemBus struct{ k *Kernel }

// connect starts the bus where systemd has not started it yet: the agent may be earlier.
func (b systemBus) connect(ctx context.Context) (*dbus.Conn, error) {
	root := b.k.path()
	conn, err := unit.SystemBus(ctx, root)
	if !errors.Is(err, unit.ErrAbsent) || !unit.Booted(root) {
		return conn, err
	}
	systemd := &unit.Systemd{Root: root, Log: b.k.Log}
	defer systemd.Close()
	if err := systemd.Start(ctx, "dbus.service"); err != nil {
		return nil, err
	}
	return unit.SystemBus(ctx, root)
}

// probe looks at files only: early in a boot neither the bus nor networkd may be up, and that
// must not change what is decided.
func (b systemBus) probe() (found Networkd) {
	_, err := os.Lstat(b.k.path(pendingFile))
	found.ReloadPending = err == nil
	if !unit.Booted(b.k.path()) {
		return found
	}
	for _, sign := range []string{
		"run/systemd/netif/state", // it runs
		"etc/systemd/system/" + networkdAlias, "run/systemd/system/" + networkdAlias, "usr/lib/systemd/system/" + networkdAlias,
	} {
		if _, err := os.Lstat(b.k.path(sign)); err == nil {
			found.Available = true
		}
	}
	for _, dir := range []string{"usr/lib/systemd", "usr/lib/*/systemd", "lib/systemd"} {
		libraries, _ := filepath.Glob(b.k.path(dir, "libsystemd-shared-*.so")) // the pattern is well formed
		for _, l := range libraries {
			found.Version = max(found.Version, systemdVersion(filepath.Base(l)))
		}
	}
	return found
}

// systemdVersion reads the number in the name of systemd's own library, such as
// "libsystemd-shared-255.so" or "libsystemd-shared-252.39-1.so".
func systemdVersion(library string) int {
	text := strings.TrimPrefix(library, "libsystemd-shared-")
	end := strings.IndexFunc(text, func(r rune) bool { return r < '0' || r > '9' })
	if end < 0 {
		return 0
	}
	version, err := strconv.Atoi(text[:end])
	if err != nil {
		return 0
	}
	return version
}

// settleLimit bounds the wait for networkd to act on links that lose a lease. It does so within
// milliseconds; a networkd that does not must not delay everything else.
const settleLimit = 2 * time.Second

// sameLimit is for networkd to set an address again that it had by lease. It calls the link
// configured only after it has given up on router advertisements, so there is no signal to wait
// for; it takes some 50 ms.
const sameLimit = 250 * time.Millisecond

// reload returns before networkd has acted on the files. That does not matter for a static link,
// on which networkd finds everything as its file says. But a lease that is about to be released
// would be mistaken for a new one by a caller that looks right away.
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
	b.settle(ctx, waiting, signals)
	return nil
}

// settle waits until networkd has begun to act on each link, which is when it has released the
// lease, and a little longer for an address that it sets again.
func (b systemBus) settle(ctx context.Context, waiting map[dbus.ObjectPath]Settle, signals <-chan *dbus.Signal) {
	limit := time.NewTimer(settleLimit)
	defer limit.Stop()
	begun := map[dbus.ObjectPath]bool{}
	for len(waiting) > 0 {
		select {
		case signal, open := <-signals:
			if !open {
				return // the connection is lost; waiting for the lease is bounded elsewhere
			}
			link, ours := waiting[signal.Path]
			state := administrativeState(signal)
			if !ours || state == "" {
				continue
			}
			if !link.Same || begun[signal.Path] && (state == "configured" || state == "failed") {
				delete(waiting, signal.Path)
				continue
			}
			if begun[signal.Path] = true; len(begun) >= len(waiting) {
				limit.Reset(sameLimit)
			}
		case <-limit.C:
			if len(begun) < len(waiting) {
				b.k.Log.WithField("links", len(waiting)).Warn("networkd has not acted on its files yet")
			}
			return
		case <-ctx.Done():
			return
		}
	}
}

func (b systemBus) running(ctx context.Context, conn *dbus.Conn) (owned bool) {
	err := conn.BusObject().CallWithContext(ctx, "org.freedesktop.DBus.NameHasOwner", 0, networkdName).Store(&owned)
	return err == nil && owned
}

// administrativeState reads a link's new state from a signal; empty if the signal has none.
func administrativeState(s *dbus.Signal) string {
	if s == nil || len(s.Body) < 2 {
		return ""
	}
	changed, _ := s.Body[1].(map[string]dbus.Variant)
	state, _ := changed["AdministrativeState"].Value().(string)
	return state
}
