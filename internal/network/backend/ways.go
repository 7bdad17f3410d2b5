package backend

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/huskd/husk/internal/network/peer"
	"github.com/huskd/husk/internal/network/plan"
)

// by returns how n is reached by a way, or why it can't be.
func (s Self) by(w Way, n peer.Node) (Peer, error) {
	p := Peer{Name: n.Name, Way: w}
	if n.Encrypted && w != WireGuard {
		return p, errors.New("the peer takes only encrypted packets")
	}
	if n.Tunneled && (w == Direct || w == BGP) {
		return p, errors.New("the peer takes only packets from tunnels")
	}
	var err error
	switch w {
	case Direct:
		err = s.direct(&p, n)
	case VXLAN:
		err = s.vxlan(&p, n)
	case IPIP:
		err = s.ipip(&p, n)
	case WireGuard:
		err = s.wireGuard(&p, n)
	case BGP:
		err = s.bgp(&p, n)
	}
	return p, err
}

// route returns a route of the node to a block of a peer. The node itself sends by a tunnel from an
// address of its own pod subnet, so that the reply comes back by the tunnel too: the way by the
// peer's uplink may not exist, or not accept the packet. So it does to a gateway of the other
// family, as the node or the peer may have no address of the block's family.
func (s Self) route(link string, block netip.Prefix, via netip.Addr, tunnel bool) plan.Route {
	r := plan.Route{Kind: plan.Unicast, Dst: block, Via: via, Link: link, Metric: int(Tag(s.Instance))}
	if tunnel || via.IsValid() && via.Is6() != block.Addr().Is6() {
		own := slices.IndexFunc(s.Record.Blocks, func(b netip.Prefix) bool { return b.Addr().Is4() == block.Addr().Is4() })
		if own >= 0 {
			r.Source = plan.First(s.Record.Blocks[own])
		}
	}
	return r
}

// common returns the underlay by which both nodes have an address of the same family: IPv4 if there
// are both, as every backend can use it.
func (s Self) common(n peer.Node) (Underlay, netip.Addr, error) {
	for _, six := range []bool{false, true} {
		if u, ok := s.underlay(six); ok && n.Address(six).IsValid() {
			return u, n.Address(six), nil
		}
	}
	return Underlay{}, netip.Addr{}, errors.New("the nodes have no addresses of the same family")
}

// direct adds routes by the peer's own address. Blocks of a family in which the peer has no address
// go by the address of the other: Linux has had IPv4 routes by IPv6 gateways since 5.2, and has no
// IPv6 routes by IPv4 gateways.
func (s Self) direct(p *Peer, n peer.Node) error {
	neighbour := func(six bool) (Underlay, netip.Addr) {
		u, ok := s.underlay(six)
		if a := n.Address(six); ok && a.IsValid() && u.Address.Contains(a) {
			return u, a
		}
		return Underlay{}, netip.Addr{}
	}
	for _, six := range []bool{false, true} {
		u, via := neighbour(six)
		if !via.IsValid() && !six {
			u, via = neighbour(true)
		}
		for _, b := range n.Blocks {
			if b.Addr().Is6() != six {
				continue
			}
			if !via.IsValid() {
				return fmt.Errorf("no address of the peer for %v is on a link of this node", b)
			}
			p.Routes = append(p.Routes, s.route(u.Link, b, via, false))
			p.setPath(via, u.MTU)
		}
	}
	if !p.Endpoint.IsValid() {
		u, a, err := s.common(n)
		if err != nil {
			return err
		}
		p.setPath(a, u.MTU)
	}
	return nil
}

// setPath sets where packets go and how large they may be: the first and the smaller, if there are
// two.
func (p *Peer) setPath(endpoint netip.Addr, mtu int) {
	if !p.Endpoint.IsValid() {
		p.Endpoint = endpoint
	}
	if p.MTU == 0 || mtu < p.MTU {
		p.MTU = mtu
	}
}

// tunnel returns the underlay and endpoint of a tunnel, and its MTU in p.
func (s Self) tunnel(p *Peer, n peer.Node, u Underlay, endpoint netip.Addr) {
	mtu := u.MTU
	if n.MTU > 0 {
		mtu = min(mtu, n.MTU)
	}
	p.setPath(endpoint, mtu-p.Way.Overhead(endpoint.Is6()))
}

// vxlan adds what flannel's backend of that name consists of: for each family a neighbour that
// stands for the peer, with a MAC that the forwarding database leads to the peer's address, and
// onlink routes by that neighbour.
func (s Self) vxlan(p *Peer, n peer.Node) error {
	if s.Record.VXLAN == nil {
		return errors.New("this node's kernel has no VXLAN")
	}
	if n.VXLAN == nil {
		return errors.New("the peer takes no VXLAN packets")
	}
	if n.VXLAN.VNI != s.Record.VXLAN.VNI || n.VXLAN.Port != s.Record.VXLAN.Port {
		return fmt.Errorf("the peer uses VNI %d and port %d, this node %d and %d", n.VXLAN.VNI, n.VXLAN.Port, s.Record.VXLAN.VNI, s.Record.VXLAN.Port)
	}
	ends, err := s.vxlanEnds(n)
	if err != nil {
		return err
	}
	for i, e := range ends {
		if i == 1 && e == ends[0] {
			break
		}
		s.tunnel(p, n, e.under, e.to)
		p.Forwards = append(p.Forwards, Forward{Link: LinkName(s.Instance, VXLAN, e.to.Is6()), MAC: e.mac, To: e.to})
	}
	gateways := map[bool]netip.Addr{}
	for _, b := range n.Blocks {
		six, e := b.Addr().Is6(), ends[0]
		if six {
			e = ends[1]
		}
		link := LinkName(s.Instance, VXLAN, e.to.Is6())
		if _, ok := gateways[six]; !ok {
			gateways[six] = gateway(b, e.mac)
			p.Neighbours = append(p.Neighbours, plan.Neighbour{Link: link, Addr: gateways[six], MAC: e.mac})
		}
		p.Routes = append(p.Routes, s.route(link, b, gateways[six], true))
	}
	return nil
}

// gateway returns the address of the neighbour that stands for a peer. It is never sent. For IPv4
// it is the first of the peer's block. For IPv6 it is link-local: the kernel refuses one in the
// block while the block's own route is by another link, as when a peer's way changes
// (ip6_route_check_nh_onlink).
func gateway(block netip.Prefix, mac plan.MAC) netip.Addr {
	if block.Addr().Is4() {
		return block.Addr()
	}
	return mac.LinkLocal()
}

// vxlanEnd is a peer's end of a VXLAN tunnel, and the underlay by which it is reached.
type vxlanEnd struct {
	under Underlay
	to    netip.Addr
	mac   plan.MAC
}

// vxlanEnds returns the ends for packets of IPv4 and IPv6. They are the same unless the peer wants
// each family over itself.
func (s Self) vxlanEnds(n peer.Node) (ends [2]vxlanEnd, err error) {
	if n.VXLAN.MAC6 == (peer.MAC{}) {
		u, to, err := s.common(n)
		end := vxlanEnd{u, to, plan.MAC(n.VXLAN.MAC)}
		return [2]vxlanEnd{end, end}, err
	}
	for i, mac := range []peer.MAC{n.VXLAN.MAC, n.VXLAN.MAC6} {
		u, ok := s.underlay(i == 1)
		ends[i] = vxlanEnd{u, n.Address(i == 1), plan.MAC(mac)}
		if !ok || !ends[i].to.IsValid() {
			return ends, errors.New("the peer takes each family over itself, and one of the nodes has addresses of one only")
		}
	}
	return ends, nil
}

func (s Self) ipip(p *Peer, n peer.Node) error {
	u, ok := s.underlay(false)
	switch endpoint := n.Address(false); {
	case !s.Record.IPIP:
		return errors.New("this node's kernel has no IPIP")
	case !n.IPIP:
		return errors.New("the peer takes no IPIP packets")
	case !ok || !endpoint.IsValid():
		return errors.New("both nodes need an IPv4 address")
	case slices.ContainsFunc(n.Blocks, func(b netip.Prefix) bool { return b.Addr().Is6() }):
		return errors.New("it carries no IPv6")
	default:
		s.tunnel(p, n, u, endpoint)
		for _, b := range n.Blocks {
			p.Routes = append(p.Routes, s.route(LinkName(s.Instance, IPIP, false), b, endpoint, true))
		}
		return nil
	}
}

func (s Self) wireGuard(p *Peer, n peer.Node) error {
	if len(s.Record.WireGuard) == 0 {
		return errors.New("this node has no WireGuard")
	}
	if len(n.WireGuard) == 0 {
		return errors.New("the peer has no WireGuard")
	}
	u, endpoint, err := s.common(n)
	if err != nil {
		return err
	}
	s.tunnel(p, n, u, endpoint)
	p.Tunnels = s.tunnels(&n, endpoint)
	for _, b := range n.Blocks {
		p.Routes = append(p.Routes, s.route(p.Tunnels[0].Link, b, netip.Addr{}, true))
	}
	return nil
}

// bgp adds routes to the peer's blocks by the next hops that the speaker has learned. It ignores
// what else the speaker knows: a route that contains the peer's own address would cut it off.
func (s Self) bgp(p *Peer, n peer.Node) error {
	var beyond netip.Addr
	for _, b := range n.Blocks {
		for _, via := range s.learned(b) {
			u, ok := s.underlay(via.Is6())
			if !ok || !u.Address.Contains(via) {
				beyond = via
				continue
			}
			p.Routes = append(p.Routes, s.route(u.Link, b, via, false))
			p.setPath(via, u.MTU)
		}
	}
	if len(p.Routes) == 0 && beyond.IsValid() {
		return fmt.Errorf("the next hop %v is not on a link of this node", beyond)
	}
	if len(p.Routes) == 0 && len(n.Blocks) > 0 {
		return errors.New("no route was announced")
	}
	return nil
}

// learned returns the next hops of a block: of the block itself or, if the node or a router has
// announced it as a part of a larger prefix, of the smallest one that contains it.
func (s Self) learned(block netip.Prefix) []netip.Addr {
	for _, c := range s.Cluster {
		for bits := block.Bits(); c.Contains(block.Addr()) && bits >= c.Bits(); bits-- {
			if via := s.Learned[netip.PrefixFrom(block.Addr(), bits).Masked()]; len(via) > 0 {
				return via
			}
		}
	}
	return nil
}
