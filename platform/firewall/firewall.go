// Package firewall restricts access to the message bus, the process supervisor and, on request, the metadata service.
// These trust any local process that can connect. The package configures nftables over netlink.
//
// Table inet bosh_agent holds our chains. A chain is rebuilt in one transaction when it differs from the desired state,
// so that there is no moment without its rules. monit_access_jobs belongs to the jobs: it is made if missing and never
// flushed.
package firewall

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"sort"
	"strconv"

	"cambium/internal/secret"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

const (
	tableName  = "bosh_agent"
	natsChain  = "nats_access"
	monitChain = "monit_access"
	jobsChain  = "monit_access_jobs"
	// metadataChain and forwardChain close metadata services, to the machine's processes and to what it forwards for
	// containers.
	metadataChain = "metadata_access"
	forwardChain  = "metadata_access_forward"
)

// monitAddress is the address at which the process supervisor listens.
var monitAddress = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 2822)

// errUnsupported means that this kernel has no nftables, or denies access to it. The agent then
// runs without rules.
var errUnsupported = errors.New("nftables is not available")

// Firewall works on the network namespace of the process.
type Firewall struct {
	Log *logrus.Entry
	// Resolver finds the addresses of the bus; nil means the system's.
	Resolver interface {
		LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
	}
}

// Desired describes the wanted rules. What it does not name stays as it is.
type Desired struct {
	// Off removes the chains for monit and the bus, whatever Monit and NATS say. The chain of the jobs stays: without
	// ours no chain jumps to it.
	Off bool
	// Monit closes the supervisor's port to all but root and what jobs let in.
	Monit bool
	// NATS closes these addresses to all but root; nil leaves the present rules.
	NATS []netip.AddrPort
	// Metadata says who reaches metadata services; nil leaves the present rules.
	Metadata *Metadata
}

// Metadata says who reaches metadata services, and registries with settings.
type Metadata struct {
	// Open removes the rules.
	Open bool
	// Servers are closed, and so are those that the present rules close: the agent may not know them all at first.
	Servers []netip.AddrPort
	// Users reach them, besides root.
	Users []uint32
}

// State holds the chains of our table as observed, with their rules in the kernel's own encoding.
type State struct {
	chains map[string]chainState
}

type chainState struct {
	base  bool // a filter chain on the hook of our chain of that name, with our priority and policy accept
	rules [][]byte
	// servers are those that a rule of our shape refuses.
	servers []netip.AddrPort
}

// Op is a kind of change.
type Op string

// The kinds of change.
const (
	OpMakeChain    Op = "make-chain"    // empty; jobs add rules to it
	OpFillChain    Op = "fill-chain"    // with exactly our rules
	OpReplaceChain Op = "replace-chain" // the same, but it is not attached as it should be and goes first
	OpRemoveChain  Op = "remove-chain"
)

// Change is one step from what is to what is wanted.
type Change struct {
	Op    Op
	Chain string
	rules []rule
}

// Runs is false: no program or service is started.
func (Change) Runs() bool { return false }

// String describes the change in one line.
func (c Change) String() string {
	switch c.Op {
	case OpMakeChain:
		return "make chain " + c.Chain
	case OpRemoveChain:
		return "remove chain " + c.Chain
	case OpReplaceChain:
		return fmt.Sprintf("replace chain %s with %d rules", c.Chain, len(c.rules))
	}
	return fmt.Sprintf("fill chain %s with %d rules", c.Chain, len(c.rules))
}

func open() (*nftables.Conn, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnsupported, err)
	}
	return conn, nil
}

func table() *nftables.Table {
	return &nftables.Table{Name: tableName, Family: nftables.TableFamilyINet}
}

// priority is one before that of the usual filter chains, so that their accept verdicts do not
// apply first.
func priority() *nftables.ChainPriority {
	return nftables.ChainPriorityRef(*nftables.ChainPriorityFilter - 1)
}

// hook is the place in the kernel where a chain of ours sees packets.
func hook(chain string) *nftables.ChainHook {
	if chain == forwardChain {
		return nftables.ChainHookForward
	}
	return nftables.ChainHookOutput
}

// Observe reads our table.
func (f *Firewall) Observe(ctx context.Context, _ Desired) (State, error) {
	if ctx.Err() != nil {
		return State{}, context.Cause(ctx)
	}
	conn, err := open()
	if err != nil {
		return State{}, err
	}
	return observe(conn)
}

func observe(conn *nftables.Conn) (State, error) {
	s := State{chains: make(map[string]chainState)}
	chains, err := conn.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return State{}, fmt.Errorf("list chains: %w", supported(err))
	}
	for _, chain := range chains {
		if chain.Table == nil || chain.Table.Name != tableName {
			continue
		}
		var c chainState
		c.base = chain.Type == nftables.ChainTypeFilter && chain.Hooknum != nil && *chain.Hooknum == *hook(chain.Name) &&
			chain.Priority != nil && *chain.Priority == *priority() && (chain.Policy == nil || *chain.Policy == nftables.ChainPolicyAccept)
		rules, err := conn.GetRules(table(), chain)
		if err != nil {
			return State{}, fmt.Errorf("list rules of %s: %w", chain.Name, err)
		}
		for _, r := range rules {
			// A rule that cannot be encoded is foreign; nil equals none of ours.
			encoded, err := encode(r.Exprs)
			if err != nil {
				encoded = nil
			}
			c.rules = append(c.rules, encoded)
			if server, refuses := refused(r.Exprs); refuses {
				c.servers = append(c.servers, server)
			}
		}
		s.chains[chain.Name] = c
	}
	return s, nil
}

// Diff decides which chains have to be made, rebuilt or removed.
func Diff(have State, want Desired) (changes []Change, err error) {
	if want.Off {
		changes = removed(have, monitChain, natsChain)
		want.Monit, want.NATS = false, nil
	}
	chains := map[string][]rule{}
	if want.Monit {
		if _, there := have.chains[jobsChain]; !there {
			changes = append(changes, Change{Op: OpMakeChain, Chain: jobsChain})
		}
		chains[monitChain] = monitRules()
	}
	if want.NATS != nil {
		chains[natsChain] = natsRules(sorted(want.NATS))
	}
	if m := want.Metadata; m != nil {
		servers := sorted(slices.Concat(m.Servers, have.chains[forwardChain].servers))
		switch {
		case m.Open:
			changes = append(changes, removed(have, metadataChain, forwardChain)...)
		case len(servers) > 0:
			chains[metadataChain], chains[forwardChain] = metadataRules(servers, m.Users), forwardRules(servers)
		}
	}
	for _, name := range []string{monitChain, natsChain, metadataChain, forwardChain} {
		rules, wanted := chains[name]
		if !wanted {
			continue
		}
		some, err := diffChain(have, name, rules)
		if err != nil {
			return nil, err
		}
		changes = append(changes, some...)
	}
	return changes, nil
}

func removed(have State, names ...string) (changes []Change) {
	for _, name := range names {
		if _, there := have.chains[name]; there {
			changes = append(changes, Change{Op: OpRemoveChain, Chain: name})
		}
	}
	return changes
}

func diffChain(have State, name string, rules []rule) ([]Change, error) {
	found, there := have.chains[name]
	same := there && found.base && len(found.rules) == len(rules)
	for i, r := range rules {
		encoded, err := encode(r)
		if err != nil {
			return nil, err
		}
		same = same && bytes.Equal(encoded, found.rules[i])
	}
	if same {
		return nil, nil
	}
	op := OpFillChain
	if there && !found.base {
		op = OpReplaceChain
	}
	return []Change{{Op: op, Chain: name, rules: rules}}, nil
}

// Apply makes all changes in one transaction: all of them are made or none.
func (f *Firewall) Apply(ctx context.Context, changes []Change) (made []Change, err error) {
	if len(changes) == 0 {
		return nil, nil
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	conn, err := open()
	if err != nil {
		return nil, err
	}
	t := conn.AddTable(table())
	for _, c := range changes {
		queue(conn, t, c)
	}
	if err := conn.Flush(); err != nil {
		return nil, fmt.Errorf("change nftables: %w", supported(err))
	}
	if f.Log != nil {
		for _, c := range changes {
			f.Log.WithField("change", c.String()).Info("changed firewall")
		}
	}
	return changes, nil
}

// queue adds a change to the transaction of conn.
func queue(conn *nftables.Conn, t *nftables.Table, c Change) {
	chain := &nftables.Chain{Name: c.Chain, Table: t}
	if c.Op == OpMakeChain {
		conn.AddChain(chain)
		return
	}
	if c.Op == OpReplaceChain || c.Op == OpRemoveChain {
		conn.FlushChain(chain)
		conn.DelChain(chain)
	}
	if c.Op == OpRemoveChain {
		return
	}
	accept := nftables.ChainPolicyAccept
	chain.Type, chain.Hooknum, chain.Priority, chain.Policy = nftables.ChainTypeFilter, hook(c.Chain), priority(), &accept
	chain = conn.AddChain(chain)
	conn.FlushChain(chain)
	for _, r := range c.rules {
		conn.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: r})
	}
}

// Resolve finds the addresses of the servers that the URLs name. URLs of other kinds, and those
// without a port, have none. A server that cannot be resolved is left out; if that is all of
// them the result is nil, and Diff then leaves the rules there are.
func (f *Firewall) Resolve(ctx context.Context, urls []secret.URL) (servers []netip.AddrPort) {
	resolver := f.Resolver
	if resolver == nil {
		resolver = net.DefaultResolver
	}
	for _, u := range urls {
		host, port, ok := endpoint(u)
		if !ok {
			continue
		}
		literal, err := netip.ParseAddr(host)
		addresses := []netip.Addr{literal}
		if err != nil {
			addresses, err = resolver.LookupNetIP(ctx, "ip", host)
		}
		if err != nil {
			if f.Log != nil {
				f.Log.WithField("url", u).WithError(err).Debug("cannot resolve a bus address; there is no rule for it")
			}
			continue
		}
		for _, a := range addresses {
			servers = append(servers, netip.AddrPortFrom(a, port))
		}
	}
	return sorted(servers)
}

// sorted normalizes a list of servers, so that the same servers have the same rules.
func sorted(servers []netip.AddrPort) (unique []netip.AddrPort) {
	for _, s := range servers {
		unique = append(unique, netip.AddrPortFrom(s.Addr().Unmap().WithZone(""), s.Port()))
	}
	sort.Slice(unique, func(i, j int) bool { return unique[i].Compare(unique[j]) < 0 })
	return slices.Compact(unique)
}

func endpoint(u secret.URL) (host string, port uint16, ok bool) {
	parsed, err := url.Parse(u.Reveal())
	if err != nil || parsed.Scheme != "nats" && parsed.Scheme != "tls" || parsed.Hostname() == "" {
		return "", 0, false
	}
	n, err := strconv.ParseUint(parsed.Port(), 10, 16)
	if err != nil || n == 0 {
		return "", 0, false
	}
	return parsed.Hostname(), uint16(n), true
}

// supported marks errors that mean that nftables cannot be used on this machine.
func supported(err error) error {
	for _, errno := range []error{unix.EPERM, unix.EOPNOTSUPP, unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT, unix.ENOSYS} {
		if errors.Is(err, errno) {
			return fmt.Errorf("%w: %w", errUnsupported, err)
		}
	}
	return err
}

// encode is the kernel's encoding of a rule, by which two rules are compared.
func encode(exprs []expr.Any) ([]byte, error) {
	var b bytes.Buffer
	for _, e := range exprs {
		if l, ok := e.(*expr.Log); ok {
			// The kernel adds a level, so only the prefix is compared.
			b.Write(bytes.TrimRight(l.Data, "\x00"))
			continue
		}
		one, err := expr.Marshal(byte(nftables.TableFamilyINet), e)
		if err != nil {
			return nil, err
		}
		b.Write(one)
	}
	return b.Bytes(), nil
}
