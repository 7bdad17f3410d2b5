package explain

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/huskd/husk/internal/network/service"
)

// serviceNamed returns the Service of a key. It returns nil if there is none.
func (e Explainer) serviceNamed(key string) *service.Service {
	if e.Services == nil {
		return nil
	}
	world := e.Services()
	if i := slices.IndexFunc(world.Services, func(s service.Service) bool { return s.Key() == key }); i >= 0 {
		return &world.Services[i]
	}
	return nil
}

// service follows a connection to a Service to its first endpoint. It reports whether the
// connection ends before that. ToNode is whether the destination is an address of this node.
func (t *trace) service(toNode bool) (ends bool) {
	if t.Services == nil {
		return false
	}
	world := t.Services()
	flow := service.Flow{From: t.flow.From, To: t.flow.To, Protocol: service.Protocol(t.flow.Protocol), Port: t.flow.Port, ToNode: toNode}
	if t.source != nil {
		flow.Origin = service.LocalPod
	} else if from, err := t.paths.Lookup(netip.Addr{}, t.flow.From, ""); err == nil && from.Local {
		flow.Origin = service.LocalNode
	}
	d := world.Decide(flow)
	h := Hop{Where: "service " + d.Service, Verdict: Drops, Remedy: `"husk net services" shows its ports and endpoints, and "husk events" what is wrong`}
	switch d.Verdict {
	case service.Other:
		return false
	case service.Forward:
		to := d.Endpoints[0]
		h.Verdict, h.Why, h.Remedy = Passes, "leads to "+to.String(), ""
		if n := len(d.Endpoints); n > 1 {
			h.Why += fmt.Sprintf(", one of %d endpoints", n)
		}
		t.flow.To, t.flow.Port = to.Addr(), to.Port()
	case service.Reject:
		h.Why = "no endpoint of it is ready, so this node refuses the connection"
		s := t.serviceNamed(d.Service)
		if flow.Port == 0 {
			h.Why = "it answers at its ports only"
		} else if !slices.ContainsFunc(s.Ports, func(p service.Port) bool {
			return p.Protocol == flow.Protocol && (p.Port == flow.Port || toNode && p.NodePort == flow.Port)
		}) {
			h.Why = fmt.Sprintf("it has no port %d/%s", flow.Port, flow.Protocol)
		}
	case service.Drop:
		h.Why = "it doesn't admit the client, or takes connections only to endpoints on this node, of which none is ready"
	}
	t.add(h)
	return d.Verdict != service.Forward
}
