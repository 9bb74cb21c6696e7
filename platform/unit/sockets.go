package unit

import (
	"fmt"
	"net"

	"github.com/coreos/go-systemd/v22/activation"
)

// TakeListener returns the socket that an earlier process of this service stored in systemd under that name (see
// Notifier.StoreSocket), or nil. It removes systemd's environment variables, so that no program started by this process
// takes another descriptor for a socket. Call it once, before anything is started.
func TakeListener(name string) (net.Listener, error) {
	named, err := activation.ListenersWithNames()
	if err != nil {
		return nil, fmt.Errorf("sockets of the service manager: %w", err)
	}
	var taken net.Listener
	for n, listeners := range named {
		for _, l := range listeners {
			switch {
			case l == nil: // not a stream
			case n == name && taken == nil:
				taken = l
			default:
				l.Close()
			}
		}
	}
	return taken, nil
}
