package nftable

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/nlsock"
)

// Rule is one of a chain's.
type Rule struct {
	Chain string
	// Comment identifies what the rule does: it is made of a checksum.
	Comment string

	exprs Attributes
}

// Encoded is an expression that package expr lacks, as the kernel takes it.
type Encoded []byte

// NewRule returns a rule. Each of its expressions is an expr.Any or Encoded. Rules of another
// layout of the table have other comments.
func NewRule(chain, layout string, exprs ...any) Rule {
	var list Attributes
	for _, e := range exprs {
		data, ok := e.(Encoded)
		if !ok {
			var err error
			if data, err = expr.Marshal(unix.NFPROTO_INET, e.(expr.Any)); err != nil {
				panic(fmt.Sprintf("rule of chain %s: %v", chain, err)) // they are constant
			}
		}
		list = list.Nested(unix.NFTA_LIST_ELEM, data)
	}
	sum := sha256.Sum256(append([]byte(layout), list...))
	return Rule{Chain: chain, Comment: "husk " + hex.EncodeToString(sum[:4]), exprs: list}
}

const ruleComment = 0 // libnftnl's type of user data

// ParseComment returns the comment in a rule's user data.
func ParseComment(data []byte) string {
	for len(data) >= 2 && len(data) >= 2+int(data[1]) {
		value := data[2 : 2+int(data[1])]
		if data[0] == ruleComment {
			return unix.ByteSliceToString(value)
		}
		data = data[2+len(value):]
	}
	return ""
}

// PrependRule returns the message that adds a rule at the start of its chain.
func (t *Table) PrependRule(r Rule) *nl.NetlinkRequest { return t.newRule(r, 0) }

// AppendRule returns the message that adds a rule at the end of its chain.
func (t *Table) AppendRule(r Rule) *nl.NetlinkRequest { return t.newRule(r, unix.NLM_F_APPEND) }

func (t *Table) newRule(r Rule, flags int) *nl.NetlinkRequest {
	a := Attributes{}.Text(unix.NFTA_RULE_TABLE, t.Name).Text(unix.NFTA_RULE_CHAIN, r.Chain).
		Nested(unix.NFTA_RULE_EXPRESSIONS, r.exprs).
		Bytes(unix.NFTA_RULE_USERDATA, userdata.AppendString(nil, ruleComment, r.Comment))
	return Request(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|flags, a)
}

// FoundRule is a rule that the kernel has.
type FoundRule struct {
	Chain, Comment string
	// Counted is whether it counts packets, and Packets are those.
	Counted bool
	Packets uint64
}

// Rules returns the table's rules, in the order of each chain.
func (t *Table) Rules() ([]FoundRule, error) {
	req := Request(unix.NFT_MSG_GETRULE, 0, Attributes{}.Text(unix.NFTA_RULE_TABLE, t.Name))
	rules, err := nlsock.List(t.Conn, req, func(data []byte) (r FoundRule, own bool) {
		for typ, value := range Fields(data) {
			switch typ {
			case unix.NFTA_RULE_TABLE:
				own = unix.ByteSliceToString(value) == t.Name
			case unix.NFTA_RULE_CHAIN:
				r.Chain = unix.ByteSliceToString(value)
			case unix.NFTA_RULE_USERDATA:
				r.Comment = ParseComment(value)
			case unix.NFTA_RULE_EXPRESSIONS:
				for _, expr := range nlsock.Attributes(value) {
					if packets, ok := ParseCounter(expr); ok && !r.Counted {
						r.Packets, r.Counted = packets, true
					}
				}
			}
		}
		return r, own
	})
	if err != nil {
		return nil, fmt.Errorf("list rules: %w", err)
	}
	return rules, nil
}
