package api

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/network/nodes"
)

// NetworkStatus returns how the pod network reaches other nodes.
func (s *Server) NetworkStatus(context.Context, *huskv1.NetworkStatusRequest) (*huskv1.NetworkStatusResponse, error) {
	settings, err := s.Network.Settings()
	if err != nil {
		return nil, err
	}
	out := &huskv1.NetworkStatusResponse{Store: "none", Mtu: int32(settings.MTU), Notes: settings.Notes}
	self := &huskv1.Node{Name: s.Node, Self: true, Mtu: int32(settings.MTU)}
	for _, u := range s.Network.Usage().Ranges {
		self.Blocks = append(self.Blocks, u.Range.String())
		out.Pools = append(out.Pools, &huskv1.Pool{Block: u.Range.String(), Size: int32(u.Size), Used: int32(u.Used), Quarantined: int32(u.Quarantined)})
	}
	out.Nodes = []*huskv1.Node{self}
	if s.Nodes == nil {
		return out, nil
	}
	st := s.Nodes.Status()
	out.Store, out.Backend = s.Nodes.Store(), string(s.Nodes.Backend())
	out.Notes, out.Error = append(out.Notes, st.Notes...), st.Error
	self.Addresses = texts(st.Self.Addresses)
	if st.Self.Rotating() {
		self.Why = "its WireGuard key is being changed"
	}
	for _, p := range st.Peers {
		out.Nodes = append(out.Nodes, otherNode(p, time.Now(), st.Silence()))
	}
	return out, nil
}

// RotateKey begins to change this node's WireGuard key.
func (s *Server) RotateKey(ctx context.Context, req *huskv1.RotateKeyRequest) (*huskv1.RotateKeyResponse, error) {
	if s.Nodes == nil {
		return nil, errdefs.ErrFailedPrecondition.WithMessage("this node is by itself and has no WireGuard key: see network-store")
	}
	return &huskv1.RotateKeyResponse{}, s.Nodes.RotateKey(ctx, req.Now)
}

func otherNode(p nodes.Peer, now time.Time, silence time.Duration) *huskv1.Node {
	out := &huskv1.Node{
		Name: p.Name, Addresses: texts(p.Addresses), Blocks: texts(p.Blocks), Way: string(p.Way), Why: p.Why, Mtu: int32(p.MTU), SinceNs: p.Since.UnixNano(), Routes: texts(p.Routes),
	}
	if p.Health.Answered {
		out.RttNs, out.Loss, out.AnsweredNs = p.Health.RTT.Nanoseconds(), p.Health.Loss, p.Health.Last.UnixNano()
	}
	if p.Silent(now, silence) {
		out.RttNs = 0 // that of an answer long ago
		out.Why = strings.TrimSuffix(fmt.Sprintf("no answer for %v; %s", now.Sub(p.Health.Last).Round(time.Second), p.Why), "; ")
	}
	return out
}

// texts returns each item as text.
func texts[T fmt.Stringer](list []T) (out []string) {
	for _, item := range list {
		out = append(out, item.String())
	}
	return out
}
