// Package explain follows a connection hop by hop: it says what the plans of this node make of it,
// compares each hop with the kernel, and says what to do about a difference. It changes nothing.
package explain

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/huskd/husk/internal/network"
	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/connlimit"
	"github.com/huskd/husk/internal/network/firewall"
	"github.com/huskd/husk/internal/network/nodes"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/network/policy"
	"github.com/huskd/husk/internal/network/service"
	"github.com/huskd/husk/internal/pod"
)

// Explainer explains connections.
type Explainer struct {
	Network *network.Network
	// Nodes returns what is known of the other nodes, and Verify how the kernel differs from the
	// plan for one of them. Both are nil on a node by itself.
	Nodes    func() nodes.Status
	Verify   func(nodes.Status, nodes.Peer) ([]string, error)
	Firewall *firewall.Firewall // nil if network policy is off
	// Connections returns which pods begin no connections.
	Connections func() (connlimit.Usage, error)
	// Services returns what decides where connections to Services lead. It is nil if huskd doesn't
	// lead them.
	Services func() service.World
}

// Verdict is what a hop does with the packets of a connection.
type Verdict string

// The verdicts.
const (
	Passes  Verdict = "ok"      // they pass, or so it was planned
	Drops   Verdict = "fails"   // they can't pass
	Allowed Verdict = "allowed" // by network policy
	Denied  Verdict = "denied"  // by network policy
)

// Hop is a place that packets of a connection meet.
type Hop struct {
	Where   string
	Verdict Verdict
	Why     string
	// Difference is how the kernel differs from what was planned; empty if it doesn't. Remedy is
	// what to do about it, or about the verdict.
	Difference, Remedy string
}

// Explain returns the hops of a connection's packets in the order in which they meet them. The
// answers take the same way back.
func (e Explainer) Explain(ctx context.Context, c Connection) ([]Hop, error) {
	flow, err := e.resolve(ctx, c)
	if err != nil {
		return nil, err
	}
	t := &trace{Explainer: e, flow: flow, paths: e.Network.Paths()}
	t.source = t.paths.At(flow.From)
	if e.Nodes != nil {
		t.status = e.Nodes()
	}
	if err := t.run(); err != nil {
		return nil, fmt.Errorf("explain the connection from %s to %s: %w", c.From, c.To, err)
	}
	return t.hops, nil
}

// trace is a connection that is being explained.
type trace struct {
	Explainer
	paths  network.Paths
	flow   policy.Flow
	status nodes.Status
	source *network.End // nil unless it is a pod of this node
	hops   []Hop
}

func (t *trace) add(h Hop) { t.hops = append(t.hops, h) }

func (t *trace) run() error {
	link := "" // by which this node receives the packets
	from := t.peerOf(t.flow.From)
	switch {
	case t.source != nil:
		link = t.source.Link
		if err := t.pod(t.source); err != nil {
			return err
		}
		if t.source.Plan.Veth.Bridge == "" && t.flow.From == t.flow.To {
			t.add(Hop{Where: "pod " + t.source.Pod.String(), Verdict: Passes, Why: "it reaches itself, within its own network"})
			return nil
		}
	case from != nil:
		if len(from.Routes) > 0 {
			link = from.Routes[0].Link
		}
		if err := t.way(from, "from"); err != nil {
			return err
		}
	}
	here, err := t.paths.Lookup(netip.Addr{}, t.flow.To, "")
	if err != nil {
		return err
	}
	if t.service(here.Local) {
		return nil
	}
	if here, err = t.paths.Lookup(netip.Addr{}, t.flow.To, ""); err != nil {
		return err
	}
	var destination *network.End
	if here.Local {
		if destination, err = t.hostPort(); err != nil || destination == nil {
			return err
		}
	} else {
		destination = t.paths.At(t.flow.To)
	}
	judgements, err := t.policies()
	if err != nil {
		return err
	}
	t.judge(judgements, policy.Egress)
	if destination == nil && t.nodePort() {
		return nil
	}
	if t.source != nil || destination != nil {
		if err := t.node(); err != nil {
			return err
		}
	}
	if err := t.route(link, destination); err != nil {
		return err
	}
	t.judge(judgements, policy.Ingress)
	if destination != nil && destination.Pod != t.sourcePod() {
		return t.pod(destination)
	}
	return nil
}

func (t *trace) sourcePod() pod.Ref {
	if t.source == nil {
		return pod.Ref{}
	}
	return t.source.Pod
}

// putBack is the remedy for differences of what huskd keeps as planned.
const putBack = "huskd puts it back; if it doesn't last, find the program that changes it"

// pod explains the link, addresses and routes of a pod of this node.
func (t *trace) pod(e *network.End) error {
	v := e.Plan.Veth
	h := Hop{Where: "pod " + e.Pod.String(), Verdict: Passes}
	h.Why = fmt.Sprintf("%s by %s and %s, MTU %d", join(e.Addresses), v.Pod, v.Host, v.MTU)
	diffs, err := t.paths.Verify(e)
	if err != nil {
		return err
	}
	h.differs(diffs, putBack)
	if e == t.source {
		if err := t.refusal(&h, e); err != nil {
			return err
		}
	}
	t.add(h)
	return nil
}

// refusal explains that a pod can't begin connections, if so.
func (t *trace) refusal(h *Hop, e *network.End) error {
	usage, err := t.Connections()
	if err != nil {
		return err
	}
	for _, r := range usage.Refused {
		if r.Pod == e.Pod.String() {
			h.Verdict, h.Why = Drops, r.String()
			h.Remedy = "let it close some; if it needs them, set net.netfilter.nf_conntrack_max higher"
		}
	}
	return nil
}

func (h *Hop) differs(diffs []string, remedy string) {
	if len(diffs) > 0 {
		h.Difference, h.Remedy = strings.Join(diffs, "; "), remedy
	}
}

// hostPort explains a connection to an address of this node. It returns the pod to which the
// connection goes on, and nil if the node itself takes it.
func (t *trace) hostPort() (*network.End, error) {
	end, element := t.paths.Forwarded(netip.AddrPortFrom(t.flow.To, t.flow.Port), pod.Protocol(firewall.ProtocolName(t.flow.Protocol)))
	if end == nil {
		judgements, err := t.policies()
		if err != nil {
			return nil, err
		}
		t.judge(judgements, policy.Egress)
		if t.nodePort() {
			return nil, nil
		}
		why := fmt.Sprintf("takes it itself: %v is its own address", t.flow.To)
		if t.flow.Port != 0 {
			why += fmt.Sprintf(", and no pod has host port %d", t.flow.Port)
		}
		t.add(Hop{Where: "this node", Verdict: Passes, Why: why})
		return nil, nil
	}
	diffs, err := t.paths.Verify(end)
	if err != nil {
		return nil, err
	}
	h := Hop{Where: fmt.Sprintf("host port %d", t.flow.Port), Verdict: Passes, Why: fmt.Sprintf("forwarded to %v of %v", element.To, end.Pod)}
	h.differs(slices.DeleteFunc(diffs, func(d string) bool { return !strings.HasPrefix(d, element.String()) }), putBack)
	t.add(h)
	t.flow.To, t.flow.Port = element.To.Addr(), element.To.Port()
	return end, nil
}

// nodePort reports whether a connection to a node's own address is dropped because only nodes talk
// to each other by its port.
func (t *trace) nodePort() bool {
	why := t.paths.Refuses(t.flow.From, t.flow.To, uint8(t.flow.Protocol), t.flow.Port)
	if why == "" {
		return false
	}
	t.add(Hop{Where: "this node", Verdict: Drops, Why: why, Remedy: "use another port of the node"})
	return true
}

// policies asks for the judgement of network policy.
func (t *trace) policies() ([]firewall.Judgement, error) {
	if t.Firewall == nil {
		return nil, nil
	}
	if note := t.Firewall.Note(); note != "" {
		t.add(Hop{Where: "network policy", Verdict: Passes, Why: note, Remedy: "\"husk doctor\" says more"})
	}
	return t.Firewall.Explain(t.flow)
}

// judge adds the judgement of one end's policies.
func (t *trace) judge(list []firewall.Judgement, d policy.Direction) {
	for _, j := range list {
		if j.Direction != d {
			continue
		}
		h := Hop{Where: fmt.Sprintf("%s of %s", d, j.Pod), Verdict: Allowed, Why: j.Why}
		if !j.Allowed {
			h.Verdict, h.Remedy = Denied, "a rule that allows it has to be added to one of these policies"
		}
		if j.Difference != "" {
			h.differs([]string{j.Difference}, putBack)
		}
		t.add(h)
	}
}

// node explains whether this node forwards packets at all.
func (t *trace) node() error {
	h := Hop{Where: "this node", Verdict: Passes, Why: "forwards packets of pods"}
	diffs, err := t.paths.VerifyNode()
	if err != nil {
		return err
	}
	h.differs(diffs, putBack)
	walls, err := t.Network.BlockingFirewalls()
	if err != nil {
		return err
	}
	for _, w := range walls {
		h.Verdict, h.Why, h.Remedy = Drops, w.String(), "run "+strings.Join(w.Fix, "; ")
	}
	t.add(h)
	return nil
}

// route explains where this node sends the packets.
func (t *trace) route(link string, destination *network.End) error {
	from := t.flow.From
	if link == "" {
		from = netip.Addr{} // it needn't be an address of this node
	}
	got, err := t.paths.Lookup(from, t.flow.To, link)
	if err != nil {
		return err
	}
	h := Hop{Where: fmt.Sprintf("route to %v", t.flow.To), Verdict: Passes}
	to := t.peerOf(t.flow.To)
	var want []hop
	switch {
	case destination != nil:
		h.Why = "by " + destination.Link
		want = []hop{{link: destination.Link}}
	case to != nil && to.Way == "":
		h.Verdict, h.Why, h.Remedy = Drops, fmt.Sprintf("no way to node %s: %s", to.Name, to.Why), "\"husk net nodes\" and \"husk doctor\" say more"
		t.add(h)
		return nil
	case to != nil:
		want = t.planned(to)
		h.Why = fmt.Sprintf("to node %s by %s: %s", to.Name, to.Way, joinRoutes(to, t.flow.To))
	case got.Refusal != "":
		h.Verdict, h.Why, h.Remedy = Drops, got.Refusal, "no pod or node of the pod network has this address; otherwise add a route"
		t.add(h)
		return nil
	default:
		h.Why = "outside of the pod network, " + hop{got.Link, got.Via}.String()
		if t.source != nil && t.paths.Masquerades(t.flow.To) {
			h.Why += ", with this node's address"
		}
		t.add(h)
		return nil
	}
	switch at := (hop{got.Link, got.Via}); {
	case got.Refusal != "":
		h.Difference, h.Remedy = "the kernel drops it: "+got.Refusal, "\"ip route get\" shows what the kernel does; huskd puts its own routes back"
	case !slices.Contains(want, at):
		h.Difference, h.Remedy = "the kernel sends it "+at.String(), "another route precedes huskd's: find it with \"ip route\" and \"ip rule\", and remove it"
	}
	t.add(h)
	if to != nil && destination == nil {
		return t.way(to, "to")
	}
	return nil
}

// hop is where a route leads.
type hop struct {
	link string
	via  netip.Addr
}

func (h hop) String() string {
	s := "by " + cmp.Or(h.link, "nothing")
	if h.via.IsValid() {
		s += " via " + h.via.String()
	}
	return s
}

// planned are the next hops to a peer's block with the destination.
func (t *trace) planned(p *nodes.Peer) (out []hop) {
	for _, r := range p.Routes {
		if r.Dst.Contains(t.flow.To) {
			out = append(out, hop{r.Link, r.Via})
		}
	}
	return out
}

func joinRoutes(p *nodes.Peer, to netip.Addr) string {
	var out []string
	for _, r := range p.Routes {
		if r.Dst.Contains(to) {
			out = append(out, r.String())
		}
	}
	return strings.Join(out, ", ")
}

// peerOf returns the other node whose pods have an address, or nil.
func (t *trace) peerOf(addr netip.Addr) *nodes.Peer {
	for i := range t.status.Peers {
		if p := &t.status.Peers[i]; slices.ContainsFunc(p.Blocks, func(b netip.Prefix) bool { return b.Contains(addr) }) {
			return p
		}
	}
	return nil
}

// way explains how packets go to another node, and what is known of that node.
func (t *trace) way(p *nodes.Peer, preposition string) error {
	way := Hop{Where: fmt.Sprintf("way %s node %s", preposition, p.Name), Verdict: Passes}
	if p.Way == "" {
		way.Verdict, way.Why, way.Remedy = Drops, "there is none: "+p.Why, "\"husk doctor\" says more"
		t.add(way)
		return nil
	}
	way.Why = fmt.Sprintf("%s, MTU %d", p.Way, p.MTU)
	if p.Plan != nil {
		way.Why += objects(p.Plan)
	}
	if p.Why != "" {
		way.Why += "; " + p.Why
	}
	diffs, err := t.Verify(t.status, *p)
	if err != nil {
		return err
	}
	way.differs(diffs, putBack)
	t.add(way)
	other := Hop{Where: "node " + p.Name, Verdict: Passes}
	switch h := p.Health; {
	case !h.Answered:
		other.Why, other.Remedy = "has never answered this node's probes", "check that huskd runs there, and that no firewall drops UDP port "+fmt.Sprint(plan.ProbePort)+" between pods' subnets"
	case time.Since(h.Last) > t.status.Silence():
		other.Verdict, other.Why, other.Remedy = Drops, fmt.Sprintf("hasn't answered for %v", time.Since(h.Last).Round(time.Second)), "check that the node runs and can be reached by "+join(p.Addresses)
	default:
		other.Why = fmt.Sprintf("answers within %v, loss %.0f%%", h.RTT.Round(10*time.Microsecond), 100*h.Loss)
		if h.Limit > 0 {
			other.Why += fmt.Sprintf("; packets larger than %d bytes are lost on the way there", h.Limit)
		}
	}
	other.Why += "; what it does with the packets is seen there: run husk net explain on it"
	t.add(other)
	return nil
}

// objects are the neighbours, forwarding entries and tunnels of a way.
func objects(p *backend.Peer) (out string) {
	for _, n := range p.Neighbours {
		out += ", " + n.String()
	}
	for _, f := range p.Forwards {
		out += ", " + f.String()
	}
	for _, tunnel := range p.Tunnels {
		out += ", " + tunnel.String()
	}
	return out
}

func join[T fmt.Stringer](list []T) string {
	var out []string
	for _, item := range list {
		out = append(out, item.String())
	}
	return strings.Join(out, " ")
}
