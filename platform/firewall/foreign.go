package firewall

import (
	"context"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// ForeignDrops lists other programs' chains that may drop outgoing packets, by their policy or by a rule, for operators
// who wonder why a server is unreachable.
func (f *Firewall) ForeignDrops(ctx context.Context) (found []string, err error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	conn, err := open()
	if err != nil {
		return nil, err
	}
	chains, err := conn.ListChains()
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", supported(err))
	}
	for _, c := range chains {
		if c.Table == nil || c.Table.Name == tableName || c.Hooknum == nil || *c.Hooknum != *nftables.ChainHookOutput {
			continue
		}
		name := fmt.Sprintf("%s %s %s", family(c.Table.Family), c.Table.Name, c.Name)
		if c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop {
			found = append(found, name+" (policy drop)")
			continue
		}
		rules, err := conn.GetRules(c.Table, c)
		if err != nil {
			return nil, fmt.Errorf("rules of %s: %w", name, supported(err))
		}
		if n := dropping(rules); n > 0 {
			found = append(found, fmt.Sprintf("%s (%d rules that drop or reject)", name, n))
		}
	}
	return found, nil
}

// dropping counts the rules that drop or reject.
func dropping(rules []*nftables.Rule) (n int) {
	for _, r := range rules {
		for _, e := range r.Exprs {
			verdict, is := e.(*expr.Verdict)
			_, rejects := e.(*expr.Reject)
			if rejects || is && verdict.Kind == expr.VerdictDrop {
				n++
			}
		}
	}
	return n
}

func family(f nftables.TableFamily) string {
	switch f {
	case nftables.TableFamilyIPv4:
		return "ip"
	case nftables.TableFamilyIPv6:
		return "ip6"
	case nftables.TableFamilyINet:
		return "inet"
	}
	return fmt.Sprintf("family %d", f)
}
