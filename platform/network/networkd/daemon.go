// Package networkd knows systemd-networkd: its .network files, its run-time state and its D-Bus interface. Package
// network decides what the files contain.
package networkd

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
	"github.com/sirupsen/logrus"

	"cambium/internal/atomicfile"
	"cambium/internal/vcap"
	"cambium/platform/unit"
)

// Daemon is the networkd of the machine below Root.
type Daemon struct {
	Root string // "/" if empty
	Log  *logrus.Entry
}

func (d Daemon) path(parts ...string) string {
	return filepath.Join(append([]string{"/", d.Root}, parts...)...)
}

// Status describes the daemon as observed.
type Status struct {
	// Available means that the daemon runs or is started by the first call.
	Available bool `json:"available"`
	// Version is systemd's; 0 if unknown.
	Version int `json:"version,omitempty"`
	// ReloadPending means that files were written, but the run ended before networkd was reloaded.
	ReloadPending bool `json:"reload_pending,omitempty"`
}

// AwaitedLink is a link that is not in its final state until networkd has acted on its file.
type AwaitedLink struct {
	Link string `json:"link"`
	// Same means that the lease's address is static from now on: networkd removes it once
	// more before it sets it itself.
	Same bool `json:"same,omitempty"`
}

// MarkPending records that networkd has to be reloaded. It is called before a file is written: if
// this run ends in between, the next one knows that networkd may have read an older file.
func (d Daemon) MarkPending() error {
	path := d.path(vcap.RunDir.NetworkdReload())
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	_, err := atomicfile.WriteIfChanged(path, nil, 0o644)
	return err
}

// ClearPending records that networkd has been reloaded.
func (d Daemon) ClearPending() error { return atomicfile.Remove(d.path(vcap.RunDir.NetworkdReload())) }

// Pending reports whether networkd has to be reloaded because of files of an earlier run.
func (d Daemon) Pending() bool {
	_, err := os.Lstat(d.path(vcap.RunDir.NetworkdReload()))
	return err == nil
}

const (
	busName   = "org.freedesktop.network1"
	busObject = "/org/freedesktop/network1"
	// busAlias exists when networkd is enabled: then the bus can start it.
	busAlias = "dbus-org.freedesktop.network1.service"
)

// connect starts the bus where systemd has not started it yet: the agent may be earlier. Each call
// has its own connection: calls are rare, and a restart of the bus in between must not matter. It
// is one of godbus, because go-systemd has no calls for networkd.
func (d Daemon) connect(ctx context.Context) (*dbus.Conn, error) {
	root := d.path()
	conn, err := unit.SystemBus(ctx, root)
	if !errors.Is(err, unit.ErrAbsent) || !unit.Booted(root) {
		return conn, err
	}
	systemd := &unit.Systemd{Root: root, Log: d.Log}
	defer systemd.Close()
	if err := systemd.Start(ctx, "dbus.service"); err != nil {
		return nil, err
	}
	return unit.SystemBus(ctx, root)
}

// Probe looks at files only: early in a boot neither the bus nor networkd may be up, and that
// must not change what is decided.
func (d Daemon) Probe() (found Status) {
	found.ReloadPending = d.Pending()
	if !unit.Booted(d.path()) {
		return found
	}
	for _, sign := range []string{
		"run/systemd/netif/state", // it runs
		"etc/systemd/system/" + busAlias, "run/systemd/system/" + busAlias, "usr/lib/systemd/system/" + busAlias,
	} {
		if _, err := os.Lstat(d.path(sign)); err == nil {
			found.Available = true
		}
	}
	for _, dir := range []string{"usr/lib/systemd", "usr/lib/*/systemd", "lib/systemd"} {
		libraries, _ := filepath.Glob(d.path(dir, "libsystemd-shared-*.so")) // the pattern is well formed
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

// releaseLimit bounds the wait for networkd to release the leases of links. It does so within
// milliseconds; a networkd that does not must not delay everything else.
const releaseLimit = 2 * time.Second

// readdLimit bounds the wait for networkd to set an address again that it had by lease. It calls the link configured
// only after it has given up on router advertisements, so there is no signal to wait for; it takes some 50 ms.
const readdLimit = 250 * time.Millisecond

// Reload has networkd read its files again: it brings the links whose file changed in line without
// removing what both versions name. ReconfigureLink is not used: it removes and re-adds every
// address of the link.
//
// networkd answers before it has acted on the files. That does not matter for a static link, on
// which networkd finds everything as its file says. But a lease that is about to be released would
// be mistaken for a new one by a caller that looks right away, so Reload returns when the links in
// links, by index, have settled.
func (d Daemon) Reload(ctx context.Context, links map[int]AwaitedLink) error {
	conn, err := d.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	manager := conn.Object(busName, busObject)

	waiting := map[dbus.ObjectPath]AwaitedLink{}
	signals := make(chan *dbus.Signal, 256)
	if len(links) > 0 && d.running(ctx, conn) {
		conn.Signal(signals)
		if err := conn.AddMatchSignalContext(ctx, dbus.WithMatchInterface("org.freedesktop.DBus.Properties"),
			dbus.WithMatchMember("PropertiesChanged"), dbus.WithMatchPathNamespace(busObject+"/link")); err != nil {
			return fmt.Errorf("watch networkd: %w", err)
		}
		for index, link := range links {
			var name string
			var path dbus.ObjectPath
			if manager.CallWithContext(ctx, busName+".Manager.GetLinkByIndex", 0, int32(index)).Store(&name, &path) == nil {
				waiting[path] = link
			}
		}
	}
	if err := manager.CallWithContext(ctx, busName+".Manager.Reload", 0).Err; err != nil {
		return err
	}
	d.awaitLinks(ctx, waiting, signals)
	return nil
}

// awaitLinks waits until networkd has begun to act on each link, and so has released the lease, and a little longer for
// an address that it sets again.
func (d Daemon) awaitLinks(ctx context.Context, waiting map[dbus.ObjectPath]AwaitedLink, signals <-chan *dbus.Signal) {
	limit := time.NewTimer(releaseLimit)
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
			done := state == "configured" || state == "failed"
			if !ours || state == "" || done && !begun[signal.Path] {
				continue // a final state before networkd has begun is that of the old file
			}
			if !link.Same || done {
				delete(waiting, signal.Path)
				continue
			}
			if begun[signal.Path] = true; len(begun) >= len(waiting) {
				limit.Reset(readdLimit)
			}
		case <-limit.C:
			if len(begun) < len(waiting) {
				d.Log.WithField("links", len(waiting)).Warn("networkd has not applied its files yet")
			}
			return
		case <-ctx.Done():
			return
		}
	}
}

func (d Daemon) running(ctx context.Context, conn *dbus.Conn) (owned bool) {
	err := conn.BusObject().CallWithContext(ctx, "org.freedesktop.DBus.NameHasOwner", 0, busName).Store(&owned)
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
