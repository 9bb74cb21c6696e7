package action

import (
	"context"
	"net/netip"
)

// Neighbors flushes entries of the kernel's neighbor table (ARP and NDP).
type Neighbors interface {
	Flush(ctx context.Context, address netip.Addr) error
}

// addresses is the argument of delete_arp_entries.
type addresses struct {
	IPs []string `json:"ips"`
}

// deleteARPEntries deletes the neighbor entries of replaced machines. It ignores errors, since the Director ignores the
// reply.
func deleteARPEntries(n Neighbors) func(context.Context, addresses) (empty, error) {
	return func(ctx context.Context, a addresses) (empty, error) {
		for _, text := range a.IPs {
			if address, err := netip.ParseAddr(text); err == nil {
				_ = n.Flush(ctx, address)
			}
		}
		return empty{}, nil
	}
}

// Power switches the machine off.
type Power interface {
	PowerOff(ctx context.Context) error
}

func shutdown(p Power) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) { return "", p.PowerOff(ctx) }
}
