package unit

import (
	"fmt"
	"net"

	"github.com/coreos/go-systemd/v22/activation"
)

// TakeListener returns the socket that systemd has kept for this service under that name since an earlier process of it
// called Notifier.Keep, or nil where there is none. It removes what systemd says about sockets from the environment, so that no program this
// process starts takes a descriptor for one. Call it once, before anything is started.
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
