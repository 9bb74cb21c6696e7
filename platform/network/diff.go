package network

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strings"

	"cambium/internal/advice"
	"cambium/platform/network/networkd"
)

// ipv6Metric is the kernel's default metric of IPv6 routes.
const ipv6Metric = 1024

// Diff returns the changes to the desired state, in the order in which to apply them. Additions come before removals.
// networkd's files, which also record what the agent has set, come after the removal of its leftovers, so that the next
// run completes an interrupted one.
//
// The error names everything that cannot be configured. The changes returned with it are for the rest, and may be
// applied.
func Diff(have State, want Desired) ([]Change, error) {
	if want.Preconfigured {
		return nil, nil
	}
	d := differ{have: have, want: want, records: map[string]record{}}
	for _, f := range have.Files {
		if link, ours := f.OurLink(); ours {
			d.records[link] = readRecord(f)
		}
	}
	for _, l := range want.Links {
		d.link(l)
	}
	for _, l := range have.Links {
		if !slices.ContainsFunc(want.Links, func(w WantLink) bool { return w.Name == l.Name }) {
			d.leftovers(WantLink{Name: l.Name, DHCP: true}, l)
		}
	}
	files := d.files()
	reload := d.reload(files)
	for i := range files {
		files[i].Reload = reload
	}
	changes := slices.Concat(d.add, d.remove, files)
	if reload {
		awaitedLinks := d.awaitedLinks(files)
		awaited := slices.ContainsFunc(want.Links, func(l WantLink) bool { return len(l.Leases) > 0 })
		changes = append(changes,
			Change{Op: OpReload, Awaited: awaitedLinks, Late: len(awaitedLinks) == 0 && !awaited && len(d.late) == 0})
	}
	return slices.Concat(changes, d.late), errors.Join(d.failed...)
}

type differ struct {
	have              State
	want              Desired
	records           map[string]record
	add, remove, late []Change
	failed            []error
}

func (d *differ) fail(l WantLink, format string, args ...any) {
	err := fmt.Errorf(format, args...)
	if len(l.Networks) > 0 {
		err = fmt.Errorf("network %s: %w", l.NetworkNames(), err)
	}
	d.failed = append(d.failed, err)
}

func (d *differ) link(want WantLink) {
	have, found := d.have.Link(want.Name)
	if !found {
		d.fail(want, "there is no link %s", want.Name)
		return
	}
	if want.ipv6() {
		if d.have.NoIPv6 {
			d.fail(want, "%w", advice.With("remove ipv6.disable=1 from the kernel's arguments",
				errors.New("the kernel was started without IPv6 (ipv6.disable=1)")))
			want.Addresses = slices.DeleteFunc(slices.Clone(want.Addresses),
				func(a WantAddress) bool { return a.Prefix.Addr().Is6() })
			want.Routes = slices.DeleteFunc(slices.Clone(want.Routes),
				func(r WantRoute) bool { return r.To.Addr().Is6() })
		} else if have.IPv6Disabled {
			d.add = append(d.add, Change{Op: OpEnableIPv6, Link: have.Name})
		}
	}
	if !have.Up {
		d.add = append(d.add, Change{Op: OpLinkUp, Link: have.Name})
	}
	if want.DHCP && len(want.Networks) > 0 && !d.have.Networkd.Available &&
		!slices.ContainsFunc(have.Addresses, Address.Global) {
		d.fail(want, "%w", advice.With("start it: 'systemctl start systemd-networkd'",
			fmt.Errorf("%s needs DHCP, but systemd-networkd, the DHCP client, is not available", have.Name)))
	}
	d.addresses(want, have)
	d.routes(want, have)
	d.leftovers(want, have)
}

func (l WantLink) ipv6() bool { return Desired{Links: []WantLink{l}}.ipv6() }

func (d *differ) addresses(want WantLink, have Link) {
	for _, a := range want.Addresses {
		same := slices.IndexFunc(have.Addresses, func(h Address) bool { return h.Prefix == a.Prefix })
		if same >= 0 {
			if have.Addresses[same].Dynamic && !want.DHCP {
				d.add = append(d.add, Change{Op: OpKeepAddress, Link: have.Name, Network: a.Network, Address: a.Prefix})
			}
			continue
		}
		change := Change{Op: OpAddAddress, Link: have.Name, Network: a.Network, Address: a.Prefix, Label: a.Label}
		// IPv4 allows an address with two prefix lengths, so the old one is removed later. IPv6 does not.
		other := slices.IndexFunc(have.Addresses, func(h Address) bool { return h.Prefix.Addr() == a.Prefix.Addr() })
		if other >= 0 && a.Prefix.Addr().Is6() {
			change.Op, change.Was = OpReplaceAddress, have.Addresses[other].Prefix
		}
		d.add = append(d.add, change)
	}
}

func (d *differ) routes(want WantLink, have Link) {
	for _, r := range want.Routes {
		if want.DHCP && !r.OnLink && !want.reaches(r.Gateway) {
			continue // networkd adds it with the lease
		}
		route := r.ForLink(want.Name)
		if slices.Contains(d.have.Routes, route) {
			continue
		}
		change := Change{Op: OpAddRoute, Link: want.Name, Network: r.Network, Route: &route}
		inTheWay := slices.IndexFunc(d.have.Routes, func(h Route) bool {
			return h.To == route.To && h.Metric == route.Metric && h.Origin == OriginStatic
		})
		if inTheWay >= 0 {
			was := d.have.Routes[inTheWay]
			change.Op, change.WasRoute = OpReplaceRoute, &was
		}
		d.add = append(d.add, change)
	}
}

// ForLink returns the route that the kernel lists for a link on which r is set.
func (r WantRoute) ForLink(link string) Route {
	route := Route{Link: link, To: r.To.Masked(), Gateway: r.Gateway, Origin: OriginStatic, OnLink: r.OnLink}
	if r.To.Addr().Is6() {
		route.Metric = ipv6Metric
	}
	return route
}

// reaches reports whether a gateway is in the subnet of a wanted address.
func (l WantLink) reaches(gw netip.Addr) bool {
	return !gw.IsValid() || gw.IsLinkLocalUnicast() ||
		slices.ContainsFunc(l.Addresses, func(a WantAddress) bool { return a.Prefix.Contains(gw) })
}

// leftovers removes addresses and routes that are no longer wanted if the agent has set them, according to its file, or
// a DHCP client on a link that no longer uses DHCP. Everything else stays, such as a virtual address of a release.
func (d *differ) leftovers(want WantLink, have Link) {
	wanted := func(p netip.Prefix) bool {
		return slices.ContainsFunc(want.Addresses, func(a WantAddress) bool { return a.Prefix == p })
	}
	replaced := func(p netip.Prefix) bool {
		return slices.ContainsFunc(d.add,
			func(c Change) bool { return c.Op == OpReplaceAddress && c.Link == have.Name && c.Was == p })
	}
	old := d.records[have.Name]
	for _, r := range d.have.Routes {
		if r.Link != have.Name || d.wantsRoute(r) {
			continue
		}
		ours := r.Origin == OriginStatic &&
			slices.ContainsFunc(old.routes, func(o WantRoute) bool { return o.To == r.To && o.Gateway == r.Gateway })
		lease := r.Origin == OriginDHCP && !want.DHCP
		change := Change{Op: OpRemoveRoute, Link: have.Name, Route: &r}
		switch {
		case ours:
			d.remove = append(d.remove, change)
		case lease:
			change.Late = true
			d.late = append(d.late, change)
		}
	}
	promoted := have.PromoteSecondaries
	for _, a := range have.Addresses {
		if wanted(a.Prefix) || replaced(a.Prefix) {
			continue
		}
		change := Change{Op: OpRemoveAddress, Link: have.Name, Address: a.Prefix}
		switch {
		case slices.Contains(old.addresses, a.Prefix):
			if !promoted && !a.Secondary && a.Prefix.Addr().Is4() && sharesSubnet(have, want, a.Prefix) {
				d.remove = append(d.remove, Change{Op: OpPromote, Link: have.Name})
				promoted = true
			}
			d.remove = append(d.remove, change)
		case a.Dynamic && a.Global() && a.Prefix.Addr().Is4() && !want.DHCP:
			if !promoted && !a.Secondary && sharesSubnet(have, want, a.Prefix) {
				d.remove = append(d.remove, Change{Op: OpPromote, Link: have.Name})
				promoted = true
			}
			change.Late = true
			d.late = append(d.late, change)
		}
	}
}

// sharesSubnet reports whether other addresses are in the same subnet. If p is the primary address, the kernel removes
// the secondary ones with it, unless they are promoted.
func sharesSubnet(have Link, want WantLink, p netip.Prefix) bool {
	other := func(o netip.Prefix) bool { return o != p && o.Masked() == p.Masked() }
	return slices.ContainsFunc(have.Addresses, func(a Address) bool { return other(a.Prefix) }) ||
		slices.ContainsFunc(want.Addresses, func(a WantAddress) bool { return other(a.Prefix) })
}

// wantsRoute reports whether a route is wanted, or is replaced by a wanted one.
func (d *differ) wantsRoute(have Route) bool {
	for _, l := range d.want.Links {
		for _, r := range l.Routes {
			if r.ForLink(l.Name) == have {
				return true
			}
		}
	}
	return slices.ContainsFunc(d.add, func(c Change) bool { return c.WasRoute != nil && *c.WasRoute == have })
}

// files returns the changes to networkd's files: it writes those of the agent, removes outdated ones, and moves aside
// or masks foreign files that networkd would prefer for one of the links.
func (d *differ) files() (changes []Change) {
	wanted, links := map[string]string{}, map[string]string{}
	for _, l := range d.want.Links {
		wanted[networkd.FilePath(l.Name)], links[networkd.FilePath(l.Name)] = render(l, d.have.Networkd), l.Name
	}
	for _, f := range d.have.Files {
		if _, ours := links[f.Path]; ours {
			_, appended := f.Split()
			wanted[f.Path] += appended
		}
		link, inTheWay := d.takesPrecedence(f)
		switch {
		case !inTheWay:
		case path.Dir(f.Path) == networkd.EtcDir:
			changes = append(changes, Change{Op: OpMoveFile, Link: link, Path: f.Path, Content: f.Content})
		default:
			wanted[path.Join(networkd.EtcDir, path.Base(f.Path))] = networkd.Mask(f.Path)
		}
	}
	for _, p := range slices.Sorted(maps.Keys(wanted)) {
		if !slices.Contains(d.have.Files, networkd.File{Path: p, Content: wanted[p]}) {
			changes = append(changes, Change{Op: OpWriteFile, Link: links[p], Path: p, Content: wanted[p]})
		}
	}
	for _, f := range d.have.Files {
		if _, keep := wanted[f.Path]; f.Ours() && !keep &&
			(path.Dir(f.Path) == networkd.EtcDir || path.Dir(f.Path) == networkd.RunDir) {
			changes = append(changes, Change{Op: OpRemoveFile, Path: f.Path})
		}
	}
	return changes
}

// takesPrecedence returns the link for which networkd would use a foreign file instead of the agent's. Files named
// …unmanaged.network are a decision of the stemcell and stay.
func (d *differ) takesPrecedence(f networkd.File) (string, bool) {
	name := path.Base(f.Path)
	if f.Ours() || f.Content == "" || strings.HasSuffix(name, "unmanaged.network") || f.Shadowed(d.have.Files) {
		return "", false
	}
	for _, l := range d.want.Links {
		have, found := d.have.Link(l.Name)
		if found && name < networkd.FileName(l.Name) && matches(f, have) {
			return l.Name, true
		}
	}
	return "", false
}

// reload reports whether networkd has to read its files again: their content has changed, or an earlier run ended
// before the reload.
func (d *differ) reload(files []Change) bool {
	if !d.have.Networkd.Available {
		return false
	}
	if d.have.Networkd.ReloadPending {
		return true
	}
	moved := func(c Change) bool { // from /run to /etc, with the same content
		return c.Op == OpRemoveFile && path.Dir(c.Path) == networkd.RunDir ||
			c.Op == OpWriteFile &&
				slices.Contains(d.have.Files,
					networkd.File{Path: path.Join(networkd.RunDir, c.name()), Content: c.Content})
	}
	return slices.ContainsFunc(files, func(c Change) bool { return !moved(c) })
}

// awaitedLinks returns the links with a lease whose files change. networkd releases the lease, which a caller must not
// mistake for the new one. Other links need no wait.
func (d *differ) awaitedLinks(files []Change) (links []networkd.AwaitedLink) {
	for _, want := range d.want.Links {
		have, found := d.have.Link(want.Name)
		leased, same := false, false
		for _, a := range have.Addresses {
			if a.Dynamic && a.Prefix.Addr().Is4() {
				leased = true
				same = same ||
					!want.DHCP &&
						slices.ContainsFunc(want.Addresses, func(w WantAddress) bool { return w.Prefix == a.Prefix })
			}
		}
		changed := slices.ContainsFunc(files, func(c Change) bool { return c.name() == networkd.FileName(want.Name) })
		if found && changed && leased {
			links = append(links, networkd.AwaitedLink{Link: want.Name, Same: same})
		}
	}
	return links
}

// DHCPEverywhere returns the changes that enable DHCP on every NIC, with files below /run, for a machine whose settings
// are not known yet.
func DHCPEverywhere(have State) (changes []Change) {
	files := false
	for _, nic := range have.NICs() {
		file := networkd.File{
			Path:    path.Join(networkd.RunDir, networkd.FileName(nic.Name)),
			Content: render(WantLink{Name: nic.Name, DHCP: true}, have.Networkd),
		}
		if !nic.Up {
			changes = append(changes, Change{Op: OpLinkUp, Link: nic.Name})
		}
		if !slices.Contains(have.Files, file) {
			changes = append(changes, Change{Op: OpWriteFile, Path: file.Path, Content: file.Content, Reload: true})
			files = true
		}
	}
	if files {
		changes = append(changes, Change{Op: OpReload})
	}
	return changes
}
