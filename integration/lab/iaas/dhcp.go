package iaas

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
)

// defaultRange is where dynamic networks get their addresses from, unless their cloud_properties
// say otherwise.
const defaultRange = "10.246.0.0/24"

// firstHost is the first address of a range that is given to a VM; the gateway has the first of
// all.
const firstHost = 10

// allocate fills in the addresses of dynamic networks, which the caller leaves to the IaaS. The
// caller holds mu.
func (i *IaaS) allocate(wanted map[string]Network) error {
	for name, n := range wanted {
		if n.Type != dynamic {
			continue
		}
		p, err := n.properties()
		if err != nil {
			return err
		}
		prefix, err := netip.ParsePrefix(p.Range)
		if err != nil || !prefix.Addr().Is4() || prefix.Bits() > 28 {
			return Failf(CloudError, "network %s: range %q is no IPv4 range with room for VMs", name, p.Range)
		}
		taken := map[string]bool{}
		for _, vm := range i.vms {
			for _, other := range vm.Networks {
				if segment(other) == p.Name {
					taken[other.IP] = true
				}
			}
		}
		for _, other := range wanted {
			taken[other.IP] = true
		}
		prefix = prefix.Masked()
		gateway := prefix.Addr().Next()
		ip := freeAddress(prefix, taken)
		if !ip.IsValid() {
			return Failf(CloudError, "network %s: range %s has no free address", name, p.Range)
		}
		mask := netip.AddrFrom4([4]byte(ones(prefix.Bits())))
		n.IP, n.Netmask, n.Gateway, n.Prefix = ip.String(), mask.String(), gateway.String(), ""
		wanted[name] = n
	}
	return nil
}

// ones is an IPv4 netmask.
func ones(bits int) []byte {
	mask := ^uint32(0) << (32 - bits)
	return []byte{byte(mask >> 24), byte(mask >> 16), byte(mask >> 8), byte(mask)}
}

// freeAddress is the lowest one that is not taken, invalid if there is none.
func freeAddress(prefix netip.Prefix, taken map[string]bool) netip.Addr {
	at := prefix.Addr()
	for range firstHost {
		at = at.Next()
	}
	for ; prefix.Contains(at.Next()); at = at.Next() { // the last is the broadcast address
		if !taken[at.String()] {
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

// dhcpDir holds what the DHCP servers read: a directory for each, with a file for each address.
const dhcpDir = "dhcp"

// serveDHCP makes the segment's server know a card; the caller has the segment's lock.
func (i *IaaS) serveDHCP(c card, b bridge, nets map[string]Network) error {
	i.mu.Lock()
	d := i.servers[c.segment]
	if d == nil {
		d = &dhcp{bridge: b.name}
		i.servers[c.segment] = d
	}
	i.mu.Unlock()
	hosts := i.dhcpHosts(d)
	if err := os.MkdirAll(hosts, 0o755); err != nil {
		return err
	}
	for _, name := range c.networks {
		n := nets[name]
		ip, err := netip.ParseAddr(n.IP)
		if err != nil || !ip.Is4() || n.Gateway == "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(hosts, n.IP), []byte(c.mac.String()+","+n.IP+"\n"), 0o644); err != nil {
			return err
		}
		tag := strings.ReplaceAll(n.Gateway, ".", "-")
		for _, argument := range []string{"--dhcp-range=set:" + tag + "," + n.Gateway + ",static," + n.Netmask, "--dhcp-option=tag:" + tag + ",option:router," + n.Gateway} {
			if !slices.Contains(d.ranges, argument) {
				d.ranges = append(d.ranges, argument)
			}
		}
	}
	return i.restartDHCP(d)
}

func (i *IaaS) dhcpHosts(d *dhcp) string { return filepath.Join(i.store.dir, dhcpDir, d.bridge) }

// restartDHCP starts a server that knows the present hosts and subnets. One that runs would keep
// the leases of deleted VMs, and refuse their addresses to others.
func (i *IaaS) restartDHCP(d *dhcp) error {
	d.stop()
	hosts := i.dhcpHosts(d)
	argv := append([]string{"--net=" + i.Net.Path(), "dnsmasq", "--dhcp-hostsdir=" + hosts, "--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--user=root",
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

// forgetDHCP takes the addresses of a VM from the servers of its segments.
func (i *IaaS) forgetDHCP(vm VM) error {
	for _, n := range vm.Networks {
		if n.IP == "" || n.Type == vip {
			continue
		}
		if err := i.forgetAddress(segment(n), n.IP); err != nil {
			return err
		}
	}
	return nil
}

func (i *IaaS) forgetAddress(segment, ip string) error {
	defer i.locks.lock("segment " + segment)()
	err := os.Remove(filepath.Join(i.store.dir, dhcpDir, bridgeName(segment), ip))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	i.mu.Lock()
	d := i.servers[segment]
	i.mu.Unlock()
	if d != nil && err == nil {
		err = i.restartDHCP(d)
	}
	return err
}
