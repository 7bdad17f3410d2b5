package api

import (
	"context"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/network/explain"
	"github.com/huskd/husk/internal/network/firewall"
)

// ListPolicies returns what network policy says about the pods of this node.
func (s *Server) ListPolicies(context.Context, *huskv1.ListPoliciesRequest) (*huskv1.ListPoliciesResponse, error) {
	if s.Firewall == nil {
		return &huskv1.ListPoliciesResponse{Note: noFirewall}, nil
	}
	report := s.Firewall.Report(true)
	out := &huskv1.ListPoliciesResponse{Note: report.Note, Policies: int32(report.Policies)}
	for _, p := range report.Pods {
		out.Pods = append(out.Pods, &huskv1.PolicyPod{
			Namespace: p.Namespace, Name: p.Name, Addresses: texts(p.Addresses), Ingress: policyEnd(p.Ingress), Egress: policyEnd(p.Egress),
		})
	}
	return out, nil
}

const noFirewall = "network policy is off: see network-policy in the configuration"

func policyEnd(e firewall.End) *huskv1.PolicyEnd {
	out := &huskv1.PolicyEnd{Policies: e.Policies, Restricted: e.Restricted, Denied: e.Denied}
	for _, a := range e.Allowed {
		out.Allowed = append(out.Allowed, &huskv1.AllowedPorts{Ports: a.Ports, Peers: a.Peers, Connections: a.Connections})
	}
	return out
}

// ExplainConnection follows the packets of a connection hop by hop.
func (s *Server) ExplainConnection(ctx context.Context, req *huskv1.ExplainConnectionRequest) (*huskv1.ExplainConnectionResponse, error) {
	c, err := explain.ParseConnection(req.From, req.To, req.Protocol, req.Port)
	if err != nil {
		return nil, err
	}
	hops, err := s.Explainer.Explain(ctx, c)
	if err != nil {
		return nil, err
	}
	out := &huskv1.ExplainConnectionResponse{Allowed: true}
	for _, h := range hops {
		passes := h.Verdict == explain.Passes || h.Verdict == explain.Allowed
		out.Allowed = out.Allowed && passes
		out.Hops = append(out.Hops, &huskv1.Hop{Where: h.Where, Allowed: passes, Why: h.Why, Difference: h.Difference, Verdict: string(h.Verdict), Remedy: h.Remedy})
	}
	return out, nil
}
