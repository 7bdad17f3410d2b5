package nftable

import (
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/nlsock"
)

// Hook is where the kernel calls a base chain.
type Hook struct {
	Kind     string // filter or nat
	Number   uint32
	Priority int32
}

// NewChain returns the message that makes a chain, which accepts what its rules don't judge. A nil
// hook is of a chain that only other chains call.
func (t *Table) NewChain(name string, hook *Hook) *nl.NetlinkRequest {
	a := Attributes{}.Text(unix.NFTA_CHAIN_TABLE, t.Name).Text(unix.NFTA_CHAIN_NAME, name)
	if hook != nil {
		where := Attributes{}.Number(unix.NFTA_HOOK_HOOKNUM, hook.Number).Number(unix.NFTA_HOOK_PRIORITY, uint32(hook.Priority))
		a = a.Nested(unix.NFTA_CHAIN_HOOK, where).Text(unix.NFTA_CHAIN_TYPE, hook.Kind).Number(unix.NFTA_CHAIN_POLICY, accept)
	}
	return Request(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, a)
}

// DeleteChain returns the messages that delete a chain and its rules.
func (t *Table) DeleteChain(name string) []*nl.NetlinkRequest {
	return []*nl.NetlinkRequest{
		Request(unix.NFT_MSG_DELRULE, 0, Attributes{}.Text(unix.NFTA_RULE_TABLE, t.Name).Text(unix.NFTA_RULE_CHAIN, name)),
		Request(unix.NFT_MSG_DELCHAIN, 0, Attributes{}.Text(unix.NFTA_CHAIN_TABLE, t.Name).Text(unix.NFTA_CHAIN_NAME, name)),
	}
}

// Chains returns the rules of each of the table's chains, also of those without any.
func (t *Table) Chains() (map[string][]FoundRule, error) {
	names, err := nlsock.List(t.Conn, Request(unix.NFT_MSG_GETCHAIN, 0, nil), func(data []byte) (name string, own bool) {
		for typ, value := range Fields(data) {
			switch typ {
			case unix.NFTA_CHAIN_TABLE:
				own = unix.ByteSliceToString(value) == t.Name
			case unix.NFTA_CHAIN_NAME:
				name = unix.ByteSliceToString(value)
			}
		}
		return name, own
	})
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	rules, err := t.Rules()
	if err != nil {
		return nil, err
	}
	chains := make(map[string][]FoundRule, len(names))
	for _, name := range names {
		chains[name] = nil
	}
	for _, r := range rules {
		chains[r.Chain] = append(chains[r.Chain], r)
	}
	return chains, nil
}

// Comments returns the comments of rules, which identify what they do.
func Comments(rules []FoundRule) (out []string) {
	for _, r := range rules {
		out = append(out, r.Comment)
	}
	return out
}
