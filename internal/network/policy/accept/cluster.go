package accept

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/huskd/husk/internal/network/policy"
)

const maxPriority = 1000

// Cluster reads a ClusterNetworkPolicy. Rules without a name are named "ingress rule 1" and so on.
func Cluster(p *ClusterNetworkPolicy) (policy.Policy, []Problem) {
	out := policy.Policy{Name: "ClusterNetworkPolicy " + p.Name, Priority: p.Spec.Priority}
	c := clusterChecker{&checker{object: out.Name}, p.unknown}
	switch p.Spec.Tier {
	case "Admin":
		out.Tier = policy.Admin
	case "Baseline":
		out.Tier = policy.Baseline
	default:
		c.wrong("spec.tier", "%s is unknown: use Admin or Baseline", quote(p.Spec.Tier))
	}
	out.Subject = c.subject(&p.Spec.Subject)
	if c.count > 0 {
		out.Subject = policy.PodSelector{Namespaces: labels.Nothing(), Pods: labels.Nothing()}
	}
	if out.Priority < 0 || out.Priority > maxPriority {
		c.wrong("spec.priority", "%d is out of range: use 0 to %d", out.Priority, maxPriority)
	}
	out.Ingress, out.Egress = c.rules(policy.Ingress, p.Spec.Ingress), c.rules(policy.Egress, p.Spec.Egress)
	c.bound(policy.Ingress, out.Ingress)
	c.bound(policy.Egress, out.Egress)
	for _, field := range c.unknown {
		if strings.HasPrefix(field, "spec.") && !strings.ContainsAny(field, "[]") && !strings.HasPrefix(field, "spec.subject.") {
			c.wrong(field, "is unknown and has no effect: remove it")
		}
	}
	return out, c.result()
}

// clusterChecker reads a ClusterNetworkPolicy.
type clusterChecker struct {
	*checker
	unknown []string // paths of fields
}

// checkKnown adds a problem for each unknown field within the field.
func (c clusterChecker) checkKnown(field string) {
	for _, u := range c.unknown {
		if strings.HasPrefix(u, field+".") {
			c.wrong(u, "is unknown: remove it")
		}
	}
}

func (c clusterChecker) subject(s *ClusterSubject) policy.PodSelector {
	c.checkKnown("spec.subject")
	if (s.Namespaces == nil) == (s.Pods == nil) {
		c.wrong("spec.subject", "must have exactly one field: set namespaces or pods")
		return policy.PodSelector{}
	}
	return c.pods("spec.subject", s.Namespaces != nil, &ClusterPeer{Namespaces: s.Namespaces, Pods: s.Pods})
}

// pods reads the selector of pods that a subject or a peer has.
func (c clusterChecker) pods(at string, whole bool, p *ClusterPeer) policy.PodSelector {
	if whole {
		return policy.PodSelector{Namespaces: c.selector(at+".namespaces", p.Namespaces), Pods: labels.Everything()}
	}
	return policy.PodSelector{
		Namespaces: c.selector(at+".pods.namespaceSelector", &p.Pods.NamespaceSelector),
		Pods:       c.selector(at+".pods.podSelector", &p.Pods.PodSelector),
	}
}

// rules reads the rules of a direction. Without rules the policy doesn't affect the direction.
func (c clusterChecker) rules(d policy.Direction, rules []ClusterRule) *policy.Rules {
	if len(rules) == 0 {
		return nil
	}
	out := &policy.Rules{}
	for i := range rules {
		out.Rules = append(out.Rules, c.rule(d, i, &rules[i]))
	}
	return out
}

var actions = map[string]policy.Action{"Accept": policy.Accept, "Deny": policy.Deny, "Pass": policy.Pass}

// maxRuleName is the API's.
const maxRuleName = 100

func (c clusterChecker) rule(d policy.Direction, index int, r *ClusterRule) policy.Rule {
	at := fmt.Sprintf("spec.%s[%d]", d, index)
	out := policy.Rule{Name: r.Name}
	if len([]rune(r.Name)) > maxRuleName {
		c.wrong(at+".name", "%s is too long: use at most %d characters", quote(r.Name), maxRuleName)
		out.Name = ""
	}
	if out.Name == "" {
		out.Name = ruleName(d, index)
	}
	before := c.count
	c.checkKnown(at)
	var ok bool
	if out.Action, ok = actions[r.Action]; !ok {
		c.wrong(at+".action", "%s is unknown: use Accept, Deny or Pass", quote(r.Action))
	}
	peers, field, others, other := r.From, "from", r.To, "to"
	if d == policy.Egress {
		peers, field, others, other = others, other, peers, field
	}
	if len(others) > 0 {
		c.wrong(at+"."+other, "an %s rule has no %s: use %s", d, other, field)
	} else if len(peers) == 0 {
		c.wrong(at+"."+field, "missing: name one or more peers")
	}
	for i := range peers {
		out.Peers = append(out.Peers, c.peer(d, fmt.Sprintf("%s.%s[%d]", at, field, i), &peers[i])...)
	}
	if r.Protocols != nil && len(r.Protocols) == 0 {
		c.wrong(at+".protocols", "is empty: name one or more, or remove the field to match all")
	}
	for i := range r.Protocols {
		out.Ports = append(out.Ports, c.protocol(fmt.Sprintf("%s.protocols[%d]", at, i), &r.Protocols[i], peers))
	}
	if c.count > before {
		return closed(out)
	}
	return out
}

func (c clusterChecker) peer(d policy.Direction, at string, p *ClusterPeer) []policy.Peer {
	set := 0
	for _, has := range []bool{p.Namespaces != nil, p.Pods != nil, p.Nodes != nil, p.Networks != nil, p.DomainNames != nil} {
		if has {
			set++
		}
	}
	kinds := "namespaces, pods, nodes or networks"
	if d == policy.Ingress {
		kinds = "namespaces or pods"
	}
	switch {
	case set != 1:
		c.wrong(at, "must have exactly one field: set %s", kinds)
	case p.Namespaces != nil || p.Pods != nil:
		pods := c.pods(at, p.Namespaces != nil, p)
		return []policy.Peer{{Pods: &pods}}
	case d == policy.Ingress:
		c.wrong(at, "an ingress rule has only peers that are pods: set %s", kinds)
	case p.DomainNames != nil:
		c.wrong(at+".domainNames", "is not supported: use networks")
	case p.Nodes != nil:
		return []policy.Peer{{Nodes: c.selector(at+".nodes", p.Nodes)}}
	case len(p.Networks) == 0:
		c.wrong(at+".networks", "is empty: name one or more networks")
	}
	var out []policy.Peer
	for i, text := range p.Networks {
		if prefix, ok := c.prefix(fmt.Sprintf("%s.networks[%d]", at, i), text); ok {
			out = append(out, policy.Peer{Networks: &policy.Networks{Prefix: prefix}})
		}
	}
	return out
}

// protocol reads an item of protocols. Peers are those of the rule.
func (c clusterChecker) protocol(at string, p *ClusterProtocol, peers []ClusterPeer) policy.Port {
	set := 0
	var ports *ClusterPorts
	var field string
	var protocol policy.Protocol
	for _, of := range []struct {
		ports    *ClusterPorts
		field    string
		protocol policy.Protocol
	}{{p.TCP, "tcp", policy.TCP}, {p.UDP, "udp", policy.UDP}, {p.SCTP, "sctp", policy.SCTP}} {
		if of.ports != nil {
			set++
			ports, field, protocol = of.ports, at+"."+of.field, of.protocol
		}
	}
	if p.DestinationNamedPort != "" {
		set++
	}
	switch {
	case set != 1:
		c.wrong(at, "must have exactly one field: set tcp, udp, sctp or destinationNamedPort")
	case ports == nil:
		c.portName(at+".destinationNamedPort", p.DestinationNamedPort)
		for _, peer := range peers {
			if peer.Nodes != nil || peer.Networks != nil || peer.DomainNames != nil {
				c.wrong(at+".destinationNamedPort", "only pods have named ports: use tcp, udp or sctp, or a rule of its own for the peers that are not pods")
				break
			}
		}
		return policy.Port{Name: p.DestinationNamedPort}
	case ports.DestinationPort == nil || (ports.DestinationPort.Number == 0) == (ports.DestinationPort.Range == nil):
		c.wrong(field+".destinationPort", "must have exactly one field: set number or range (1 to 65535 for all)")
	case ports.DestinationPort.Range != nil:
		r, at := ports.DestinationPort.Range, field+".destinationPort.range"
		if r.Start == r.End {
			c.wrong(at+".end", "%d is also start: use number", r.End)
		}
		return c.portRange(protocol, at+".start", at+".end", r.Start, r.End)
	default:
		at := field + ".destinationPort.number"
		return c.portRange(protocol, at, at, ports.DestinationPort.Number, ports.DestinationPort.Number)
	}
	return policy.Port{Protocol: protocol}
}
