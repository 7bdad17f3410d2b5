package firewall

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/huskd/husk/internal/network/policy"
	"github.com/huskd/husk/internal/network/policy/ruleset"
)

// Report is what network policy says about the pods of this node.
type Report struct {
	Note     string // why policies are not in force, or may be out of date
	Policies int    // of all pods
	Pods     []Pod  // in the order of their names
}

// Pod is a pod of this node.
type Pod struct {
	Namespace, Name string
	Addresses       []netip.Addr
	Ingress, Egress End
}

// End is one direction of a pod's connections.
type End struct {
	Policies []string // that select the pod, in the order in which they apply
	// Restricted means that what Allowed doesn't list is denied.
	Restricted bool
	Allowed    []Allowed
	// Denied is how many packets were denied to all pods of this node that the same policies select
	// in the same way, since the first of them started.
	Denied uint64
}

// Allowed are ports that some peers may use.
type Allowed struct {
	Ports string // such as "tcp 80-90", or "everything"
	// Peers are pods, prefixes or ranges of addresses, "all pods", "all others" or "everybody".
	Peers []string
	// Connections is how many of them used the ports, to or from all pods of this node that the
	// same policies select in the same way. Only a detailed report counts them.
	Connections uint64
}

// counts are what the kernel has counted.
type counts struct {
	denied  map[ruleset.ProfileID]uint64
	allowed map[ruleset.ProfileID]map[ruleset.Match]uint64
}

// Report returns what network policy says about the pods of this node. A detailed report counts
// what is allowed, for which the kernel lists all elements of the profiles.
func (f *Firewall) Report(detailed bool) Report {
	w := f.World()
	counted := f.cfg.count(detailed)
	f.mu.Lock()
	defer f.mu.Unlock()
	r := Report{Note: f.note(), Policies: len(w.Policies)}
	names := f.peerNames(w)
	for i := range w.Pods {
		p := &w.Pods[i]
		if _, ok := f.local[p.Key()]; !ok {
			continue
		}
		pod := Pod{Namespace: p.Namespace, Name: p.Name, Addresses: p.Addresses}
		for d, end := range map[policy.Direction]*End{policy.Ingress: &pod.Ingress, policy.Egress: &pod.Egress} {
			for _, q := range w.Selecting(p, d) {
				end.Policies = append(end.Policies, q.Name)
			}
			f.allowed(p, d, end, names, counted)
		}
		r.Pods = append(r.Pods, pod)
	}
	slices.SortFunc(r.Pods, func(a, b Pod) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return r
}

// count reads the kernel's counters. What can't be read is 0.
func (c *Config) count(detailed bool) (out counts) {
	var err error
	if c.Denied != nil {
		out.denied, err = c.Denied()
	}
	if detailed && c.Allowed != nil && err == nil {
		out.allowed, err = c.Allowed()
	}
	if err != nil {
		c.Log.Warn("network policy: the counters in the kernel can't be read", "error", err)
	}
	return out
}

// Note says why policies are not in force, or may be out of date. It is empty if they are in force.
func (f *Firewall) Note() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.note()
}

// note is Note for a caller that holds mu.
func (f *Firewall) note() string {
	switch {
	case f.without():
		return fmt.Sprintf("network policy is not in force: %v", f.why)
	case !f.synced || f.awaited:
		return fmt.Sprintf("network policy is not known yet, and pods wait for it: %v", f.why)
	case f.why != nil:
		return fmt.Sprintf("network policy may be out of date: %v", f.why)
	case f.failure != nil:
		return fmt.Sprintf("network policy: the kernel refused the last change: %v", f.failure)
	}
	return ""
}

// allowed completes end with the pod's profiles. The caller holds mu.
func (f *Firewall) allowed(p *policy.Pod, d policy.Direction, end *End, names map[ruleset.Identity][]string, counted counts) {
	peers, connections := map[string][]string{}, map[string]uint64{}
	seen := map[ruleset.ProfileID]bool{} // of both families
	for _, addr := range p.Addresses {
		local, ok := f.rules.Pods[addr]
		id := local.Ingress
		if d == policy.Egress {
			id = local.Egress
		}
		if !ok || id == "" {
			continue
		}
		end.Restricted = true
		if !seen[id] {
			end.Denied += counted.denied[id]
		}
		for m := range f.rules.Profiles[id].Allow {
			key := portsOf(m)
			if !seen[id] {
				connections[key] += counted.allowed[id][m]
			}
			for _, name := range names[m.Identity] {
				if !slices.Contains(peers[key], name) {
					peers[key] = append(peers[key], name)
				}
			}
		}
		seen[id] = true
	}
	for _, ports := range slices.Sorted(maps.Keys(peers)) {
		if slices.Contains(peers[ports], allIPv4) && slices.Contains(peers[ports], allIPv6) {
			peers[ports] = []string{"everybody"}
		}
		slices.Sort(peers[ports])
		end.Allowed = append(end.Allowed, Allowed{ports, peers[ports], connections[ports]})
	}
}

func portsOf(m ruleset.Match) string {
	switch {
	case m.Protocol == ruleset.Every:
		return "everything"
	case m.Protocol == ruleset.Other:
		return "protocols without ports"
	}
	name := ProtocolName(policy.Protocol(m.Protocol))
	switch {
	case m.First == 0 && m.Last == 65535:
		return name
	case m.First == m.Last:
		return fmt.Sprintf("%s %d", name, m.First)
	}
	return fmt.Sprintf("%s %d-%d", name, m.First, m.Last)
}

var protocolNames = map[policy.Protocol]string{policy.TCP: "tcp", policy.UDP: "udp", policy.SCTP: "sctp"}

// ProtocolName returns what people call a protocol.
func ProtocolName(p policy.Protocol) string {
	return cmp.Or(protocolNames[p], fmt.Sprintf("protocol %d", p))
}

// peerNames returns what people call the addresses of each identity. The caller holds mu.
func (f *Firewall) peerNames(w *policy.World) map[ruleset.Identity][]string {
	names := map[ruleset.Identity][]string{}
	for i := range w.Pods {
		p := &w.Pods[i]
		for _, addr := range p.Addresses {
			if id, ok := f.rules.Identities[addr]; ok && !slices.Contains(names[id], p.Key()) {
				names[id] = append(names[id], p.Key())
			}
		}
	}
	for _, r := range f.rules.Ranges {
		names[r.Identity] = append(names[r.Identity], rangeName(r))
	}
	names[ruleset.World] = append(names[ruleset.World], "all others")
	names[ruleset.AllIPv4], names[ruleset.AllIPv6] = []string{allIPv4}, []string{allIPv6}
	names[ruleset.PodsIPv4], names[ruleset.PodsIPv6] = []string{"all pods"}, []string{"all pods"}
	return names
}

// What people call all addresses of a family.
const (
	allIPv4 = "0.0.0.0/0"
	allIPv6 = "::/0"
)

func rangeName(r ruleset.Range) string {
	if r.First == r.Last {
		return r.First.String()
	}
	for bits := range r.First.BitLen() {
		if p, _ := r.First.Prefix(bits); p.Addr() == r.First && lastOf(p) == r.Last {
			return p.String()
		}
	}
	return fmt.Sprintf("%v-%v", r.First, r.Last)
}

func lastOf(p netip.Prefix) netip.Addr {
	raw := p.Addr().AsSlice()
	for i := p.Bits(); i < len(raw)*8; i++ {
		raw[i/8] |= 0x80 >> (i % 8)
	}
	last, _ := netip.AddrFromSlice(raw)
	return last
}

// Judgement says whether the policies of one end of a connection allow it.
type Judgement struct {
	Direction policy.Direction
	Pod       string // whose policies they are, as namespace/name
	Allowed   bool
	Why       string
	// Difference is not empty if the kernel's rules differ from the policies.
	Difference string
}

// Explain says whether a connection is allowed, and why: first by its source, then by its
// destination, as far as they are pods. It compares the ends that are pods of this node with the
// kernel.
func (f *Firewall) Explain(flow policy.Flow) ([]Judgement, error) {
	w := f.World()
	kernel, err := f.cfg.Kernel.Read()
	if err != nil {
		return nil, err
	}
	if kernel == nil {
		kernel = ruleset.New()
	}
	own, err := f.cfg.IsNode(flow.To)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := w.PodAt(flow.From); p != nil {
		_, local := f.local[p.Key()]
		flow.ToNode = own && local
	}
	decision := w.Decide(flow)
	var out []Judgement
	for _, end := range []struct {
		direction policy.Direction
		addr      netip.Addr
		verdict   *policy.Verdict
	}{{policy.Egress, flow.From, decision.Egress}, {policy.Ingress, flow.To, decision.Ingress}} {
		if end.verdict == nil {
			continue
		}
		p := w.PodAt(end.addr)
		j := Judgement{Direction: end.direction, Pod: p.Key(), Allowed: end.verdict.Allowed, Why: reason(end.verdict)}
		if _, ok := f.local[p.Key()]; !ok {
			j.Why += " (on another node)"
		} else if f.loaded {
			j.Difference = difference(kernel, end.direction, flow, j.Allowed)
		}
		out = append(out, j)
	}
	return out, nil
}

// reason says what decided.
func reason(v *policy.Verdict) string {
	switch {
	case v.Policy != "":
		return v.Policy + ", " + v.Rule
	case len(v.Isolating) > 0:
		return "isolated by " + strings.Join(v.Isolating, " and ") + ", of which no rule allows it"
	}
	return "no policy says otherwise"
}

// difference says how the kernel's rules for one end differ from a verdict.
func difference(kernel *ruleset.Ruleset, d policy.Direction, flow policy.Flow, allowed bool) string {
	addr := flow.To
	if d == policy.Egress {
		addr = flow.From
	}
	p, ok := kernel.Pods[addr]
	if !ok {
		return fmt.Sprintf("the kernel doesn't know %v, and drops it", addr)
	}
	one := &ruleset.Ruleset{Profiles: kernel.Profiles, Identities: kernel.Identities, Ranges: kernel.Ranges, Pods: map[netip.Addr]ruleset.Pod{addr: p}}
	switch got := one.Allows(flow); {
	case got == allowed:
		return ""
	case got:
		return "the kernel allows it"
	default:
		return "the kernel denies it"
	}
}

// Denial says which pod of this node denied a connection, by its key, and why. The pod is empty if
// the policies have changed meanwhile.
func (f *Firewall) Denial(d policy.Direction, flow policy.Flow) (pod, message string) {
	w := f.World()
	decision := w.Decide(flow)
	verdict, end := decision.Ingress, flow.To
	if d == policy.Egress {
		verdict, end = decision.Egress, flow.From
	}
	if verdict == nil || verdict.Allowed {
		return "", ""
	}
	port := ProtocolName(flow.Protocol)
	if flow.Port != 0 {
		port = fmt.Sprintf("%d/%s", flow.Port, port)
	}
	return w.PodAt(end).Key(), fmt.Sprintf("connection from %s to %s %s denied: %s", endName(w, flow.From), endName(w, flow.To), port, reason(verdict))
}

// endName returns what people call an address.
func endName(w *policy.World, addr netip.Addr) string {
	if p := w.PodAt(addr); p != nil {
		return p.Key()
	}
	return addr.String()
}
