package fabric

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"cambium/lab/iaas/value"
)

// defaultRange is the address range of dynamic networks whose cloud_properties have none.
var defaultRange = netip.MustParsePrefix("10.246.0.0/24")

// firstHost is the number of the first address for VMs in a range. The gateway has the first address.
const firstHost = 10

// Allocate sets the address of a dynamic network to the lowest one that is not taken.
func (n Network) Allocate(taken map[netip.Addr]bool) (Network, error) {
	prefix := n.Properties.Range
	if !prefix.IsValid() {
		prefix = defaultRange
	}
	if !prefix.Addr().Is4() || prefix.Bits() > 28 {
		return n, fmt.Errorf("range %s is not an IPv4 range with room for VMs", prefix)
	}
	prefix = prefix.Masked()
	ip := freeAddress(prefix, taken)
	if !ip.IsValid() {
		return n, fmt.Errorf("range %s has no free address", prefix)
	}
	mask := netip.AddrFrom4([4]byte(ones(prefix.Bits())))
	n.IP, n.Netmask, n.Gateway = value.AddrOf(ip), value.AddrOf(mask), value.AddrOf(prefix.Addr().Next())
	n.Prefix = value.Bits{}
	return n, nil
}

// ones returns an IPv4 netmask.
func ones(bits int) []byte {
	mask := ^uint32(0) << (32 - bits)
	return []byte{byte(mask >> 24), byte(mask >> 16), byte(mask >> 8), byte(mask)}
}

// freeAddress returns the lowest address that is not taken; it is invalid if there is none.
func freeAddress(prefix netip.Prefix, taken map[netip.Addr]bool) netip.Addr {
	at := prefix.Addr()
	for range firstHost {
		at = at.Next()
	}
	for ; prefix.Contains(at.Next()); at = at.Next() { // the last is the broadcast address
		if !taken[at] {
			return at
		}
	}
	return netip.Addr{}
}

// lease is a card's configuration on a DHCP server.
type lease struct{ mac, ip, gateway, netmask string }

// logOption sets the log of a DHCP server, which is in the directory of its fabric.
const logOption = "--log-facility="

// serveDHCP restarts the DHCP server of a segment with these leases, or stops it if there are none. A running server
// would keep the leases of deleted VMs and refuse their addresses to others. The caller holds mu.
func (f *Fabric) serveDHCP(b *bridge, leases []lease) error {
	b.stopDHCP()
	if len(leases) == 0 {
		return nil
	}
	if err := os.MkdirAll(f.dir, 0o755); err != nil {
		return err
	}
	argv := []string{"--net=" + f.Net.Path(), "dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--port=0",
		"--user=nobody", "--pid-file=", "--interface=" + b.name, "--bind-interfaces",
		"--dhcp-authoritative", "--leasefile-ro", logOption + filepath.Join(f.dir, b.name+".log")}
	for _, l := range leases {
		tag := strings.ReplaceAll(l.gateway, ".", "-")
		for _, argument := range []string{
			"--dhcp-host=" + l.mac + "," + l.ip,
			"--dhcp-range=set:" + tag + "," + l.gateway + ",static," + l.netmask,
			"--dhcp-option=tag:" + tag + ",option:router," + l.gateway,
		} {
			if !slices.Contains(argv, argument) {
				argv = append(argv, argument)
			}
		}
	}
	server := exec.Command("nsenter", argv...)
	server.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := server.Start(); err != nil {
		return fmt.Errorf("DHCP server: %w", err)
	}
	b.server, b.leases = server, leases
	return nil
}

func (b *bridge) stopDHCP() {
	if b.server != nil {
		_ = b.server.Process.Kill()
		_ = b.server.Wait()
		b.server, b.leases = nil, nil
	}
}

// Serves reports whether an argument of a command line belongs to a DHCP server of the fabric in that directory.
func Serves(dir, argument string) bool { return strings.HasPrefix(argument, logOption+dir+"/") }
