package firewall

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// rule is a list of expressions. Register 1 passes values to comparisons.
type rule = []expr.Any

func join(parts ...[]expr.Any) (r rule) {
	for _, p := range parts {
		r = append(r, p...)
	}
	return r
}

// monitRules returns rules that accept the exceptions of jobs, established connections and root, and drop the rest.
func monitRules() []rule {
	return []rule{
		{&expr.Verdict{Kind: expr.VerdictJump, Chain: jobsChain}},
		join(established(), accept()),
		join(uid(0), to(monitAddress), accept()),
		join(to(monitAddress), drop()),
	}
}

// natsRules returns rules that accept established connections and, for each server, root, and drop the rest.
func natsRules(servers []netip.AddrPort) []rule {
	rules := []rule{join(established(), accept())}
	for _, s := range servers {
		rules = append(rules, join(uid(0), to(s), accept()), join(to(s), drop()))
	}
	return rules
}

// metadataRules returns rules that accept established connections and, for each server, root and users. They reject the
// rest at once, so that a job that looks for a metadata service does not run into a timeout.
func metadataRules(servers []netip.AddrPort, users []uint32) []rule {
	rules := []rule{join(established(), accept())}
	for _, s := range servers {
		for _, u := range sortedUsers(users) {
			rules = append(rules, join(uid(u), to(s), accept()))
		}
		rules = append(rules, refuse(s))
	}
	return rules
}

// sortedUsers returns root and users in order, so that the same users result in the same rules.
func sortedUsers(users []uint32) []uint32 {
	all := append([]uint32{0}, users...)
	slices.Sort(all)
	return slices.Compact(all)
}

// forwardRules returns rules that reject forwarded packets, whose users are unknown.
func forwardRules(servers []netip.AddrPort) (rules []rule) {
	for _, s := range servers {
		rules = append(rules, refuse(s))
	}
	return rules
}

// refuse returns "ip daddr A tcp dport P reject with tcp reset".
func refuse(server netip.AddrPort) rule {
	return join(to(server), rule{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}})
}

// refused returns the server of a rule created by refuse.
func refused(r rule) (server netip.AddrPort, is bool) {
	var values [][]byte
	for _, e := range r {
		if c, compares := e.(*expr.Cmp); compares {
			values = append(values, c.Data)
		}
	}
	if len(values) != 4 || len(values[3]) != 2 {
		return netip.AddrPort{}, false
	}
	address, _ := netip.AddrFromSlice(values[1])
	server = netip.AddrPortFrom(address, binary.BigEndian.Uint16(values[3]))
	if !server.IsValid() {
		return netip.AddrPort{}, false
	}
	have, err := encode(r)
	want, wantErr := encode(refuse(server))
	return server, err == nil && wantErr == nil && bytes.Equal(have, want)
}

// established returns "ct state established,related".
func established() rule {
	return rule{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{
			SourceRegister: 1,
			DestRegister:   1,
			Len:            4,
			Mask:           native(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED),
			Xor:            native(0),
		},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: native(0)},
	}
}

// uid returns "meta skuid N".
func uid(n uint32) rule {
	return rule{
		&expr.Meta{Key: expr.MetaKeySKUID, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: native(n)},
	}
}

// cgroup returns "socket cgroupv2 level N ID".
func cgroup(level uint32, id uint64) rule {
	return rule{
		&expr.Socket{Key: expr.SocketKeyCgroupv2, Level: level, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.NativeEndian.AppendUint64(nil, id)},
	}
}

// to returns "ip daddr A tcp dport P", or the same with ip6.
func to(server netip.AddrPort) rule {
	family, offset, length := byte(unix.NFPROTO_IPV4), uint32(16), uint32(4)
	if server.Addr().Is6() {
		family, offset, length = unix.NFPROTO_IPV6, 24, 16
	}
	return rule{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{family}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: server.Addr().AsSlice()},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint16(nil, server.Port())},
	}
}

func logged(prefix string) rule {
	return rule{&expr.Log{Key: 1 << unix.NFTA_LOG_PREFIX, Data: []byte(prefix)}}
}

func accept() rule { return rule{&expr.Verdict{Kind: expr.VerdictAccept}} }
func drop() rule   { return rule{&expr.Verdict{Kind: expr.VerdictDrop}} }

func native(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }
