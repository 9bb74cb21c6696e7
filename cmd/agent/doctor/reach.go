package doctor

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"cambium/cmd/agent/doctor/observe"
	"cambium/internal/status"
	"cambium/mbus/natsbus"
	"cambium/settings"
)

// What the way to the Director consists of: addresses, gateway, MTU, certificate and bus.

func addresses(m observe.Facts) (found []Finding) {
	if m.Network.Err != "" {
		return []Finding{problem("run it as root, and check the kernel log", "cannot list links: %s", m.Network.Err)}
	}
	var have []string
	up := 0
	for _, l := range m.Network.State.NICs() {
		if l.Up {
			up++
		}
		for _, a := range l.Addresses {
			if a.Global() && a.Usable() {
				have = append(have, a.Prefix.Addr().String())
			}
		}
	}
	for _, want := range m.Settings.Addresses {
		ip, err := netip.ParseAddr(want.IP)
		if err == nil && !slices.Contains(have, ip.String()) {
			found = append(found, problem("if the address is right, "+restartAgent+"; else correct "+settings.DescribeKey("networks.*.ip", want.Network),
				"no link has the address %s from the settings; addresses found: %s", want.IP, orNone(have)))
		}
	}
	switch {
	case len(found) > 0:
		return found
	case len(m.Network.State.NICs()) == 0:
		return []Finding{problem("attach a network card", "the machine has no network card")}
	case up == 0:
		return []Finding{problem("bring a link up, or wait for the agent to boot", "no network card is up")}
	case len(have) == 0:
		return []Finding{problem("check the DHCP lease with 'networkctl status', and the step network with 'agent status'",
			"no link has a global address")}
	}
	return []Finding{good("%s", strings.Join(have, ", "))}
}

const endDuplicate = "give one of the two another address: find the other machine by its hardware address, and correct the static IPs of the " +
	"manifest or the ranges that the cloud config reserves"

func duplicates(m observe.Facts) (found []Finding) {
	for _, text := range m.Network.Duplicates {
		found = append(found, problem(endDuplicate, "%s", text))
	}
	if len(found) == 0 {
		return []Finding{good("no other machine uses an address of this one")}
	}
	return found
}

// reportedDuplicate returns a finding if the agent's status reports a duplicate address.
func reportedDuplicate(m observe.Facts) []Finding {
	if text := m.Agent.Status.Warning(status.DuplicateAddress); text != "" {
		return []Finding{problem(endDuplicate, "%s: %s", status.DuplicateAddress, text)}
	}
	return nil
}

// reachable reports whether all servers of the bus greeted.
func reachable(m observe.Facts) bool {
	return !slices.ContainsFunc(m.Bus.Servers, func(s observe.Server) bool { return unreached(s.Failed) })
}

func unreached(step natsbus.ProbeStep) bool {
	return step == natsbus.ProbeDNS || step == natsbus.ProbeTCP || step == natsbus.ProbeGreeting
}

func gateway(m observe.Facts) (found []Finding) {
	severity := warning
	if !reachable(m) {
		severity = problem
	}
	var answering []string
	for _, g := range m.Network.Gateways {
		if g.Answers {
			answering = append(answering, g.IP+" on "+g.Link)
			continue
		}
		what, do := silentGateway(m, g)
		found = append(found, severity(do, "%s", what))
	}
	switch {
	case len(found) > 0:
		return found
	case len(m.Network.Gateways) == 0 && unmade(m, "network"):
		return []Finding{note("", "there is no default route yet")}
	case len(m.Network.Gateways) == 0 && len(m.Settings.Gateways) > 0:
		return []Finding{problem("'agent plan' shows what a boot would change; "+restartAgent,
			"there is no default route, although the settings name the gateway %s",
			join(m.Settings.Gateways))}
	case len(m.Network.Gateways) == 0 && !reachable(m):
		return []Finding{problem("give one network the default gateway: correct "+settings.DescribeKey("networks.*.default",
			"NAME"), "there is no default route")}
	case len(m.Network.Gateways) == 0:
		return []Finding{note("", "there is no default route; the bus can be reached without one")}
	}
	return []Finding{good("%s answers", strings.Join(answering, ", "))}
}

// silentAfterGreeting reports whether a server greeted but then sent nothing more in time. The agent sends its
// certificate after its own part of the handshake, so if that packet is lost, the agent waits for the authorization.
func silentAfterGreeting(s observe.Server) bool {
	return s.Timeout && (s.Failed == natsbus.ProbeTLS || s.Failed == natsbus.ProbeAuthorization)
}

// minMTU is the smallest MTU that IPv6 permits on a link. No IaaS offers less.
const minMTU = 1280

func mtu(m observe.Facts) (found []Finding) {
	var sizes []string
	for _, l := range m.Network.State.NICs() {
		if !l.Up {
			continue
		}
		if l.MTU < minMTU {
			found = append(found, warning(fmt.Sprintf("set it to the MTU of the IaaS, usually 1500: 'ip link set %s mtu 1500'",
				l.Name),
				"%s has an MTU of %d bytes, less than the %d that every IaaS supports", l.Name, l.MTU, minMTU))
		}
		sizes = append(sizes, fmt.Sprintf("%s %d", l.Name, l.MTU))
	}
	for _, s := range m.Bus.Servers {
		// A NATS server speaks first, in one small packet; the handshake's are as large as the MTU allows.
		if silentAfterGreeting(s) {
			found = append(found, problem("lower the MTU of the link to that of the network, for example 'ip link set eth0 mtu 1400', or correct the MTU of the network",
				"small packets reach %s, but the TLS handshake gets no answer: large packets are lost on the way (MTU: %s)",
				s.Address, strings.Join(sizes, ", ")))
		}
	}
	if len(found) > 0 {
		return found
	}
	return []Finding{good("%s", orNone(sizes))}
}

// soon is the remaining validity below which a certificate gets a warning.
const soon = 30 * 24 * time.Hour

func certificate(m observe.Facts) (found []Finding) {
	id := m.Identity
	switch {
	case !id.Needed && m.Settings.Err != "":
		return []Finding{note("", "there are no settings, and so no certificate to check")}
	case !id.Needed:
		return []Finding{good("the bus does not need one")}
	case id.KeyErr != "":
		return []Finding{problem("recreate the VM; if that does not help, correct "+settings.DescribeKey("env.bosh.mbus.cert"), "certificate and private key of the bus cannot be used: %s", id.KeyErr)}
	}
	const renew = "rotate the Director's NATS certificates and recreate the VM; if the certificate should still be valid, correct this machine's clock"
	names := 0
	for _, c := range id.Certificates {
		what := fmt.Sprintf("the %s certificate %q", c.Role, c.Name)
		switch left := c.NotAfter.Sub(m.Time); {
		case m.Time.Before(c.NotBefore):
			found = append(found, problem("correct the clock of this machine, or of the machine that signed the certificate",
				"%s is not valid before %s", what, day(c.NotBefore)))
		case left <= 0:
			found = append(found, problem(renew, "%s expired on %s", what, day(c.NotAfter)))
		case left < soon:
			found = append(found, warning(renew, "%s expires on %s, in %d days", what, day(c.NotAfter), int(left.Hours()/24)))
		}
		if owner, of := agentOf(c.Name); c.Role == observe.RoleClient && of && m.Settings.AgentID != "" &&
			owner != m.Settings.AgentID {
			found = append(found, problem("recreate the VM: its settings contain another agent's certificate",
				"%s belongs to agent %s, but this is agent %s", what, owner, m.Settings.AgentID))
		}
		names++
	}
	if id.ChainErr != "" {
		found = append(found, warning("recreate the VM; if that does not help, correct "+settings.DescribeKey("env.bosh.mbus.cert"), "the agent's certificate does not chain to the CA in the settings: %s", id.ChainErr))
	}
	if len(found) == 0 {
		return []Finding{good("%d certificates are valid", names)}
	}
	return found
}

// agentOf extracts the agent id from the name in a client certificate: ID.agent.bosh-internal or
// ID.bootstrap.agent.bosh-internal.
func agentOf(name string) (id string, of bool) {
	id, of = strings.CutSuffix(name, ".agent.bosh-internal")
	return strings.TrimSuffix(id, ".bootstrap"), of
}

func day(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 MST") }

// reportedBus returns a finding if the agent reports that its bus is not connected.
func reportedBus(m observe.Facts) []Finding {
	d := m.Agent.Status
	if d == nil || !m.Agent.Running || d.Bus == nil || d.Bus.Reachable() {
		return nil
	}
	severity := warning // it may be a matter of seconds
	if d.Bus.Overdue || d.Bus.State == status.BusRefused {
		severity = problem
	}
	return []Finding{severity("'"+asRoot+"' finds the step that fails", "the agent's bus is not connected: %s",
		d.Bus.Summary(d.BusAge(m.Time)))}
}

func bus(m observe.Facts) (found []Finding) {
	b := m.Bus
	switch {
	case len(b.URLs) == 0 && m.Settings.Err != "":
		return []Finding{note("", "there are no settings, and so no bus to check")}
	case len(b.URLs) == 0:
		return []Finding{problem("set "+busURLs, "the settings name no message bus")}
	case b.IdentityErr != "":
		return []Finding{problem("correct "+busURLs+", and "+settings.DescribeKey("env.bosh.mbus.cert"), "%s", b.IdentityErr)}
	case b.ListenErr != "":
		return []Finding{problem("check 'agent status': the agent listens once it is ready",
			"the bus does not listen at %s: %s", b.Listens, b.ListenErr)}
	case b.Listens != "":
		return []Finding{good("listens at %s", b.Listens)}
	}
	connected := 0
	for _, s := range b.Servers {
		if s.Failed == "" {
			connected++
		}
	}
	severity := problem
	if connected > 0 {
		severity = warning // the agent uses any of them
	}
	if d := m.Agent.Status; connected == len(b.Servers) && d != nil && m.Agent.Running && d.Bus != nil && d.Bus.Overdue {
		found = append(found, problem(restartAgent,
			"the agent's bus is not connected, although a new connection passes all steps: %s",
			d.Bus.Summary(d.BusAge(m.Time))))
	}
	for _, s := range b.Servers {
		if s.Failed == "" {
			found = append(found, good("%s: all steps passed", s.Address))
			continue
		}
		what, do := explain(m, s)
		found = append(found, severity(do, "%s", what))
	}
	return found
}

// explain describes a failed step and what to do about it.
func explain(m observe.Facts, s observe.Server) (what, do string) {
	host, _, _ := strings.Cut(s.Address, ":")
	if silentAfterGreeting(s) {
		return fmt.Sprintf("%s greets, but does not answer the TLS handshake: %s", s.Address, s.Err),
			"see the check 'MTU'; if large packets do arrive, see whether the server is overloaded"
	}
	switch s.Failed {
	case natsbus.ProbeDNS:
		return fmt.Sprintf("the name %s cannot be resolved by DNS: %s", host, s.Err),
			fmt.Sprintf("check that the DNS servers (%s) know the name: 'resolvectl query %s'; else correct %s",
				orNone(texts(m.Settings.DNS)), host, busURLs)
	case natsbus.ProbeTCP:
		if what, do = sameSubnet(m, s); what != "" {
			return what, do
		}
		if s.Timeout {
			what = fmt.Sprintf("no answer to TCP on %s (%s): the port is filtered, or the host is down", s.Address,
				strings.Join(s.Addresses, ", "))
			if len(m.Drops) > 0 {
				what += "; local chains that drop packets: " + strings.Join(m.Drops, ", ")
			}
			return what, "allow connections from this machine to that port: check security groups and firewalls of the IaaS, and 'nft list ruleset' here"
		}
		return fmt.Sprintf("cannot connect to %s: %s", s.Address, s.Err),
			"check that the Director's NATS server is running and listens there"
	case natsbus.ProbeGreeting:
		return fmt.Sprintf("%s accepts connections but does not speak NATS: %s", s.Address, s.Err),
			"check that it is the port of NATS, and that there is no proxy in between"
	case natsbus.ProbeTLS:
		return explainTLS(s)
	case natsbus.ProbeAuthorization:
		if s.Password {
			return fmt.Sprintf("%s does not accept the user and password of the bus URL in the settings: %s",
					s.Address, s.Err),
				"the Director's NATS password was changed, or the settings are for another Director: recreate the VM, so that it gets the current password"
		}
		return fmt.Sprintf("%s does not authorize the agent's certificate: %s", s.Address, s.Err),
			"a new VM is refused for about a minute, until nats-sync has added it; if it stays refused, the Director does not have this VM: check 'bosh vms', then recreate it"
	}
	return fmt.Sprintf("%s lets the agent log in, but not subscribe to agent.%s: %s", s.Address, m.Settings.AgentID,
			s.Err),
		"the certificate belongs to another agent, or the VM was deleted in the Director: recreate it"
}

func explainTLS(s observe.Server) (what, do string) {
	switch {
	case strings.Contains(s.Err, "unknown authority"):
		return fmt.Sprintf("the certificate %q of %s is not signed by the CA in the settings: %s", s.Name, s.Address, s.Err),
			"the Director's CA was changed, or the settings are for another Director: recreate the VM, so that it gets the current CA"
	case strings.Contains(s.Err, "does not accept the agent's certificate"):
		return fmt.Sprintf("%s: %s", s.Address, s.Err),
			"see the check 'certificate' for its validity and name; if it passed, the server trusts another CA: recreate the VM"
	}
	return fmt.Sprintf("TLS with %s failed: %s", s.Address, s.Err),
		"check that URL, CA and the server's certificate belong to the same Director"
}

// nameServers reports DNS servers that do not answer the machine's jobs. If the bus cannot be resolved, the check of
// the bus reports that.
func nameServers(m observe.Facts) (found []Finding) {
	var silent []observe.NameServer
	for _, s := range m.NameServers {
		if !s.Answers {
			silent = append(silent, s)
		}
	}
	severity := warning
	if len(silent) == len(m.NameServers) {
		severity = problem
	}
	for _, s := range silent {
		found = append(found, severity("check that it is up, and allow UDP port 53 to it; if it has another address, correct "+
			settings.DescribeKey("networks.*.dns", s.Network), "the DNS server %s does not answer", s.IP))
	}
	if len(found) == 0 {
		return []Finding{good("%d servers answer", len(m.NameServers))}
	}
	return found
}

func blobs(m observe.Facts) []Finding {
	b := m.Blobstore
	keys := settings.DescribeKey("env.bosh.blobstores") + ", or " + settings.DescribeKey("blobstore")
	switch {
	case b.Refused:
		return []Finding{problem("the Director has changed the password of the blobstore: recreate the VM; if that does not help, correct "+keys,
			"the blobstore (%s) does not accept the user and password of the settings: %s", b.Provider, b.Err)}
	case b.Err != "":
		return []Finding{problem("check that it is running, and that this machine may connect to it; if it is elsewhere, correct "+keys,
			"the blobstore (%s) cannot be used: %s", b.Provider, b.Err)}
	case !b.Asked:
		return []Finding{good("not asked: %s has no credentials here", cmp.Or(b.Provider, "the blobstore"))}
	}
	return []Finding{good("%s answers", b.Provider)}
}

func firewallRules(m observe.Facts) []Finding {
	if len(m.Drops) == 0 {
		return []Finding{good("no chain of another program drops outgoing packets")}
	}
	severity := note
	if !reachable(m) {
		severity = warning
	}
	return []Finding{severity("'nft list ruleset' shows them; allow root to reach the bus", "%s",
		strings.Join(m.Drops, ", "))}
}

// busURLs names the keys that have the URLs of the bus.
var busURLs = settings.DescribeKey("env.bosh.mbus.urls") + ", or " + settings.DescribeKey("mbus")

// networkOf returns the name of the network that has an address in the settings.
func networkOf(list []observe.OfNetwork, ip string) (name string, named bool) {
	i := slices.IndexFunc(list, func(o observe.OfNetwork) bool { return o.IP == ip })
	if i < 0 {
		return "", false
	}
	return list[i].Network, true
}

// silentGateway describes a gateway that does not answer. If it is outside the subnets of its link, the gateway or the
// netmask is wrong.
func silentGateway(m observe.Facts, g observe.Gateway) (what, do string) {
	what = fmt.Sprintf("gateway %s does not answer on %s", g.IP, g.Link)
	name, named := networkOf(m.Settings.Gateways, g.IP)
	if !named {
		return what, "check that the router of that network is up, and that the link is in the right VLAN or port group"
	}
	correct := "correct " + settings.DescribeKey("networks.*.gateway", name)
	if l, known := m.Network.State.Link(g.Link); known {
		ip, err := netip.ParseAddr(g.IP)
		if _, inside := l.Subnet(ip); err == nil && !inside && len(l.Addresses) > 0 {
			return what + "; it is outside the subnets of that link",
				correct + ", and " + settings.DescribeKey("networks.*.netmask", name)
		}
	}
	return what, "check that the router is up, and that the link is in the right VLAN or port group; if the gateway has another address, " + correct
}

// sameSubnet describes a server that does not answer in the subnet of a link. If the netmask is wrong, the machine
// looks for the server on the link and not beyond the gateway.
func sameSubnet(m observe.Facts, s observe.Server) (what, do string) {
	if s.Silent == "" {
		return "", ""
	}
	what = fmt.Sprintf("no answer from %s to ARP or neighbor discovery: by the netmask it is in the subnet %s of %s, and not beyond a gateway",
		s.Address, s.Silent, s.SilentOn)
	for _, own := range m.Settings.Addresses {
		ip, err := netip.ParseAddr(own.IP)
		if prefix, bad := netip.ParsePrefix(s.Silent); err == nil && bad == nil && prefix.Contains(ip) {
			return what, "check that the host is up; if it is in another subnet, correct " + settings.DescribeKey("networks.*.netmask", own.Network)
		}
	}
	return what, "check that the host is up, and that the DHCP server gives the right netmask"
}

func texts(list []observe.OfNetwork) (all []string) {
	for _, o := range list {
		all = append(all, o.IP)
	}
	return all
}

func join(list []observe.OfNetwork) string { return strings.Join(texts(list), ", ") }

func orNone(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}
