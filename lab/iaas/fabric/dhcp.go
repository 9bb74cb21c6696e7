package fabric

import (
	"errors"
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

// defaultRange is where dynamic networks get their addresses from, unless their cloud_properties
// say otherwise.
var defaultRange = netip.MustParsePrefix("10.246.0.0/24")

// firstHost is the first address of a range that is given to a VM; the gateway has the first of
// all.
const firstHost = 10

// Allocate fills in the address of a dynamic network: the lowest one that is not taken.
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

// ones is an IPv4 netmask.
func ones(bits int) []byte {
	mask := ^uint32(0) << (32 - bits)
	return []byte{byte(mask >> 24), byte(mask >> 16), byte(mask >> 8), byte(mask)}
}

// freeAddress is the lowest one that is not taken, invalid if there is none.
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

// dhcp is the DHCP server of a segment.
type dhcp struct {
	bridge string
	ranges []string // its subnets, as arguments
	server *exec.Cmd
}

// serveDHCP makes the segment's server know a card; the caller holds mu.
func (f *Fabric) serveDHCP(c Card, b *bridge, nets Networks) error {
	d := f.servers[c.Segment]
	if d == nil {
		d = &dhcp{bridge: b.name}
		f.servers[c.Segment] = d
	}
	hosts := f.hosts(d)
	if err := os.MkdirAll(hosts, 0o755); err != nil {
		return err
	}
	for _, name := range c.Networks {
		n := nets[name]
		ip, gateway := n.IP.String(), n.Gateway.String()
		if !n.IP.IP().Is4() || !n.Gateway.IP().Is4() {
			continue
		}
		if err := os.WriteFile(filepath.Join(hosts, ip), []byte(c.MAC.String()+","+ip+"\n"), 0o644); err != nil {
			return err
		}
		tag := strings.ReplaceAll(gateway, ".", "-")
		for _, argument := range []string{
			"--dhcp-range=set:" + tag + "," + gateway + ",static," + n.Netmask.String(),
			"--dhcp-option=tag:" + tag + ",option:router," + gateway,
		} {
			if !slices.Contains(d.ranges, argument) {
				d.ranges = append(d.ranges, argument)
			}
		}
	}
	return f.restartDHCP(d)
}

// hosts is the directory that a server reads: a file for each address.
func (f *Fabric) hosts(d *dhcp) string { return filepath.Join(f.dir, d.bridge) }

// restartDHCP starts a server that knows the present hosts and subnets. One that runs would keep
// the leases of deleted VMs, and refuse their addresses to others.
func (f *Fabric) restartDHCP(d *dhcp) error {
	d.stop()
	hosts := f.hosts(d)
	argv := append([]string{"--net=" + f.Net.Path(), "dnsmasq", "--dhcp-hostsdir=" + hosts, "--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--user=root",
		"--group=root", "--pid-file=", "--interface=" + d.bridge, "--bind-interfaces", "--dhcp-authoritative", "--leasefile-ro", "--log-facility=" + hosts + ".log"}, d.ranges...)
	d.server = exec.Command("nsenter", argv...)
	d.server.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := d.server.Start(); err != nil {
		d.server = nil
		return fmt.Errorf("DHCP server: %w", err)
	}
	return nil
}

func (d *dhcp) stop() {
	if d.server != nil {
		_ = d.server.Process.Kill()
		_ = d.server.Wait()
		d.server = nil
	}
}

// Forget takes the address of a VM that is gone from the DHCP server of its segment.
func (f *Fabric) Forget(n Network) error {
	if n.IP == (value.Addr{}) || n.Type == VIP {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	err := os.Remove(filepath.Join(f.dir, bridgeName(n.Segment()), n.IP.String()))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if d := f.servers[n.Segment()]; d != nil && err == nil {
		err = f.restartDHCP(d)
	}
	return err
}

// Serves recognizes the servers of a fabric in that directory by an argument of their command
// line.
func Serves(dir, argument string) bool {
	return strings.HasPrefix(argument, "--dhcp-hostsdir="+dir+"/")
}
