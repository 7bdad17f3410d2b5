// Package accept reads NetworkPolicies and ClusterNetworkPolicies as the API defines them, with its
// defaults, and names each mistake. It is pure.
//
// An API server refuses most mistakes. Those that get here come from files, or from a server whose
// API is newer. A policy with a mistake is not dropped, because that would allow what it denies:
//
//   - A rule with a mistake in it fails closed, as ClusterNetworkPolicy defines it: an Accept rule
//     matches nothing, and any other rule denies everything.
//   - A direction with too many rules fails closed, all of them.
//   - A NetworkPolicy with a mistake in its podSelector isolates every pod of its namespace, and
//     its rules match nothing.
//   - A ClusterNetworkPolicy whose tier or subject has a mistake applies to no pod. The API doesn't
//     define that case, and denying everything to all pods of a cluster is no answer to a typo.
package accept

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	netutils "k8s.io/utils/net"

	"github.com/huskd/husk/internal/network/policy"
)

// Problem is a mistake in a policy.
type Problem struct {
	Object string // such as "NetworkPolicy default/web"
	Field  string // such as "spec.ingress[0].ports[1].endPort"
	Text   string // what is wrong, and what to do
}

// String returns the problem as one line.
func (p Problem) String() string { return p.Object + ": " + p.Field + ": " + p.Text }

// maxProblems bounds the problems of a policy that are returned. One more counts the others.
const maxProblems = 20

// checker collects the problems of an object.
type checker struct {
	object   string
	problems []Problem
	count    int // of all problems
}

func (c *checker) wrong(field, format string, args ...any) {
	c.count++
	if len(c.problems) < maxProblems {
		c.problems = append(c.problems, Problem{c.object, field, fmt.Sprintf(format, args...)})
	}
}

func (c *checker) result() []Problem {
	if c.count > maxProblems {
		c.problems = append(c.problems, Problem{c.object, "spec", fmt.Sprintf("has %d more mistakes: correct the first %d", c.count-maxProblems, maxProblems)})
	}
	return c.problems
}

// quote quotes a value for a message, shortened.
func quote[S ~string](value S) string {
	const most = 64
	if len(value) > most {
		return fmt.Sprintf("%q…", strings.ToValidUTF8(string(value[:most]), ""))
	}
	return fmt.Sprintf("%q", string(value))
}

const (
	keyRule   = "use at most 63 letters, digits, -, _ and ., optionally after a domain and /"
	valueRule = "use at most 63 letters, digits, -, _ and ., with a letter or digit at both ends"
)

var operators = map[metav1.LabelSelectorOperator]struct{ values bool }{
	metav1.LabelSelectorOpIn: {true}, metav1.LabelSelectorOpNotIn: {true}, metav1.LabelSelectorOpExists: {false}, metav1.LabelSelectorOpDoesNotExist: {false},
}

// selector reads a label selector. One with a mistake selects nothing.
func (c *checker) selector(field string, s *metav1.LabelSelector) labels.Selector {
	before := c.count
	for _, key := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		c.label(field+".matchLabels", key, s.MatchLabels[key])
	}
	for i, e := range s.MatchExpressions {
		at := fmt.Sprintf("%s.matchExpressions[%d]", field, i)
		switch operator, ok := operators[e.Operator]; {
		case !ok:
			c.wrong(at+".operator", "%s is unknown: use In, NotIn, Exists or DoesNotExist", quote(e.Operator))
		case operator.values && len(e.Values) == 0:
			c.wrong(at+".values", "missing: %s needs one or more", e.Operator)
		case !operator.values && len(e.Values) > 0:
			c.wrong(at+".values", "%s has no values: remove them, or use In", e.Operator)
		}
		c.label(at, e.Key, e.Values...)
	}
	if c.count > before {
		return labels.Nothing()
	}
	out, err := metav1.LabelSelectorAsSelector(s)
	if err != nil { // what the checks above don't know
		c.wrong(field, "is not a label selector: %s", strings.Join(strings.Fields(err.Error()), " "))
		return labels.Nothing()
	}
	return out
}

func (c *checker) label(field, key string, values ...string) {
	if len(validation.IsQualifiedName(key)) > 0 {
		c.wrong(field, "%s is not the key of a label: %s", quote(key), keyRule)
	}
	for _, value := range values {
		if len(validation.IsValidLabelValue(value)) > 0 {
			c.wrong(field, "%s is not the value of a label: %s", quote(value), valueRule)
		}
	}
}

// prefix reads a network. It accepts leading zeros and host bits, because an API server accepts
// them in policies that existed before it became stricter.
func (c *checker) prefix(field, text string) (netip.Prefix, bool) {
	_, network, err := netutils.ParseCIDRSloppy(text)
	if err != nil {
		c.wrong(field, "%s is not a network: write it like 10.0.0.0/8, 192.0.2.1/32 or fd00::/8", quote(text))
		return netip.Prefix{}, false
	}
	addr, _ := netip.AddrFromSlice(network.IP)
	bits, _ := network.Mask.Size()
	if addr.Is4In6() && bits >= 96 {
		addr, bits = addr.Unmap(), bits-96
	}
	return netip.PrefixFrom(addr, bits).Masked(), true
}

// portRange reads a range of ports. Fields are the names of the fields of its ends.
func (c *checker) portRange(protocol policy.Protocol, firstField, lastField string, first, last int32) policy.Port {
	valid := true
	for _, end := range []struct {
		field string
		port  int32
	}{{firstField, first}, {lastField, last}} {
		if end.port < 1 || end.port > 65535 {
			valid = false
			c.wrong(end.field, "%d is not a port: use 1 to 65535", end.port)
		}
		if firstField == lastField {
			break
		}
	}
	if valid && last < first {
		c.wrong(lastField, "%d is before %d, where the range begins: exchange them", last, first)
	}
	return policy.Port{Protocol: protocol, First: uint16(first), Last: uint16(last)}
}

func (c *checker) portName(field, name string) {
	if len(validation.IsValidPortName(name)) > 0 {
		c.wrong(field, "%s is not the name of a port: use at most 15 lower-case letters, digits and -, with a letter in it; write a number without quotes", quote(name))
	}
}

// closed returns a rule with a mistake as one that fails closed.
func closed(r policy.Rule) policy.Rule {
	if r.Action == policy.Accept {
		return policy.Rule{Name: r.Name, Action: policy.Accept, Peers: []policy.Peer{}}
	}
	return policy.Rule{Name: r.Name, Action: policy.Deny}
}

// The limits of a policy in one direction. What the kernel is told grows with the square of the
// rules with networks, as each may divide the addresses that others have, and with these times the
// ports. One rule may have any number of networks.
const (
	maxNetworkRules = 2000
	maxCombinations = 1_000_000
)

// bound closes the rules of a direction that are beyond the limits.
func (c *checker) bound(d policy.Direction, rules *policy.Rules) {
	if rules == nil {
		return
	}
	n, ports := 0, map[policy.Port]bool{}
	for _, r := range rules.Rules {
		if slices.ContainsFunc(r.Peers, func(p policy.Peer) bool { return p.Networks != nil }) {
			n++
		}
		for _, p := range r.Ports {
			ports[p] = true
		}
	}
	if n <= maxNetworkRules && n*len(ports) <= maxCombinations {
		return
	}
	c.wrong(fmt.Sprintf("spec.%s", d), "has %d rules with networks, and %d ports: use at most %d such rules, and %d combinations: name several networks in one rule", n, len(ports), maxNetworkRules, maxCombinations)
	for i, r := range rules.Rules {
		rules.Rules[i] = closed(r)
	}
}

// ruleName is the name of a rule that has none of its own.
func ruleName(d policy.Direction, index int) string { return fmt.Sprintf("%s rule %d", d, index+1) }

func namespaceOf(namespace string) string { return cmp.Or(namespace, metav1.NamespaceDefault) }
