package overlay

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/nlsock"
	"github.com/huskd/husk/internal/network/rtnetlink"
)

// Underlay returns the node's addresses towards other nodes, at most one per family and IPv4 first:
// the configured ones, or those that the default routes lead to.
func (o *Overlay) Underlay() (out []backend.Underlay, err error) {
	addresses, err := o.kernel.addresses()
	if err != nil {
		return nil, fmt.Errorf("addresses of the node: %w", err)
	}
	for _, to := range rtnetlink.DefaultProbes {
		var own rtnetlink.KernelAddress
		var mtu int
		if len(o.nodeIPs) > 0 {
			i := slices.IndexFunc(o.nodeIPs, func(a netip.Addr) bool { return a.Is4() == to.Is4() })
			if i < 0 {
				continue
			}
			at := slices.IndexFunc(addresses, func(a rtnetlink.KernelAddress) bool { return a.Prefix.Addr() == o.nodeIPs[i] })
			if at < 0 {
				return nil, fmt.Errorf("the node has no address %v: set another node-ip", o.nodeIPs[i])
			}
			own = addresses[at]
		} else {
			path := rtnetlink.PathTo(o.kernel.conn, to)
			own, mtu = choose(addresses, path), path.MTU
		}
		if own.Link == 0 {
			continue
		}
		u, err := o.kernel.underlay(own, mtu, addresses)
		if err != nil {
			return nil, err
		}
		if u.Link != "" {
			out = append(out, u)
		}
	}
	return out, nil
}

// underlay returns the Underlay of an address, with the MTU of its link or of the route if that is
// smaller. It is empty if the link is gone.
func (k *kernel) underlay(a rtnetlink.KernelAddress, mtu int, all []rtnetlink.KernelAddress) (backend.Underlay, error) {
	answer := k.conn.Do(rtnetlink.GetLink("", a.Link))[0]
	if errors.Is(answer.Err, unix.ENODEV) {
		return backend.Underlay{}, nil
	}
	l, err := rtnetlink.ParseLink(answer.Data)
	if err = errors.Join(answer.Err, err); err != nil {
		return backend.Underlay{}, fmt.Errorf("link of %v: %w", a.Prefix, err)
	}
	if mtu == 0 || l.MTU < mtu {
		mtu = l.MTU
	}
	u := backend.Underlay{Link: l.Name, Address: a.Prefix, MTU: mtu}
	if l.Name == "lo" || l.Kind == "dummy" {
		return u, nil
	}
	links := []string{l.Name}
	for _, other := range all {
		if other.Link == a.Link || !other.Prefix.Contains(a.Prefix.Addr()) {
			continue
		}
		if beside, err := rtnetlink.ParseLink(k.conn.Do(rtnetlink.GetLink("", other.Link))[0].Data); err == nil && !slices.Contains(links, beside.Name) {
			links = append(links, beside.Name)
		}
	}
	slices.Sort(links[1:])
	u.Links = strings.Join(links, " ")
	return u, nil
}

// addresses returns the node's addresses that other nodes may be told: no temporary ones (RFC
// 8981), and none that isn't valid any more or not yet.
func (k *kernel) addresses() ([]rtnetlink.KernelAddress, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETADDR, 0)
	req.AddData(nl.NewIfAddrmsg(unix.AF_UNSPEC))
	return nlsock.List(k.conn, req, func(data []byte) (rtnetlink.KernelAddress, bool) {
		a, ok := rtnetlink.ParseAddress(data)
		const unstable = unix.IFA_F_DEPRECATED | unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED
		temporary := a.Prefix.Addr().Is6() && a.Flags&unix.IFA_F_TEMPORARY != 0 // IFA_F_SECONDARY for IPv4
		return a, ok && a.Scope == unix.RT_SCOPE_UNIVERSE && a.Flags&unstable == 0 && !temporary
	})
}

// choose returns the address of a path's source if it may be told, or else another of its link.
func choose(addresses []rtnetlink.KernelAddress, path rtnetlink.Path) (out rtnetlink.KernelAddress) {
	for _, a := range addresses {
		switch {
		case path.Link == 0 || a.Prefix.Addr().Is4() != path.Source.Is4():
		case a.Prefix.Addr() == path.Source:
			return a // it may be on another link, such as lo
		case a.Link == path.Link && out.Link == 0:
			out = a
		}
	}
	return out
}
