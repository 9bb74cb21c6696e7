package neighbor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"cambium/platform/network"
)

// Flush removes the neighbor entries of ips, except permanent ones, so that the next packet resolves their hardware
// addresses again. The Director requests this if an address moves to another machine, and the bus before it connects.
func Flush(ctx context.Context, ips []netip.Addr) error {
	if len(ips) == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("flush neighbors: %w", context.Cause(ctx))
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	entries, err := network.Dump("neighbors",
		func() ([]netlink.Neigh, error) { return h.NeighList(0, netlink.FAMILY_ALL) })
	if err != nil {
		return err
	}
	var failed []error
	for _, e := range entries {
		known, _ := netip.AddrFromSlice(e.IP)
		known = known.Unmap()
		wanted := slices.ContainsFunc(ips, func(ip netip.Addr) bool { return ip.Unmap().WithZone("") == known })
		if !wanted || e.State&(unix.NUD_PERMANENT|unix.NUD_NOARP) != 0 {
			continue
		}
		if err := h.NeighDel(&e); err != nil && !errors.Is(err, unix.ENOENT) {
			failed = append(failed, fmt.Errorf("remove neighbor %s: %w", e.IP, err))
		}
	}
	return errors.Join(failed...)
}
