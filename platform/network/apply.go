package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"cambium/internal/atomicfile"
	"cambium/platform/network/networkd"
)

// Apply makes the changes in order and returns those it made. It reports all errors at the end, since one network must
// not prevent another. If an addition to a link fails, it removes nothing from that link and keeps its file, so that
// the next run retries. It does not wait for leases; see wait.Ready.
func (k *Kernel) Apply(ctx context.Context, changes []Change) (made []Change, err error) {
	if len(changes) == 0 {
		return nil, nil
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()

	var failed []error
	incomplete := map[string]bool{}
	for _, c := range changes {
		if err := ctx.Err(); err != nil {
			return made, fmt.Errorf("apply network: %w", context.Cause(ctx))
		}
		if incomplete[c.Link] && !c.adds() {
			continue
		}
		if err := k.apply(ctx, h, c); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", c, err))
			incomplete[c.Link] = incomplete[c.Link] || c.adds()
			continue
		}
		made = append(made, c)
		k.Log.WithField("change", c.String()).Info("network changed")
	}
	return made, errors.Join(failed...)
}

func (k *Kernel) apply(ctx context.Context, h *netlink.Handle, c Change) error {
	switch c.Op {
	case OpEnableIPv6:
		return os.WriteFile(k.sysctl("ipv6/conf", c.Link, "disable_ipv6"), []byte("0\n"), 0o644)
	case OpPromote:
		return os.WriteFile(k.sysctl("ipv4/conf", c.Link, "promote_secondaries"), []byte("1\n"), 0o644)
	case OpMoveFile, OpWriteFile, OpRemoveFile:
		return k.applyFile(c)
	case OpReload:
		if err := k.running().Reload(ctx, indexes(h, c.Awaited)); err != nil {
			return err
		}
		return k.Networkd().ClearPending()
	}

	link, err := h.LinkByName(c.Link)
	if err != nil {
		return err
	}
	switch c.Op {
	case OpLinkUp:
		return h.LinkSetUp(link)
	case OpAddAddress, OpKeepAddress:
		// AddrReplace succeeds even if the address exists by now, and never removes it.
		return h.AddrReplace(link, netlinkAddress(c.Address, c.Label))
	case OpReplaceAddress:
		if err := h.AddrDel(link, netlinkAddress(c.Was, "")); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return err
		}
		replacement := netlinkAddress(c.Address, c.Label)
		// The machine had this address until now, so duplicate detection is unnecessary.
		replacement.Flags = unix.IFA_F_NODAD
		err := h.AddrReplace(link, replacement)
		if err != nil {
			was := netlinkAddress(c.Was, "")
			was.Flags = unix.IFA_F_NODAD
			err = errors.Join(err, h.AddrReplace(link, was))
		}
		return err
	case OpRemoveAddress:
		err := h.AddrDel(link, netlinkAddress(c.Address, c.Label))
		if errors.Is(err, unix.EADDRNOTAVAIL) {
			return nil
		}
		return err
	case OpAddRoute:
		err := h.RouteAppend(c.Route.netlink(link))
		if errors.Is(err, unix.EEXIST) {
			return nil
		}
		return err
	case OpReplaceRoute:
		return h.RouteReplace(c.Route.netlink(link))
	case OpRemoveRoute:
		err := h.RouteDel(c.Route.netlink(link))
		if errors.Is(err, unix.ESRCH) {
			return nil
		}
		return err
	}
	return fmt.Errorf("unknown change %q", c.Op)
}

func indexes(h *netlink.Handle, links []networkd.AwaitedLink) map[int]networkd.AwaitedLink {
	byIndex := map[int]networkd.AwaitedLink{}
	for _, l := range links {
		if link, err := h.LinkByName(l.Link); err == nil {
			byIndex[link.Attrs().Index] = l
		}
	}
	return byIndex
}

func netlinkAddress(p netip.Prefix, label string) *netlink.Addr {
	a := &netlink.Addr{IPNet: toIPNet(p), Label: label, ValidLft: forever, PreferedLft: forever}
	if b, ok := broadcast(p); ok {
		a.Broadcast = net.IP(b.AsSlice()) // four bytes: the kernel drops a longer form silently
	}
	return a
}

func (r *Route) netlink(link netlink.Link) *netlink.Route {
	route := &netlink.Route{
		LinkIndex: link.Attrs().Index,
		Dst:       toIPNet(r.To),
		Priority:  r.Metric,
		Table:     unix.RT_TABLE_MAIN,
		Protocol:  r.protocol(),
		Scope:     netlink.SCOPE_UNIVERSE,
	}
	if r.Gateway.IsValid() {
		route.Gw = r.Gateway.AsSlice()
	} else if r.To.Addr().Is4() {
		route.Scope = netlink.SCOPE_LINK
	}
	if r.OnLink {
		route.Flags = int(netlink.FLAG_ONLINK)
	}
	return route
}

func (r *Route) protocol() netlink.RouteProtocol {
	switch r.Origin {
	case OriginDHCP:
		return unix.RTPROT_DHCP
	default:
		return unix.RTPROT_STATIC
	}
}

func (k *Kernel) applyFile(c Change) error {
	if c.Reload {
		if err := k.Networkd().MarkPending(); err != nil {
			return err
		}
	}
	switch c.Op {
	case OpRemoveFile:
		return atomicfile.Remove(k.path(c.Path))
	case OpMoveFile:
		k.Log.WithField("path", c.Path).WithField("link", c.Link).
			Warn("setting aside a network file of another program")
		if err := os.Rename(k.path(c.Path), k.path(c.Path+networkd.AsideSuffix)); err != nil {
			return err
		}
		return atomicfile.SyncDir(filepath.Dir(k.path(c.Path)))
	}
	if err := os.MkdirAll(filepath.Dir(k.path(c.Path)), 0o755); err != nil {
		return err
	}
	return atomicfile.Write(k.path(c.Path), []byte(c.Content), 0o644)
}
