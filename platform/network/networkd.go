package network

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/godbus/dbus/v5"
)

// daemon is systemd-networkd as this package needs it.
type daemon interface {
	probe(ctx context.Context) Networkd
	// reload reads the files again; links whose file changed are brought in line without
	// removing what both versions name.
	reload(ctx context.Context) error
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
	return dbus.Connect("unix:path="+b.k.path("run/dbus/system_bus_socket"), dbus.WithContext(ctx))
}

func (b systemBus) probe(ctx context.Context) (found Networkd) {
	_, err := os.Lstat(b.k.path(pendingFile))
	found.ReloadPending = err == nil
	conn, err := b.connect(ctx)
	if err != nil {
		return found
	}
	defer conn.Close()
	if err := conn.BusObject().CallWithContext(ctx, "org.freedesktop.DBus.NameHasOwner", 0, networkdName).Store(&found.Available); err != nil {
		return found
	}
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

func (b systemBus) reload(ctx context.Context) error {
	return b.call(ctx, "Reload")
}

func (b systemBus) reconfigure(ctx context.Context, index int) error {
	return b.call(ctx, "ReconfigureLink", int32(index))
}

func (b systemBus) call(ctx context.Context, method string, args ...any) error {
	conn, err := b.connect(ctx)
	if err != nil {
		return fmt.Errorf("connect to the system bus: %w", err)
	}
	defer conn.Close()
	return conn.Object(networkdName, networkdObject).CallWithContext(ctx, networkdName+".Manager."+method, 0, args...).Err
}
