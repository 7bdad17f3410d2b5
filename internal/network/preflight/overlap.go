// Package preflight finds conflicts with other software on a node: subnets that are taken,
// processes that listen on a hostPort, firewalls that drop forwarded packets. It changes nothing.
//
// Its functions look at the network namespace of the calling thread.
package preflight

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/nlsock"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/pod"
)

// Shorter prefixes are some kind of default route, as VPNs create them: 0.0.0.0/1, 2000::/3.
const shortest4, shortest6 = 8, 16

// Overlap returns an error of kind failed precondition if a subnet overlaps an address or a route
// of the node that isn't the instance's own. An empty bridge is the instance's default. The routes
// and links to other nodes' pods are the instance's own, too.
func Overlap(i pod.Instance, bridge string, subnets []netip.Prefix) error {
	tag, err := plan.Tag(i)
	if err != nil {
		return err
	}
	ours := func(link string) bool {
		return link == plan.BridgeName(i, bridge) || strings.HasPrefix(link, i.HostLinkPrefix()) || strings.HasPrefix(link, backend.LinkPrefix(i))
	}
	taken := func(what string, prefix netip.Prefix) error {
		for _, s := range subnets {
			if s.Overlaps(prefix) {
				return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("pod subnet %v overlaps %s: configure another in pod-subnets", s, what))
			}
		}
		return nil
	}
	links, err := nlsock.Complete(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	names := map[int]string{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	var routes []netlink.Route
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		some, err := nlsock.Complete(func() ([]netlink.Route, error) { return netlink.RouteList(nil, family) })
		if err != nil {
			return fmt.Errorf("list routes: %w", err)
		}
		routes = append(routes, some...)
	}
	own := map[netip.Prefix]bool{} // addresses
	for _, r := range routes {
		prefix, link := nlsock.Prefix(r.Dst), names[r.LinkIndex]
		if int(r.Protocol) == plan.Protocol && r.Priority == int(backend.Tag(i)) {
			continue // to another node's pods
		}
		if rank, ok := plan.RankOf(tag, r.Priority); ok && int(r.Protocol) == plan.Protocol {
			if r.Type == unix.RTN_UNREACHABLE && rank != plan.Remainder {
				own[plan.LoopbackAddress(prefix).Prefix] = true
			}
			continue
		}
		if r.Protocol == unix.RTPROT_KERNEL { // of an address, which is reported below
			continue
		}
		if ours(link) || !prefix.IsValid() || prefix.Bits() < shortest4 || prefix.Addr().Is6() && prefix.Bits() < shortest6 {
			continue
		}
		what := fmt.Sprintf("route %v", prefix)
		if link != "" {
			what += " dev " + link
		}
		if err := taken(what, prefix); err != nil {
			return err
		}
	}
	addresses, err := nlsock.Complete(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addresses {
		prefix, link := nlsock.Prefix(a.IPNet), names[a.LinkIndex]
		if ours(link) || own[prefix] {
			continue
		}
		if err := taken(fmt.Sprintf("address %v of %s", prefix, link), prefix.Masked()); err != nil {
			return err
		}
	}
	return nil
}
