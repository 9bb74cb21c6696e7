// Package localroute waits until a new IPv6 address can be used.
package localroute

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// timeout bounds the wait, for a busy host.
const timeout = time.Minute

// Await waits for the local route of an address in a network namespace; nil means that of this thread. Without the
// route, no connection reaches the address. The kernel adds it from a work queue for IPv6, even without duplicate
// address detection (IFA_F_NODAD), and at once for IPv4.
func Await(namespace *netns.NsHandle, ip net.IP) error {
	if ip.To4() != nil {
		return nil
	}
	updates, done := make(chan netlink.RouteUpdate), make(chan struct{})
	options := netlink.RouteSubscribeOptions{Namespace: namespace, ListExisting: true}
	if err := netlink.RouteSubscribeWithOptions(updates, done, options); err != nil {
		return fmt.Errorf("watch routes: %w", err)
	}
	defer func() {
		close(done)
		go func() {
			for range updates { // until the subscription has ended
			}
		}()
	}()
	late := time.After(timeout)
	for {
		select {
		case u, open := <-updates:
			if !open {
				return errors.New("watch routes: the subscription ended")
			}
			local := u.Type == unix.RTM_NEWROUTE && u.Route.Type == unix.RTN_LOCAL
			if local && u.Dst != nil && u.Dst.IP.Equal(ip) {
				return nil
			}
		case <-late:
			return fmt.Errorf("the kernel did not add the local route of %s within %s", ip, timeout)
		}
	}
}
