package policy

import (
	"cmp"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
)

// Flow is a new connection: the first packet's addresses, after the destination was translated and
// before the source is. Port is the destination's, and 0 for protocols without ports.
type Flow struct {
	From, To netip.Addr
	Protocol Protocol
	Port     uint16
	// ToNode is set if To is an address of the node on which From's pod runs. No NetworkPolicy
	// denies a pod its own node; ClusterNetworkPolicies can.
	ToNode bool
}

// Decision says whether a connection is allowed and why.
type Decision struct {
	Allowed bool
	// Egress and Ingress are the verdicts of the two ends; nil for an end that isn't a pod.
	Egress, Ingress *Verdict
}

// Verdict is that of one end.
type Verdict struct {
	Allowed bool
	// Policy and Rule decided. They are empty if no rule did.
	Policy, Rule string
	// Isolating are the names of the NetworkPolicies that isolate the pod, if no rule of theirs
	// allows the connection.
	Isolating []string
}

// Decide judges a connection. A pod's connection to itself is allowed.
func (w *World) Decide(f Flow) Decision {
	f.From, f.To = f.From.Unmap(), f.To.Unmap()
	if f.From == f.To {
		return Decision{Allowed: true}
	}
	d := Decision{Allowed: true}
	if from := w.PodAt(f.From); from != nil {
		d.Egress = w.judge(from, Egress, f)
		d.Allowed = d.Egress.Allowed
	}
	if to := w.PodAt(f.To); to != nil {
		d.Ingress = w.judge(to, Ingress, f)
		d.Allowed = d.Allowed && d.Ingress.Allowed
	}
	return d
}

// PodAt returns the pod that has an address, or nil.
func (w *World) PodAt(addr netip.Addr) *Pod {
	var found *Pod
	for i := range w.Pods {
		p := &w.Pods[i]
		if slices.Contains(p.Addresses, addr) && (found == nil || p.Started.After(found.Started)) {
			found = p
		}
	}
	return found
}

// Selecting returns the policies that have rules for a pod in a direction, in the order in which
// they apply.
func (w *World) Selecting(p *Pod, d Direction) []*Policy {
	var out []*Policy
	for i := range w.Policies {
		q := &w.Policies[i]
		if q.Of(d) != nil && w.selects(&q.Subject, p) {
			out = append(out, q)
		}
	}
	slices.SortFunc(out, (*Policy).Compare)
	return out
}

// Compare orders policies as they apply.
func (p *Policy) Compare(q *Policy) int {
	return cmp.Or(cmp.Compare(p.Tier, q.Tier), cmp.Compare(p.Priority, q.Priority), cmp.Compare(p.Name, q.Name))
}

// judge is the verdict of one end.
func (w *World) judge(p *Pod, d Direction, f Flow) *Verdict {
	policies := w.Selecting(p, d)
	for _, tier := range []Tier{Admin, Namespaced, Baseline} {
		var isolating []string
		verdict := func() *Verdict {
			for _, q := range policies {
				if q.Tier != tier {
					continue
				}
				if tier == Namespaced {
					isolating = append(isolating, q.Name)
					if f.ToNode {
						return &Verdict{Allowed: true}
					}
				}
				for _, r := range q.Of(d).Rules {
					switch {
					case !w.matches(&r, d, f):
					case r.Action == Pass:
						return nil
					default:
						return &Verdict{Allowed: r.Action == Accept, Policy: q.Name, Rule: r.Name}
					}
				}
			}
			return nil
		}()
		if verdict != nil {
			return verdict
		}
		if len(isolating) > 0 {
			return &Verdict{Isolating: isolating}
		}
	}
	return &Verdict{Allowed: true}
}

func (w *World) matches(r *Rule, d Direction, f Flow) bool {
	other := f.From
	if d == Egress {
		other = f.To
	}
	return (r.Peers == nil || slices.ContainsFunc(r.Peers, func(p Peer) bool { return w.isPeer(&p, other) })) &&
		(r.Ports == nil || slices.ContainsFunc(r.Ports, func(p Port) bool { return p.matches(w.PodAt(f.To), f) }))
}

func (w *World) isPeer(p *Peer, addr netip.Addr) bool {
	switch {
	case p.Networks != nil:
		return p.Networks.Contains(addr)
	case p.Nodes != nil:
		return slices.ContainsFunc(w.Nodes, func(n Node) bool {
			return slices.Contains(n.Addresses, addr) && p.Nodes.Matches(n.Labels)
		})
	}
	q := w.PodAt(addr)
	return q != nil && w.selects(p.Pods, q)
}

// selects reports whether the pod is in a namespace that the selector selects, and selected. A
// namespace that isn't known has no labels.
func (w *World) selects(s *PodSelector, p *Pod) bool {
	return s.Selects(p.Namespace, w.Namespaces[p.Namespace], p.Labels)
}

// Selects reports whether the selector selects a pod with these labels in a namespace with those.
func (s *PodSelector) Selects(namespace string, namespaceLabels, podLabels labels.Set) bool {
	if s.Namespace != "" && s.Namespace != namespace {
		return false
	}
	return (s.Namespace != "" || s.Namespaces.Matches(namespaceLabels)) && s.Pods.Matches(podLabels)
}

// Contains reports whether an address is one of the networks'.
func (n *Networks) Contains(addr netip.Addr) bool {
	return n.Prefix.Contains(addr) && !slices.ContainsFunc(n.Except, func(e netip.Prefix) bool { return e.Contains(addr) })
}

// matches reports whether the port is the connection's. The destination is nil if it isn't a pod.
func (p *Port) matches(destination *Pod, f Flow) bool {
	if !f.Protocol.HasPorts() {
		return false
	}
	if p.Name == "" {
		return p.Protocol == f.Protocol && p.First <= f.Port && f.Port <= p.Last
	}
	return destination != nil && slices.ContainsFunc(destination.Ports, func(q NamedPort) bool {
		return q.Name == p.Name && q.Protocol == f.Protocol && q.Port == f.Port && (p.Protocol == 0 || p.Protocol == q.Protocol)
	})
}
