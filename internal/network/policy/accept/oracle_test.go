package accept

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sort"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/huskd/husk/internal/network/policy"
)

// objects is the state of a cluster. Its method allows is the oracle: what the API's documentation
// says, one sentence after the other, on the API's own objects. It shares no code with what it
// judges, and it knows nothing of package policy.
type objects struct {
	policies   []networkingv1.NetworkPolicy
	cluster    []ClusterNetworkPolicy
	namespaces []corev1.Namespace
	pods       []corev1.Pod
	nodes      []corev1.Node
}

// connection is from an address to another. Its protocol is TCP, UDP, SCTP or ICMP.
type connection struct {
	from, to string
	protocol string
	port     int
}

// allows reports whether both ends allow the connection. A pod can't block access to itself.
func (o *objects) allows(c connection) bool {
	from, to := o.podWith(c.from), o.podWith(c.to)
	if from != nil && to != nil && from == to {
		return true
	}
	if from != nil && !o.podAllows(from, "Egress", c) {
		return false
	}
	return to == nil || o.podAllows(to, "Ingress", c)
}

// podWith returns the running pod with the address and a network of its own that started last.
func (o *objects) podWith(address string) *corev1.Pod {
	var found *corev1.Pod
	for i := range o.pods {
		p := &o.pods[i]
		if p.Spec.HostNetwork || p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed" {
			continue
		}
		for _, ip := range p.Status.PodIPs {
			if net.ParseIP(ip.IP).Equal(net.ParseIP(address)) && (found == nil || p.Status.StartTime.After(found.Status.StartTime.Time)) {
				found = p
			}
		}
	}
	return found
}

// podAllows decides in the order of the tiers.
func (o *objects) podAllows(pod *corev1.Pod, direction string, c connection) bool {
	switch o.tier("Admin", pod, direction, c) {
	case "Accept":
		return true
	case "Deny":
		return false
	}
	isolated := false
	for i := range o.policies {
		p := &o.policies[i]
		if p.Namespace != pod.Namespace || !selects(&p.Spec.PodSelector, pod.Labels) || !affects(p, direction) {
			continue
		}
		isolated = true
		if o.policyAllows(p, pod, direction, c) {
			return true
		}
	}
	if isolated {
		return false
	}
	return o.tier("Baseline", pod, direction, c) != "Deny"
}

func affects(p *networkingv1.NetworkPolicy, direction string) bool {
	if len(p.Spec.PolicyTypes) == 0 {
		return direction == "Ingress" || len(p.Spec.Egress) > 0
	}
	for _, t := range p.Spec.PolicyTypes {
		if string(t) == direction {
			return true
		}
	}
	return false
}

func (o *objects) policyAllows(p *networkingv1.NetworkPolicy, pod *corev1.Pod, direction string, c connection) bool {
	if direction == "Ingress" {
		for _, r := range p.Spec.Ingress {
			if o.anyPeer(p.Namespace, r.From, c.from) && o.anyPort(r.Ports, pod, c) {
				return true
			}
		}
		return false
	}
	for _, r := range p.Spec.Egress {
		if o.anyPeer(p.Namespace, r.To, c.to) && o.anyPort(r.Ports, o.podWith(c.to), c) {
			return true
		}
	}
	return false
}

func (o *objects) anyPeer(namespace string, peers []networkingv1.NetworkPolicyPeer, address string) bool {
	if len(peers) == 0 {
		return true
	}
	for _, peer := range peers {
		if peer.IPBlock != nil {
			in := within(peer.IPBlock.CIDR, address)
			for _, except := range peer.IPBlock.Except {
				in = in && !within(except, address)
			}
			if in {
				return true
			}
			continue
		}
		pod := o.podWith(address)
		if pod == nil {
			continue
		}
		if peer.NamespaceSelector == nil && pod.Namespace != namespace {
			continue
		}
		if peer.NamespaceSelector != nil && !selects(peer.NamespaceSelector, o.labelsOf(pod.Namespace)) {
			continue
		}
		if peer.PodSelector == nil || selects(peer.PodSelector, pod.Labels) {
			return true
		}
	}
	return false
}

// anyPort decides about the ports of a rule. Names are those of the pod that the connection goes
// to, if any.
func (o *objects) anyPort(ports []networkingv1.NetworkPolicyPort, to *corev1.Pod, c connection) bool {
	if len(ports) == 0 {
		return true
	}
	for _, p := range ports {
		protocol := "TCP"
		if p.Protocol != nil {
			protocol = string(*p.Protocol)
		}
		if protocol != c.protocol {
			continue
		}
		switch {
		case p.Port == nil:
			return true
		case p.Port.Type == intstr.String:
			if to != nil && named(to, p.Port.StrVal, c) {
				return true
			}
		case p.EndPort != nil:
			if c.port >= p.Port.IntValue() && c.port <= int(*p.EndPort) {
				return true
			}
		case p.Port.IntValue() == c.port:
			return true
		}
	}
	return false
}

// named reports whether the connection goes to the port of the pod that has the name.
func named(to *corev1.Pod, name string, c connection) bool {
	for _, container := range to.Spec.Containers {
		for _, p := range container.Ports {
			protocol := "TCP"
			if p.Protocol != "" {
				protocol = string(p.Protocol)
			}
			if p.Name == name && protocol == c.protocol && int(p.ContainerPort) == c.port {
				return true
			}
		}
	}
	return false
}

// tier returns the action of the first rule that matches, or "".
func (o *objects) tier(tier string, pod *corev1.Pod, direction string, c connection) string {
	var sorted []ClusterNetworkPolicy
	for _, p := range o.cluster {
		if p.Spec.Tier == tier {
			sorted = append(sorted, p)
		}
	}
	sort.Slice(sorted, func(i, j int) bool {
		if sorted[i].Spec.Priority != sorted[j].Spec.Priority {
			return sorted[i].Spec.Priority < sorted[j].Spec.Priority
		}
		return sorted[i].Name < sorted[j].Name
	})
	for _, p := range sorted {
		subject := p.Spec.Subject
		if !o.clusterPods(subject.Namespaces, subject.Pods, pod) {
			continue
		}
		rules, other := p.Spec.Ingress, c.from
		to := pod
		if direction == "Egress" {
			rules, other = p.Spec.Egress, c.to
			to = o.podWith(c.to)
		}
		for _, r := range rules {
			if isUnreadable(r, direction) {
				if r.Action == "Accept" {
					continue // matches nothing
				}
				return "Deny"
			}
			if o.anyClusterPeer(append(append([]ClusterPeer{}, r.From...), r.To...), other) && o.anyProtocol(r.Protocols, to, c) {
				return r.Action
			}
		}
	}
	return ""
}

// isUnreadable reports whether a rule has something that isn't known or isn't supported.
func isUnreadable(r ClusterRule, direction string) bool {
	for _, p := range append(append([]ClusterPeer{}, r.From...), r.To...) {
		if p.Namespaces == nil && p.Pods == nil && p.Nodes == nil && len(p.Networks) == 0 {
			return true
		}
		if direction == "Ingress" && (p.Nodes != nil || p.Networks != nil) {
			return true
		}
	}
	for _, p := range r.Protocols {
		if p.TCP == nil && p.UDP == nil && p.SCTP == nil && p.DestinationNamedPort == "" {
			return true
		}
	}
	return false
}

func (o *objects) clusterPods(namespaces *metav1.LabelSelector, pods *NamespacedPods, pod *corev1.Pod) bool {
	if namespaces != nil {
		return selects(namespaces, o.labelsOf(pod.Namespace))
	}
	return selects(&pods.NamespaceSelector, o.labelsOf(pod.Namespace)) && selects(&pods.PodSelector, pod.Labels)
}

func (o *objects) anyClusterPeer(peers []ClusterPeer, address string) bool {
	for _, p := range peers {
		switch {
		case p.Nodes != nil:
			for _, n := range o.nodes {
				for _, a := range n.Status.Addresses {
					if selects(p.Nodes, n.Labels) && net.ParseIP(a.Address) != nil && net.ParseIP(a.Address).Equal(net.ParseIP(address)) {
						return true
					}
				}
			}
		case p.Networks != nil:
			for _, n := range p.Networks {
				if within(n, address) {
					return true
				}
			}
		default:
			if pod := o.podWith(address); pod != nil && o.clusterPods(p.Namespaces, p.Pods, pod) {
				return true
			}
		}
	}
	return false
}

func (o *objects) anyProtocol(protocols []ClusterProtocol, to *corev1.Pod, c connection) bool {
	if len(protocols) == 0 {
		return true
	}
	for _, p := range protocols {
		if p.DestinationNamedPort != "" {
			if to != nil && named(to, p.DestinationNamedPort, c) {
				return true
			}
			continue
		}
		ports := map[string]*ClusterPorts{"TCP": p.TCP, "UDP": p.UDP, "SCTP": p.SCTP}[c.protocol]
		if ports == nil {
			continue
		}
		port := ports.DestinationPort
		if port.Range != nil && c.port >= int(port.Range.Start) && c.port <= int(port.Range.End) || port.Range == nil && c.port == int(port.Number) {
			return true
		}
	}
	return false
}

func (o *objects) labelsOf(namespace string) map[string]string {
	for _, n := range o.namespaces {
		if n.Name == namespace {
			return n.Labels
		}
	}
	return nil
}

func within(cidr, address string) bool {
	_, network, err := net.ParseCIDR(cidr)
	return err == nil && network.Contains(net.ParseIP(address))
}

// selects is the documentation's definition of a label selector. Selectors are valid here.
func selects(s *metav1.LabelSelector, labels map[string]string) bool {
	for key, want := range s.MatchLabels {
		if value, ok := labels[key]; !ok || value != want {
			return false
		}
	}
	for _, e := range s.MatchExpressions {
		value, ok := labels[e.Key]
		among := ok && slices.Contains(e.Values, value)
		switch e.Operator {
		case "In":
			if !among {
				return false
			}
		case "NotIn":
			if among {
				return false
			}
		case "Exists":
			if !ok {
				return false
			}
		case "DoesNotExist":
			if ok {
				return false
			}
		}
	}
	return true
}

// world returns the objects as the package under test accepts them, and its problems.
func (o *objects) world() (policy.World, []Problem) {
	out := policy.World{Namespaces: map[string]labels.Set{}}
	var all []Problem
	for i := range o.policies {
		p, problems := Namespaced(&o.policies[i])
		out.Policies, all = append(out.Policies, p), append(all, problems...)
	}
	for i := range o.cluster {
		p, problems := Cluster(&o.cluster[i])
		out.Policies, all = append(out.Policies, p), append(all, problems...)
	}
	for i := range o.pods {
		if p := Pod(&o.pods[i]); p != nil {
			out.Pods = append(out.Pods, *p)
		}
	}
	for i := range o.nodes {
		out.Nodes = append(out.Nodes, *Node(&o.nodes[i]))
	}
	for _, n := range o.namespaces {
		out.Namespaces[n.Name] = maps.Clone(n.Labels)
	}
	return out, all
}

// flow returns the connection in the words of package policy.
func (c connection) flow() policy.Flow {
	protocol := map[string]policy.Protocol{"TCP": policy.TCP, "UDP": policy.UDP, "SCTP": policy.SCTP, "ICMP": 1}[c.protocol]
	return policy.Flow{From: netip.MustParseAddr(c.from), To: netip.MustParseAddr(c.to), Protocol: protocol, Port: uint16(c.port)}
}

func (c connection) String() string {
	return fmt.Sprintf("%s > %s %s/%d", c.from, c.to, c.protocol, c.port)
}

// parseConnection reads a connection such as "x/a > y/b UDP/80", whose ends are pods of the objects
// or addresses. "x/a6" is the pod's second address.
func (o *objects) parseConnection(text string) connection {
	parts := strings.Fields(strings.ReplaceAll(text, " > ", " "))
	protocol, port, _ := strings.Cut(parts[2], "/")
	c := connection{from: o.addressOf(parts[0]), to: o.addressOf(parts[1]), protocol: protocol}
	c.port, _ = strconv.Atoi(port)
	return c
}

func (o *objects) addressOf(end string) string {
	for _, p := range o.pods {
		switch name := p.Namespace + "/" + p.Name; end {
		case name:
			return p.Status.PodIPs[0].IP
		case name + "6":
			return p.Status.PodIPs[1].IP
		}
	}
	return end
}
