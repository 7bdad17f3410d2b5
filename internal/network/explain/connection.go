package explain

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/network/firewall"
	"github.com/huskd/husk/internal/network/policy"
)

// Connection is what is explained. The ends are pods, Services, addresses or names of hosts.
type Connection struct {
	From, To string
	Protocol policy.Protocol
	Port     uint16
}

// ParseConnection reads a connection as people write it: each end is an address, NAMESPACE/NAME or
// NAME of a pod or Service, or the name of a host; the protocol is a name or a number. An error is
// of kind invalid argument.
func ParseConnection(from, to, protocol string, port int32) (Connection, error) {
	c := Connection{From: from, To: to}
	for _, p := range []policy.Protocol{policy.TCP, policy.UDP, policy.SCTP} {
		if firewall.ProtocolName(p) == protocol {
			c.Protocol = p
		}
	}
	if c.Protocol == 0 {
		n, err := strconv.ParseUint(protocol, 10, 8)
		if err != nil || n == 0 {
			return c, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("protocol %q: use tcp, udp, sctp or a number from 1 to 255", protocol))
		}
		c.Protocol = policy.Protocol(n)
	}
	if port < 0 || port > 65535 || (port == 0) == c.Protocol.HasPorts() {
		return c, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("port %d of %s: tcp, udp and sctp have ports from 1 to 65535, other protocols none", port, firewall.ProtocolName(c.Protocol)))
	}
	c.Port = uint16(port)
	return c, nil
}

// resolve finds addresses of a connection's ends, of one family.
func (e Explainer) resolve(ctx context.Context, c Connection) (policy.Flow, error) {
	from, err := e.addressesOf(ctx, c.From)
	if err != nil {
		return policy.Flow{}, err
	}
	to, err := e.addressesOf(ctx, c.To)
	if err != nil {
		return policy.Flow{}, err
	}
	for _, a := range from {
		for _, b := range to {
			if a.Is4() == b.Is4() {
				return policy.Flow{From: a, To: b, Protocol: c.Protocol, Port: c.Port}, nil
			}
		}
	}
	return policy.Flow{}, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("%s and %s have no addresses of the same family", c.From, c.To))
}

// addressesOf returns the addresses of an end. A pod precedes a Service and a host of the same
// name.
func (e Explainer) addressesOf(ctx context.Context, end string) ([]netip.Addr, error) {
	if addr, err := netip.ParseAddr(end); err == nil {
		return []netip.Addr{addr.Unmap()}, nil
	}
	key := end
	if !strings.Contains(end, "/") {
		key = "default/" + end
	}
	if p := e.Network.Paths().Named(key); p != nil {
		return p.Addresses, nil
	}
	if e.Firewall != nil {
		for _, p := range e.Firewall.World().Pods {
			if p.Key() == key && len(p.Addresses) > 0 {
				return p.Addresses, nil
			}
		}
	}
	if s := e.serviceNamed(key); s != nil {
		if len(s.ClusterIPs) == 0 {
			return nil, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("service %s has no address of its own: give one of its pods", key))
		}
		return s.ClusterIPs, nil
	}
	if strings.Contains(end, ".") && !strings.Contains(end, "/") {
		addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", end)
		if err != nil {
			return nil, errdefs.ErrNotFound.WithMessage(fmt.Sprintf("%s is neither a pod nor a host that this node can look up: %v", end, err))
		}
		for i := range addrs {
			addrs[i] = addrs[i].Unmap()
		}
		return addrs, nil
	}
	return nil, errdefs.ErrNotFound.WithMessage(fmt.Sprintf("no pod or Service %s with an address of its own is known: give NAMESPACE/NAME, an address or the full name of a host", key))
}
