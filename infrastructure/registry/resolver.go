package registry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"
)

const (
	lookupTimeout = 2 * time.Second // for one query to one server
	lookupTries   = 2               // UDP packets may be lost
)

// resolver queries the name servers of the user data, in order. The system's resolver is configured by the settings
// that are yet to be fetched.
type resolver struct {
	servers []string
	timeout time.Duration // lookupTimeout if zero
}

func (r resolver) lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	if strings.EqualFold(host, "localhost") {
		return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}, nil
	}
	var failures []error
	for _, server := range r.servers {
		address, err := serverAddress(server)
		if err != nil {
			failures = append(failures, err)
			continue
		}
		found, err := r.ask(ctx, address, host)
		if err == nil {
			return found, nil
		}
		failures = append(failures, err)
	}
	return nil, errors.Join(failures...)
}

func (r resolver) ask(ctx context.Context, server, host string) ([]netip.Addr, error) {
	timeout := lookupTimeout
	if r.timeout > 0 {
		timeout = r.timeout
	}
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, server)
	}}
	var err error
	for range lookupTries {
		limited, cancel := context.WithTimeout(ctx, timeout)
		var found []netip.Addr
		// The final dot disables the search list of this machine.
		found, err = resolver.LookupNetIP(limited, "ip", strings.TrimSuffix(host, ".")+".")
		cancel()
		if err == nil && len(found) > 0 {
			return found, nil
		}
		var dns *net.DNSError
		if ctx.Err() != nil || errors.As(err, &dns) && dns.IsNotFound {
			break
		}
	}
	var dns *net.DNSError
	if errors.As(err, &dns) {
		// The standard text names the servers in resolv.conf, which were not queried.
		why := dns.Err
		if dns.IsTimeout {
			why = "no answer in time"
		}
		err = errors.New(why)
	}
	return nil, fmt.Errorf("look up %s at %s: %w", host, server, err)
}

// serverAddress adds port 53 to an IP address without a port.
func serverAddress(server string) (string, error) {
	server = strings.TrimSpace(server)
	if a, err := netip.ParseAddr(strings.Trim(server, "[]")); err == nil {
		return net.JoinHostPort(a.String(), "53"), nil
	}
	if a, err := netip.ParseAddrPort(server); err == nil {
		return a.String(), nil
	}
	return "", errors.New("dns.nameserver: not an IP address")
}
