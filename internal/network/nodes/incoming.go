package nodes

import (
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/heartbeat"
	"github.com/huskd/husk/internal/network/peer"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/network/preflight"
)

// Incoming returns examples of the packets that other nodes send to this one, of each kind and
// family, apart from those of pods. They come by the uplink.
func (s Status) Incoming(uplink string) (out []preflight.Packet) {
	add := func(protocol uint8, port uint16, from, to netip.Addr, link string) {
		name := map[uint8]string{unix.IPPROTO_UDP: "UDP port ", unix.IPPROTO_TCP: "TCP port ", unix.IPPROTO_IPIP: "IP protocol 4"}[protocol]
		if port != 0 {
			name += fmt.Sprint(port)
		}
		p := preflight.Packet{Name: name, Link: link, From: from, To: to, Protocol: protocol, Port: port}
		same := func(o preflight.Packet) bool { return o.Name == name && o.To == to }
		if from.IsValid() && to.IsValid() && link != "" && !slices.ContainsFunc(out, same) {
			out = append(out, p)
		}
	}
	links := map[backend.Way]string{backend.Direct: uplink}
	for _, l := range s.Links {
		links[l.Way] = l.Name
	}
	for _, p := range s.Peers {
		for _, to := range s.Self.Addresses {
			from := peer.Node{Addresses: p.Addresses}.Address(to.Is6())
			if s.Self.VXLAN != nil {
				add(unix.IPPROTO_UDP, s.Self.VXLAN.Port, from, to, uplink)
			}
			for _, w := range s.Self.WireGuard {
				add(unix.IPPROTO_UDP, w.Port, from, to, uplink)
			}
			if s.Self.IPIP && to.Is4() {
				add(unix.IPPROTO_IPIP, 0, from, to, uplink)
			}
			if s.Self.AS != 0 {
				add(unix.IPPROTO_TCP, plan.BGPPort, from, to, uplink)
			}
		}
		if len(s.Self.Blocks) > 0 && p.Way != "" {
			to := plan.First(s.Self.Blocks[0])
			for _, b := range p.Blocks {
				if b.Addr().Is4() == to.Is4() {
					add(unix.IPPROTO_UDP, heartbeat.Port, plan.First(b), to, links[p.Way])
				}
			}
		}
	}
	return out
}

// Direct returns how many nodes of a family this one sends packets to without a tunnel.
func (s Status) Direct(six bool) (count int) {
	for _, p := range s.Peers {
		if p.Way == backend.Direct || p.Way == backend.BGP {
			if (peer.Node{Addresses: p.Addresses}).Address(six).IsValid() {
				count++
			}
		}
	}
	return count
}
