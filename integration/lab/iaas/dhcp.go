package iaas

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
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
	ranges []string // its subnets, as arguments
	server *exec.Cmd
}

// serveDHCP makes the segment's server know a card, and starts it with the first. A new subnet
// starts it again: it reads new hosts from its directory, but not new subnets.
func (i *IaaS) serveDHCP(c card, b bridge, nets map[string]Network) error {
	hosts := filepath.Join(i.store.dir, dhcpDir, b.name)
	if err := os.MkdirAll(hosts, 0o755); err != nil {
		return err
	}
	d := i.servers[c.segment]
	if d == nil {
		d = &dhcp{}
		i.servers[c.segment] = d
	}
	changed := d.server == nil
	for _, name := range c.networks {
		n := nets[name]
		ip, err := netip.ParseAddr(n.IP)
		if err != nil || !ip.Is4() || n.Gateway == "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(hosts, n.IP), []byte(c.mac.String()+","+n.IP+"\n"), 0o644); err != nil {
			return err
		}
		tag := "set:" + strings.ReplaceAll(n.Gateway, ".", "-")
		for _, argument := range []string{"--dhcp-range=" + tag + "," + n.Gateway + ",static," + n.Netmask, "--dhcp-option=tag" + tag[len("set"):] + ",option:router," + n.Gateway} {
			if !slices.Contains(d.ranges, argument) {
				d.ranges, changed = append(d.ranges, argument), true
			}
		}
	}
	if !changed {
		return nil
	}
	d.stop()
	sort.Strings(d.ranges)
	argv := append([]string{"--net=" + i.Net.Path(), "dnsmasq", "--dhcp-hostsdir=" + hosts, "--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--user=root",
		"--group=root", "--pid-file=", "--interface=" + b.name, "--bind-interfaces", "--dhcp-authoritative", "--dhcp-leasefile=" + hosts + ".leases", "--log-facility=" + hosts + ".log"}, d.ranges...)
	d.server = exec.Command("nsenter", argv...)
	d.server.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := d.server.Start(); err != nil {
		d.server = nil
		return fmt.Errorf("DHCP server: %w", err)
	}
	return nil
}

// dhcpDir holds what the DHCP servers read and write.
const dhcpDir = "dhcp"

func (d *dhcp) stop() {
	if d.server != nil {
		_ = d.server.Process.Kill()
		_ = d.server.Wait()
		d.server = nil
	}
}

// forgetDHCP takes the addresses of a VM from its segment's server.
func (i *IaaS) forgetDHCP(vm VM) error {
	var failed error
	for _, n := range vm.Networks {
		if n.IP == "" || n.Type == vip {
			continue
		}
		err := os.Remove(filepath.Join(i.store.dir, dhcpDir, bridgeName(segment(n)), n.IP))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}
