// Package networkd reads and writes systemd-networkd's .network files, reads its run-time state and calls it over
// D-Bus. Package network decides what the files contain.
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

// Daemon is the networkd of the machine whose files are below Root.
type Daemon struct {
	Root string // "/" if empty
	Log  *logrus.Entry
}

func (d Daemon) path(parts ...string) string {
	return filepath.Join(append([]string{"/", d.Root}, parts...)...)
}

// Status describes the daemon as observed.
type Status struct {
	// Available is set if the daemon is running, or is started by the first call.
	Available bool `json:"available"`
	// Version is systemd's version, or 0 if unknown.
	Version int `json:"version,omitempty"`
	// ReloadPending is set if an earlier run has written files, but not reloaded networkd.
	ReloadPending bool `json:"reload_pending,omitempty"`
}

// AwaitedLink is a link on which networkd releases a lease when it reloads its files.
type AwaitedLink struct {
	Link string `json:"link"`
	// Same is set if the leased address becomes static: networkd then removes it and adds it again.
	Same bool `json:"same,omitempty"`
}

// MarkPending records that networkd has to be reloaded. It is called before a file is written: if this run ends in
// between, the next one knows that networkd may have read an older file.
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

// Pending reports whether an earlier run has left networkd to be reloaded.
func (d Daemon) Pending() bool {
	_, err := os.Lstat(d.path(vcap.RunDir.NetworkdReload()))
	return err == nil
}

const (
	busName   = "org.freedesktop.network1"
	busObject = "/org/freedesktop/network1"
	// busAlias exists if networkd is enabled, so that D-Bus can start it.
	busAlias = "dbus-org.freedesktop.network1.service"
)

// connect connects to D-Bus. It starts the bus if systemd has not done so yet, since the agent may start earlier. Each
// call has its own connection: calls are rare, and the bus may be restarted in between. It uses godbus, since
// go-systemd has no calls for networkd.
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

// Probe determines the status from files only: early in a boot, the bus and networkd may not be running yet, which must
// not change decisions.
func (d Daemon) Probe() (found Status) {
	found.ReloadPending = d.Pending()
	if !unit.Booted(d.path()) {
		return found
	}
	for _, sign := range []string{
		"run/systemd/netif/state", // networkd is running
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

// systemdVersion extracts the version from the name of systemd's shared library, such as "libsystemd-shared-255.so" or
// "libsystemd-shared-252.39-1.so".
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

// releaseLimit bounds the wait for networkd to release leases. It normally does so within milliseconds, and must not
// delay everything else otherwise.
const releaseLimit = 2 * time.Second

// readdLimit bounds the wait for networkd to add a leased address again as a static one, which takes some 50 ms. No
// signal marks that: networkd reports the link as configured only after it has given up on router advertisements.
const readdLimit = 250 * time.Millisecond

// Reload makes networkd read its files again. It reconfigures the links whose files have changed, without removing what
// both versions contain. ReconfigureLink would remove and re-add every address of a link.
//
// networkd replies before it has applied the files. That does not matter for a static link, where everything is already
// as in its file. But a caller could mistake a lease that is about to be released for a new one, so Reload waits for
// links, by index.
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
			if manager.CallWithContext(ctx, busName+".Manager.GetLinkByIndex", 0, int32(index)).
				Store(&name, &path) ==
				nil {
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

// awaitLinks waits until networkd has begun to reconfigure each link, and so has released its lease, and shortly for an
// address that it adds again.
func (d Daemon) awaitLinks(ctx context.Context, waiting map[dbus.ObjectPath]AwaitedLink, signals <-chan *dbus.Signal) {
	limit := time.NewTimer(releaseLimit)
	defer limit.Stop()
	begun := map[dbus.ObjectPath]bool{}
	for len(waiting) > 0 {
		select {
		case signal, open := <-signals:
			if !open {
				return // the connection is lost; the wait for the lease is bounded elsewhere
			}
			link, ours := waiting[signal.Path]
			state := administrativeState(signal)
			done := state == "configured" || state == "failed"
			if !ours || state == "" || done && !begun[signal.Path] {
				continue // a final state before that belongs to the old file
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

// administrativeState returns a link's new state in a signal, or "".
func administrativeState(s *dbus.Signal) string {
	if s == nil || len(s.Body) < 2 {
		return ""
	}
	changed, _ := s.Body[1].(map[string]dbus.Variant)
	state, _ := changed["AdministrativeState"].Value().(string)
	return state
}
