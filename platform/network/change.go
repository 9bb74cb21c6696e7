package network

import (
	"fmt"
	"net/netip"
	"path"
	"slices"
	"sort"

	"cambium/platform/network/networkd"
)

// Op is the kind of a change.
type Op string

// The kinds of change, in the order in which Diff lists them.
const (
	OpEnableIPv6     Op = "enable-ipv6"
	OpLinkUp         Op = "link-up"
	OpAddAddress     Op = "add-address"
	OpKeepAddress    Op = "keep-address" // makes an address with a lifetime permanent
	OpReplaceAddress Op = "replace-address"
	OpAddRoute       Op = "add-route"
	OpReplaceRoute   Op = "replace-route"
	OpRemoveRoute    Op = "remove-route"
	OpPromote        Op = "promote-secondaries"
	OpRemoveAddress  Op = "remove-address"
	OpMoveFile       Op = "move-file"
	OpWriteFile      Op = "write-file"
	OpRemoveFile     Op = "remove-file"
	OpReload         Op = "reload-networkd"
)

// order is the order in which changes are applied: additions, removals, files, networkd.
var order = []Op{
	OpEnableIPv6, OpLinkUp, OpAddAddress, OpKeepAddress, OpReplaceAddress, OpAddRoute, OpReplaceRoute, OpRemoveRoute,
	OpPromote, OpRemoveAddress, OpMoveFile, OpWriteFile, OpRemoveFile, OpReload,
}

// Change is a step towards the desired state.
type Change struct {
	Op      Op           `json:"op"`
	Link    string       `json:"link,omitempty"`
	Network string       `json:"network,omitempty"`
	Address netip.Prefix `json:"address,omitzero"`
	Label   string       `json:"label,omitempty"`
	// Was is the address to replace.
	Was   netip.Prefix `json:"was,omitzero"`
	Route *Route       `json:"route,omitempty"`
	// WasRoute is the route to replace.
	WasRoute *Route `json:"was_route,omitempty"`
	Path     string `json:"path,omitempty"`
	Content  string `json:"content,omitempty"`
	// Awaited lists the links on which networkd releases a lease when it reloads.
	Awaited []networkd.AwaitedLink `json:"settle,omitempty"`
	// Late is set if other work need not wait for the change: the removal of something that networkd normally removes
	// itself, or a reload on which no wanted address depends.
	Late bool `json:"late,omitempty"`
	// Reload is set if networkd has to be reloaded after a change of the file.
	Reload bool `json:"reload,omitempty"`
}

// Runs reports whether the change makes a daemon act.
func (c Change) Runs() bool { return c.Op == OpReload }

// String describes the change in one line.
func (c Change) String() string {
	var s string
	switch c.Op {
	case OpEnableIPv6:
		s = c.Link + ": enable IPv6"
	case OpLinkUp:
		s = c.Link + ": set up"
	case OpAddAddress:
		s = c.Link + ": add address " + c.Address.String()
		if c.Label != "" {
			s += " as " + c.Label
		}
	case OpKeepAddress:
		s = c.Link + ": make address " + c.Address.String() + " permanent"
	case OpReplaceAddress:
		s = c.Link + ": replace address " + c.Was.String() + " by " + c.Address.String()
	case OpAddRoute:
		s = c.Link + ": add route " + c.Route.String()
	case OpReplaceRoute:
		s = c.Link + ": replace route " + c.WasRoute.String() + " by " + c.Route.String()
	case OpRemoveRoute:
		s = c.Link + ": remove route " + c.Route.String()
	case OpPromote:
		s = c.Link + ": keep the other addresses of a subnet when its first one goes"
	case OpRemoveAddress:
		s = c.Link + ": remove address " + c.Address.String()
	case OpMoveFile:
		s = "move aside " + c.Path + ", which takes precedence for " + c.Link
	case OpWriteFile:
		s = "write " + c.Path
	case OpRemoveFile:
		s = "remove " + c.Path
	case OpReload:
		s = "make systemd-networkd reload its files"
	default:
		s = string(c.Op)
	}
	if c.Network != "" {
		s += fmt.Sprintf(" (network %q)", c.Network)
	}
	return s
}

// String describes the route as ip(8) does.
func (r Route) String() string {
	s := "default"
	if !r.Default() {
		s = r.To.String()
	}
	if r.Gateway.IsValid() {
		s += " via " + r.Gateway.String()
	}
	return s + " dev " + r.Link
}

// adds reports whether the change adds something to a link.
func (c Change) adds() bool {
	return c.Link != "" && slices.Index(order, c.Op) <= slices.Index(order, OpReplaceRoute)
}

func (c Change) name() string { return path.Base(c.Path) }

// Split divides changes into those on which the machine's addresses depend, and those that can be applied in parallel
// to other work. Static addresses are usable before networkd has read its files, and early in a boot it takes some time
// until networkd can be reloaded.
func Split(changes []Change) (now, later []Change) {
	i := slices.IndexFunc(changes, func(c Change) bool { return c.Op == OpReload })
	if i < 0 || !changes[i].Late {
		return changes, nil
	}
	return changes[:i], changes[i:]
}

// Invert returns the changes that undo others, in the order in which to apply them. Files get their earlier content,
// and networkd is always reloaded if one of them requires that.
func Invert(changes []Change, have State) (back []Change) {
	for _, c := range changes {
		switch c.Op {
		case OpAddAddress:
			c.Op = OpRemoveAddress
		case OpRemoveAddress:
			c.Op = OpAddAddress
		case OpReplaceAddress:
			c.Address, c.Was = c.Was, c.Address
		case OpAddRoute:
			c.Op = OpRemoveRoute
		case OpRemoveRoute:
			c.Op = OpAddRoute
		case OpReplaceRoute:
			c.Route, c.WasRoute = c.WasRoute, c.Route
			c.Link = c.Route.Link
		case OpWriteFile, OpRemoveFile, OpMoveFile:
			i := slices.IndexFunc(have.Files, func(f networkd.File) bool { return f.Path == c.Path })
			if i < 0 {
				c = Change{Op: OpRemoveFile, Path: c.Path, Reload: c.Reload}
			} else {
				c = Change{Op: OpWriteFile, Path: c.Path, Content: have.Files[i].Content, Reload: c.Reload}
			}
		case OpReload:
		default:
			continue // an enabled link, or enabled IPv6, is harmless
		}
		back = append(back, c)
	}
	if slices.ContainsFunc(back, func(c Change) bool { return c.Reload }) && !slices.ContainsFunc(back, Change.Runs) {
		back = append(back, Change{Op: OpReload})
	}
	sort.SliceStable(back,
		func(i, j int) bool { return slices.Index(order, back[i].Op) < slices.Index(order, back[j].Op) })
	return back
}
