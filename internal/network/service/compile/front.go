package compile

import (
	"net/netip"
	"slices"
	"time"

	"github.com/huskd/husk/internal/network/service"
)

// Key is where connections to a Service go.
type Key struct {
	// Addr is 0.0.0.0 or :: for a port of the node.
	Addr     netip.Addr
	Protocol service.Protocol
	Port     uint16
}

// Front is what becomes of the connections to a Key. It must not change.
type Front struct {
	Service, Port string // the Service's key and the port's name, for people
	// All and Own are the endpoints of all nodes, and of this node, in an order that changes little
	// from one Front of a Key to the next. Each is nil if no Lead leads there.
	All, Own []netip.AddrPort
	// Inside is where the connections of local pods and of the node lead. Those of the node are
	// always masqueraded. Outside is where all others lead.
	Inside, Outside Lead
	Affinity        time.Duration // 0 for none
	// Known are all endpoints, ready or not, sorted. Connections to them stay.
	Known []netip.AddrPort
	// Sources, unless empty, are where connections may come from.
	Sources []netip.Prefix
}

// Lead is where connections of one kind lead.
type Lead struct {
	Verdict    service.Verdict // Forward, Reject or Drop
	Own        bool            // to the node's own endpoints
	Masquerade bool
}

// Endpoints returns those of a lead that forwards.
func (f *Front) Endpoints(l Lead) []netip.AddrPort {
	switch {
	case l.Verdict != service.Forward:
		return nil
	case l.Own:
		return f.Own
	}
	return f.All
}

// Has reports whether an endpoint is one of the Front's.
func (f *Front) Has(e netip.AddrPort) bool {
	return slices.Contains(f.All, e) || slices.Contains(f.Own, e)
}

// Keeps reports whether connections to an endpoint may stay: those of UDP if the endpoint gets new
// ones, and those of other protocols if it is known.
func (f *Front) Keeps(p service.Protocol, e netip.AddrPort) bool {
	if p == service.UDP {
		return f.Has(e)
	}
	_, known := slices.BinarySearchFunc(f.Known, e, netip.AddrPort.Compare)
	return known
}

func (f *Front) equal(o *Front) bool {
	return f.Service == o.Service && f.Port == o.Port && f.Inside == o.Inside && f.Outside == o.Outside && f.Affinity == o.Affinity &&
		slices.Equal(f.All, o.All) && slices.Equal(f.Own, o.Own) && slices.Equal(f.Known, o.Known) && slices.Equal(f.Sources, o.Sources)
}

// Update is what has changed.
type Update struct {
	Fronts map[Key]*Front // nil if there is none any more
	// ClusterIPs are all addresses at which other ports than those of Fronts are rejected: true has
	// come, false has gone.
	ClusterIPs map[netip.Addr]bool
	// Local are addresses of the node's own endpoints, likewise. Connections from one of them to
	// itself must be masqueraded.
	Local map[netip.Addr]bool
	// NodePorts are where the node's addresses with node ports are. It is nil if they are as before.
	NodePorts []netip.Prefix
	// Ended are endpoints that get no more packets of a Key: of UDP, which has no connections, when
	// there are other endpoints to prefer, and of all protocols when an endpoint is gone.
	Ended []Ended
}

// Ended is an endpoint that went.
type Ended struct {
	Key      Key
	Endpoint netip.AddrPort // invalid for all packets that went to no endpoint
}

// Empty reports whether nothing has changed.
func (u *Update) Empty() bool {
	return len(u.Fronts)+len(u.ClusterIPs)+len(u.Local)+len(u.NodePorts)+len(u.Ended) == 0
}

// arrange orders endpoints so that few move: those that stay keep their places as far as these
// exist.
func arrange(old, now []netip.AddrPort) []netip.AddrPort {
	if len(now) == 0 {
		return nil
	}
	out := make([]netip.AddrPort, len(now))
	var rest []netip.AddrPort
	place := make(map[netip.AddrPort]int, len(old))
	for i, e := range old {
		place[e] = i
	}
	for _, e := range now {
		if i, ok := place[e]; ok && i < len(out) {
			out[i] = e
		} else {
			rest = append(rest, e)
		}
	}
	for i := range out {
		if !out[i].IsValid() {
			out[i], rest = rest[0], rest[1:]
		}
	}
	return out
}
