package preflight

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/pod"
)

// BlockingFirewall is a rule set that drops forwarded packets, and with them pods' traffic. In
// netfilter a drop is final: Husk's own table can't override it.
type BlockingFirewall struct {
	// Where names the rule set for people: "nftables table ip filter, chain FORWARD" or
	// "iptables-legacy table filter, chain FORWARD".
	Where string
	// Fix are the commands, one per line, that let pods' traffic pass and change nothing else.
	Fix []string
}

// String returns the finding as one line.
func (b BlockingFirewall) String() string { return b.Where + " drops forwarded packets" }

// podLink is the link, or if open all links whose names have the prefix, by which the node receives
// pods' packets.
type podLink struct {
	name string
	open bool
}

// within reports whether a match for a link's name, or if open for a prefix, covers every link of
// l.
func (l podLink) within(name string, open bool) bool {
	if open {
		return strings.HasPrefix(l.name, name)
	}
	return !l.open && l.name == name
}

// ForwardPolicy finds the chains at hook forward with policy drop and without rules that accept
// packets from and to an instance's pods. It looks at nftables, which includes iptables-nft, and at
// legacy iptables of both families.
func ForwardPolicy(i pod.Instance, mode plan.Mode) ([]BlockingFirewall, error) {
	link := podLink{i.HostLinkPrefix(), true}
	if mode == plan.Bridge {
		link = podLink{i.Bridge(), false}
	}
	out, err := nftForward(link)
	if err != nil {
		return nil, err
	}
	for _, f := range []legacyFamily{legacy4, legacy6} {
		open, err := f.forwards(link)
		if err != nil {
			return nil, err
		}
		if !open {
			out = append(out, f.firewall(link))
		}
	}
	return out, nil
}

var families = map[nftables.TableFamily]string{
	nftables.TableFamilyIPv4: "ip",
	nftables.TableFamilyIPv6: "ip6",
	nftables.TableFamilyINet: "inet",
}

func nftForward(link podLink) ([]BlockingFirewall, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	chains, err := conn.ListChains()
	if err != nil {
		return nil, fmt.Errorf("list nftables chains: %w", err)
	}
	var out []BlockingFirewall
	for _, c := range chains {
		family, routed := families[c.Table.Family]
		if !routed || c.Type != nftables.ChainTypeFilter || c.Hooknum == nil || *c.Hooknum != *nftables.ChainHookForward ||
			c.Policy == nil || *c.Policy != nftables.ChainPolicyDrop {
			continue
		}
		rules, err := conn.GetRules(c.Table, c)
		if err != nil {
			return nil, fmt.Errorf("list nftables chain %s %s %s: %w", family, c.Table.Name, c.Name, err)
		}
		b := BlockingFirewall{Where: fmt.Sprintf("nftables table %s %s, chain %s", family, c.Table.Name, c.Name)}
		for _, dir := range []expr.MetaKey{expr.MetaKeyIIFNAME, expr.MetaKeyOIFNAME} {
			if !accepts(rules, dir, link) {
				b.Fix = append(b.Fix, nftFix(family, c, dir, link))
			}
		}
		if len(b.Fix) > 0 {
			out = append(out, b)
		}
	}
	return out, nil
}

func nftFix(family string, c *nftables.Chain, dir expr.MetaKey, link podLink) string {
	match, name := "iifname", link.name
	if dir == expr.MetaKeyOIFNAME {
		match = "oifname"
	}
	if link.open {
		name += "*"
	}
	return fmt.Sprintf("nft insert rule %s %s %s %s '\"%s\"' accept", family, c.Table.Name, c.Name, match, name)
}

// accepts reports whether one of the rules accepts all packets that arrive (or leave) by the link.
// Counters and comments aren't conditions.
func accepts(rules []*nftables.Rule, dir expr.MetaKey, link podLink) bool {
	for _, r := range rules {
		matched, other, accepted := false, false, false
		var register uint32
		for _, e := range r.Exprs {
			switch e := e.(type) {
			case *expr.Meta:
				if e.Key != dir {
					other = true
				}
				register = e.Register
			case *expr.Cmp:
				name := string(bytes.TrimRight(e.Data, "\x00"))
				if e.Op == expr.CmpOpEq && e.Register == register && link.within(name, len(name) == len(e.Data)) {
					matched = true
				} else {
					other = true
				}
			case *expr.Counter:
			case *expr.Verdict:
				accepted = e.Kind == expr.VerdictAccept
			default:
				other = true
			}
		}
		if accepted && !other && matched {
			return true
		}
	}
	return false
}
