// Package firewall restricts access to the message bus, the process supervisor and, on request, the metadata service.
// These trust any local process that can connect. The package configures nftables over netlink.
//
// Its chains are in the table inet bosh_agent. A chain that differs from the desired state is rebuilt in one
// transaction, so that its rules are always in place. The chain monit_access_jobs belongs to the jobs: it is created if
// missing, and never flushed.
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
	// metadataChain and forwardChain block access to metadata services, by local processes and by containers for which
	// the machine forwards.
	metadataChain = "metadata_access"
	forwardChain  = "metadata_access_forward"
)

// monitAddress is the address at which the process supervisor listens.
var monitAddress = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 2822)

// errUnsupported is returned if the kernel has no nftables, or denies access to it. The agent then runs without rules.
var errUnsupported = errors.New("nftables is not available")

// Firewall reads and changes the rules in the network namespace of the process.
type Firewall struct {
	Log *logrus.Entry
	// Resolver resolves the addresses of the bus. If nil, the system's resolver does.
	Resolver interface {
		LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
	}
}

// Desired describes the wanted rules. Other rules stay as they are.
type Desired struct {
	// Off removes the chains for monit and the bus, whatever Monit and NATS contain. The chain of the jobs stays: no
	// other chain jumps to it any more.
	Off bool
	// Monit restricts the supervisor's port to root and to the exceptions of jobs.
	Monit bool
	// NATS restricts these addresses to root. If nil, the present rules stay.
	NATS []netip.AddrPort
	// Metadata restricts access to metadata services. If nil, the present rules stay.
	Metadata *Metadata
}

// Metadata describes who may connect to metadata services, and to registries with settings.
type Metadata struct {
	// Open removes the rules.
	Open bool
	// Servers lists servers to restrict. Those that the present rules restrict stay restricted, since the agent may not
	// know all of them at first.
	Servers []netip.AddrPort
	// Users may connect, besides root.
	Users []uint32
}

// State holds the observed chains of our table. Rules are in the kernel's encoding.
type State struct {
	chains map[string]chainState
}

type chainState struct {
	base  bool // its type, hook, priority and policy are those of our chain of that name
	rules [][]byte
	// servers lists the servers that a rule like ours rejects.
	servers []netip.AddrPort
}

// Op is the kind of a change.
type Op string

// Kinds of changes.
const (
	OpMakeChain    Op = "make-chain"    // an empty one, to which jobs add rules
	OpFillChain    Op = "fill-chain"    // with exactly our rules
	OpReplaceChain Op = "replace-chain" // the same, after removing a chain with a wrong hook or priority
	OpRemoveChain  Op = "remove-chain"
)

// Change is a step towards the desired state.
type Change struct {
	Op    Op
	Chain string
	rules []rule
}

// Runs returns false: a change of rules starts no program or service.
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

// priority returns a priority just before that of other filter chains, whose accept verdicts would apply first.
func priority() *nftables.ChainPriority {
	return nftables.ChainPriorityRef(*nftables.ChainPriorityFilter - 1)
}

// hook returns the hook of one of our chains.
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
			chain.Priority != nil && *chain.Priority == *priority() &&
			(chain.Policy == nil || *chain.Policy == nftables.ChainPolicyAccept)
		rules, err := conn.GetRules(table(), chain)
		if err != nil {
			return State{}, fmt.Errorf("list rules of %s: %w", chain.Name, err)
		}
		for _, r := range rules {
			// A rule that cannot be encoded is foreign: nil equals none of ours.
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

// Diff returns the chains to create, rebuild or remove.
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

// Apply makes all changes in one transaction: either all of them or none.
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
	for _, c := range changes {
		f.Log.WithField("change", c.String()).Info("changed firewall")
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
	chain.Type, chain.Hooknum, chain.Priority, chain.Policy = nftables.ChainTypeFilter, hook(
		c.Chain), priority(), &accept
	chain = conn.AddChain(chain)
	conn.FlushChain(chain)
	for _, r := range c.rules {
		conn.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: r})
	}
}

// Resolve returns the addresses of the servers in URLs. It ignores other schemes and URLs without a port, and skips
// servers that cannot be resolved. If none is left, it returns nil, with which Diff keeps the present rules.
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
			f.Log.WithField("url", u).WithError(err).Debug("cannot resolve a bus address; there is no rule for it")
			continue
		}
		for _, a := range addresses {
			servers = append(servers, netip.AddrPortFrom(a, port))
		}
	}
	return sorted(servers)
}

// sorted normalizes a list of servers, so that the same servers result in the same rules.
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

// supported marks errors that show that nftables cannot be used on this machine.
func supported(err error) error {
	for _, errno := range []error{unix.EPERM, unix.EOPNOTSUPP, unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT, unix.ENOSYS} {
		if errors.Is(err, errno) {
			return fmt.Errorf("%w: %w", errUnsupported, err)
		}
	}
	return err
}

// encode returns the kernel's encoding of a rule, for comparison.
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
