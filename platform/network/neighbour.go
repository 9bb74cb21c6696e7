package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// FlushNeighbours forgets the hardware addresses of ips, so that the next packet asks anew: the
// Director asks for it when an address moved to another machine, and the bus does so before it
// connects. Entries that somebody set by hand stay.
func (k *Kernel) FlushNeighbours(ctx context.Context, ips []netip.Addr) error {
	if len(ips) == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("flush neighbours: %w", context.Cause(ctx))
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	entries, err := dump("neighbours", func() ([]netlink.Neigh, error) { return h.NeighList(0, netlink.FAMILY_ALL) })
	if err != nil {
		return err
	}
	var failed []error
	for _, e := range entries {
		wanted := slices.ContainsFunc(ips, func(ip netip.Addr) bool { return ip.Unmap().WithZone("") == toAddr(e.IP) })
		if !wanted || e.State&(unix.NUD_PERMANENT|unix.NUD_NOARP) != 0 {
			continue
		}
		if err := h.NeighDel(&e); err != nil && !errors.Is(err, unix.ENOENT) {
			failed = append(failed, fmt.Errorf("forget neighbour %s: %w", e.IP, err))
		}
	}
	return errors.Join(failed...)
}
