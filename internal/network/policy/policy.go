// Package policy says which connections of pods are allowed. It has the words for NetworkPolicy and
// ClusterNetworkPolicy, as other packages read them from the API or from files, and Decide, which
// is the specification of what they mean: short, slow and without state. Package compile turns the
// same words into sets for the kernel, and its tests compare the two.
//
// Each connection is judged at both ends: as egress of the pod that opens it, and as ingress of the
// pod that accepts it. Both must allow it. Ends that aren't pods judge nothing. A pod's host
// network is not the pod's: pods with hostNetwork are neither subjects nor peers, except by their
// address.
//
// An end is judged in three tiers. The rules of the Admin tier come first, by priority; the first
// that matches accepts, denies, or passes the connection on. Then come NetworkPolicies: if any of
// them isolates the pod in that direction, the connection is allowed if and only if one of their
// rules allows it. If none isolates it, the rules of the Baseline tier follow, and without a match
// the connection is allowed. A connection to the pod's own node is always allowed by
// NetworkPolicies that isolate the pod.
//
// https://pkg.go.dev/k8s.io/api/networking/v1#NetworkPolicy
// https://network-policy-api.sigs.k8s.io/api-overview/
package policy

import (
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/labels"
)

// Direction is the end of a connection that is judged.
type Direction string

// The directions, from the pod's point of view.
const (
	Ingress Direction = "ingress"
	Egress  Direction = "egress"
)

// Tier is the order in which policies apply.
type Tier int

// The tiers.
const (
	Admin Tier = iota
	// Namespaced is the tier of NetworkPolicies. All of them apply together: they have no order.
	Namespaced
	Baseline
)

// Action of a rule whose peer and port match.
type Action string

// The actions. Rules of NetworkPolicies only accept.
const (
	Accept Action = "accept"
	Deny   Action = "deny"
	// Pass skips the other rules of the tier.
	Pass Action = "pass"
)

// Protocol is an IP protocol by its number.
type Protocol uint8

// The protocols that have ports. Rules without ports also match all others.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// HasPorts reports whether a rule's ports can match the protocol.
func (p Protocol) HasPorts() bool { return p == TCP || p == UDP || p == SCTP }

// Policy is a NetworkPolicy or a ClusterNetworkPolicy.
type Policy struct {
	// Name identifies the policy among all, as people see it: "NetworkPolicy default/deny-all" or
	// "ClusterNetworkPolicy tenants".
	Name     string
	Tier     Tier
	Priority int32 // in its tier, the smallest first; then Name decides
	Subject  PodSelector
	// Ingress and Egress are nil if the policy doesn't isolate its pods in that direction.
	Ingress, Egress *Rules
}

// Rules are those of one direction, in their order. A policy without rules that isolates its pods
// allows nothing.
type Rules struct{ Rules []Rule }

// Of returns the rules of a direction, or nil.
func (p *Policy) Of(d Direction) *Rules {
	if d == Ingress {
		return p.Ingress
	}
	return p.Egress
}

// Rule matches a connection if one of its peers and one of its ports do.
type Rule struct {
	Name   string // "rule 2", or the name that it was given
	Action Action
	Peers  []Peer // nil is everybody; empty is nobody
	Ports  []Port // nil is every port of every protocol; empty is none
}

// Peer is the other end. Exactly one field is set.
type Peer struct {
	Pods     *PodSelector
	Nodes    labels.Selector
	Networks *Networks
}

// PodSelector selects pods by the labels of their namespace and their own.
type PodSelector struct {
	// Namespace, if set, is the only namespace. Otherwise Namespaces selects them.
	Namespace  string
	Namespaces labels.Selector
	Pods       labels.Selector
}

// Networks are the addresses of Prefix but those of Except. They match pods' addresses as well.
type Networks struct {
	Prefix netip.Prefix
	Except []netip.Prefix
}

// Port is a range of destination ports, or one port by its name in the destination pod.
type Port struct {
	// Protocol is 0 for a Name that any protocol may have.
	Protocol Protocol
	// First and Last are the range: 0 and 65535 for all ports of the protocol.
	First, Last uint16
	// Name is that of a container's port, and First and Last are 0. It matches only pods.
	Name string
}

// Pod is a running pod with a network namespace of its own. Finished pods have no part in policy.
type Pod struct {
	Namespace, Name string
	Labels          labels.Set
	Addresses       []netip.Addr
	Ports           []NamedPort // of its containers
	// Started decides whose address it is if two pods have the same: the later one's.
	Started time.Time
}

// Key returns namespace/name.
func (p *Pod) Key() string { return p.Namespace + "/" + p.Name }

// NamedPort is a port of a container that has a name.
type NamedPort struct {
	Name     string
	Protocol Protocol
	Port     uint16
}

// Node is a node of the cluster with every address from which it reaches pods.
type Node struct {
	Name      string
	Labels    labels.Set
	Addresses []netip.Addr
}

// World is everything that decides about connections.
type World struct {
	Policies   []Policy
	Namespaces map[string]labels.Set
	Pods       []Pod
	Nodes      []Node
}
