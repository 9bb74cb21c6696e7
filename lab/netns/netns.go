// Package netns creates named network namespaces, and opens sockets inside them from an ordinary process. The networks
// of the lab exist only there. No link, address or route is added to the host's namespace.
package netns

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"cambium/internal/tcp"
	"cambium/internal/thread"
)

// dir contains a file for each namespace, on which the namespace is mounted. It is not the directory of `ip netns`: the
// first `ip netns add` mounts that directory onto itself, and the files below the new mount can then neither be
// unmounted nor removed.
const dir = "/run/cambium-netns"

// Namespace is a network namespace with a name.
type Namespace struct{ name string }

// Open returns an existing namespace.
func Open(name string) Namespace { return Namespace{name: name} }

// Create creates a namespace whose loopback is up. It fails if the namespace exists.
func Create(name string) (Namespace, error) {
	ns := Namespace{name: name}
	if _, err := os.Stat(ns.Path()); err == nil {
		return ns, fmt.Errorf("network namespace %s: %w", name, fs.ErrExist)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return ns, err
	}
	if err := os.WriteFile(ns.Path(), nil, 0o444); err != nil {
		return ns, fmt.Errorf("network namespace %s: %w", name, err)
	}
	err := thread.Run(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		if err := unix.Mount(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), ns.Path(), "", unix.MS_BIND,
			""); err != nil {
			return err
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return fmt.Errorf("loopback: %w", err)
		}
		return netlink.LinkSetUp(lo)
	})
	if err != nil {
		return ns, errors.Join(fmt.Errorf("network namespace %s: %w", name, err), ns.Delete())
	}
	return ns, nil
}

// List returns the names of all namespaces with the prefix.
func List(prefix string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// Name returns the name of the namespace.
func (n Namespace) Name() string { return n.name }

// Path returns the path of the file on which the namespace is mounted.
func (n Namespace) Path() string { return dir + "/" + n.name }

// Delete removes the name. The namespace ends with its last process. A missing namespace is not an error.
func (n Namespace) Delete() error {
	err := unix.Unmount(n.Path(), unix.MNT_DETACH)
	// EINVAL: a name whose mount is gone, after a crash.
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("network namespace %s: %w", n.name, err)
	}
	if err := os.Remove(n.Path()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Do runs f in the namespace. Goroutines that f starts are not in the namespace.
func (n Namespace) Do(f func() error) error {
	handle, err := netns.GetFromPath(n.Path())
	if err != nil {
		return fmt.Errorf("network namespace %s: %w", n.name, err)
	}
	defer func() { _ = handle.Close() }()
	return thread.Run(func() error {
		if err := netns.Set(handle); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", n.name, err)
		}
		return f()
	})
}

// Listen is net.Listen in the namespace, for TCP only. The address must be numeric.
func (n Namespace) Listen(network, address string) (net.Listener, error) {
	if network != "tcp" {
		return nil, fmt.Errorf("listen on %s in network namespace %s: %w", address, n.name, net.UnknownNetworkError(network))
	}
	var listener *net.TCPListener
	err := n.Do(func() (err error) {
		listener, err = tcp.Listen(context.Background(), address)
		return err
	})
	if err != nil {
		return nil, err
	}
	return listener, nil
}

// ListenPacket opens a UDP port in the namespace. The address must be numeric.
func (n Namespace) ListenPacket(address string) (conn net.PacketConn, err error) {
	err = n.Do(func() (err error) {
		conn, err = net.ListenPacket("udp", address)
		return err
	})
	return conn, err
}

// DialContext connects from inside the namespace. The address must be numeric, because names would be resolved outside.
func (n Namespace) DialContext(ctx context.Context, network, address string) (c net.Conn, err error) {
	err = n.Do(func() error {
		c, err = (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, network, address)
		return err
	})
	return c, err
}

// Dial is DialContext for libraries without contexts.
func (n Namespace) Dial(network, address string) (net.Conn, error) {
	return n.DialContext(context.Background(), network, address)
}
