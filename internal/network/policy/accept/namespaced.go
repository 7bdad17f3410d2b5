package accept

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/huskd/husk/internal/network/policy"
)

// Namespaced reads a NetworkPolicy. Its rules are named "ingress rule 1" and so on.
func Namespaced(p *networkingv1.NetworkPolicy) (policy.Policy, []Problem) {
	namespace := namespaceOf(p.Namespace)
	out := policy.Policy{Name: "NetworkPolicy " + namespace + "/" + p.Name, Tier: policy.Namespaced}
	c := namespacedChecker{&checker{object: out.Name}, namespace}
	out.Subject = policy.PodSelector{Namespace: namespace, Pods: c.selector("spec.podSelector", &p.Spec.PodSelector)}
	unreadable := c.count > 0
	if unreadable {
		out.Subject.Pods = labels.Everything()
	}
	ingress, egress := c.directions(&p.Spec)
	if ingress {
		out.Ingress = &policy.Rules{}
		for i, r := range p.Spec.Ingress {
			out.Ingress.Rules = append(out.Ingress.Rules, c.rule(policy.Ingress, i, "from", r.From, r.Ports))
		}
	}
	if egress {
		out.Egress = &policy.Rules{}
		for i, r := range p.Spec.Egress {
			out.Egress.Rules = append(out.Egress.Rules, c.rule(policy.Egress, i, "to", r.To, r.Ports))
		}
	}
	c.bound(policy.Ingress, out.Ingress)
	c.bound(policy.Egress, out.Egress)
	for _, rules := range []*policy.Rules{out.Ingress, out.Egress} {
		if unreadable && rules != nil {
			for i, r := range rules.Rules {
				rules.Rules[i] = closed(r)
			}
		}
	}
	return out, c.result()
}

// namespacedChecker reads a NetworkPolicy of a namespace.
type namespacedChecker struct {
	*checker
	namespace string
}

// directions returns in which directions the policy isolates pods. A type that isn't known counts
// as both.
func (c namespacedChecker) directions(s *networkingv1.NetworkPolicySpec) (ingress, egress bool) {
	if len(s.PolicyTypes) == 0 {
		return true, len(s.Egress) > 0
	}
	for i, t := range s.PolicyTypes {
		if t != networkingv1.PolicyTypeIngress && t != networkingv1.PolicyTypeEgress {
			c.wrong(fmt.Sprintf("spec.policyTypes[%d]", i), "%s is unknown: use Ingress or Egress", quote(t))
			ingress, egress = true, true
		}
	}
	return ingress || slices.Contains(s.PolicyTypes, networkingv1.PolicyTypeIngress), egress || slices.Contains(s.PolicyTypes, networkingv1.PolicyTypeEgress)
}

func (c namespacedChecker) rule(d policy.Direction, index int, peersField string, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) policy.Rule {
	at := fmt.Sprintf("spec.%s[%d]", d, index)
	before := c.count
	r := policy.Rule{Name: ruleName(d, index), Action: policy.Accept}
	for i, p := range peers {
		r.Peers = append(r.Peers, c.peer(fmt.Sprintf("%s.%s[%d]", at, peersField, i), p))
	}
	for i, p := range ports {
		r.Ports = append(r.Ports, c.port(fmt.Sprintf("%s.ports[%d]", at, i), p))
	}
	if c.count > before {
		return closed(r)
	}
	return r
}

func (c namespacedChecker) peer(at string, p networkingv1.NetworkPolicyPeer) policy.Peer {
	switch {
	case p.IPBlock != nil && (p.PodSelector != nil || p.NamespaceSelector != nil):
		c.wrong(at, "has an ipBlock and a selector: write two items")
	case p.IPBlock != nil:
		return policy.Peer{Networks: c.block(at+".ipBlock", p.IPBlock)}
	case p.PodSelector == nil && p.NamespaceSelector == nil:
		c.wrong(at, "is empty: set podSelector, namespaceSelector or ipBlock")
	}
	pods := &policy.PodSelector{Namespace: c.namespace, Pods: labels.Everything()}
	if p.PodSelector != nil {
		pods.Pods = c.selector(at+".podSelector", p.PodSelector)
	}
	if p.NamespaceSelector != nil {
		pods.Namespace, pods.Namespaces = "", c.selector(at+".namespaceSelector", p.NamespaceSelector)
	}
	return policy.Peer{Pods: pods}
}

func (c namespacedChecker) block(at string, b *networkingv1.IPBlock) *policy.Networks {
	out := &policy.Networks{}
	var ok bool
	if out.Prefix, ok = c.prefix(at+".cidr", b.CIDR); !ok {
		return out
	}
	for i, text := range b.Except {
		field := fmt.Sprintf("%s.except[%d]", at, i)
		except, ok := c.prefix(field, text)
		switch {
		case !ok:
		case !out.Prefix.Contains(except.Addr()) || except.Bits() <= out.Prefix.Bits():
			c.wrong(field, "%s is not a smaller part of cidr %s: remove it, or correct one", except, out.Prefix)
		default:
			out.Except = append(out.Except, except)
		}
	}
	return out
}

// protocols are those of the core API.
var protocols = map[corev1.Protocol]policy.Protocol{corev1.ProtocolTCP: policy.TCP, corev1.ProtocolUDP: policy.UDP, corev1.ProtocolSCTP: policy.SCTP}

func (c namespacedChecker) port(at string, p networkingv1.NetworkPolicyPort) policy.Port {
	protocol := policy.TCP
	if p.Protocol != nil {
		var ok bool
		if protocol, ok = protocols[*p.Protocol]; !ok {
			c.wrong(at+".protocol", "%s is not supported: use TCP, UDP or SCTP", quote(*p.Protocol))
		}
	}
	switch {
	case p.EndPort != nil && (p.Port == nil || p.Port.Type != intstr.Int):
		c.wrong(at+".endPort", "port is not a number: set it to the first port of the range, or remove endPort")
	case p.Port == nil:
		return policy.Port{Protocol: protocol, Last: 65535}
	case p.Port.Type != intstr.Int:
		c.portName(at+".port", p.Port.StrVal)
		return policy.Port{Protocol: protocol, Name: p.Port.StrVal}
	case p.EndPort != nil:
		return c.portRange(protocol, at+".port", at+".endPort", p.Port.IntVal, *p.EndPort)
	default:
		return c.portRange(protocol, at+".port", at+".port", p.Port.IntVal, p.Port.IntVal)
	}
	return policy.Port{Protocol: protocol}
}
