package datapath

import (
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/nlsock"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/network/rtnetlink"
)

// Ensure makes the node's part of the network agree with b, except for the sysctls. Elements of
// pods stay as they are.
func (d *Datapath) Ensure(b plan.Base) error {
	if err := d.table.ensure(b.Table); err != nil {
		return err
	}
	return d.withConn(func(c *nlsock.Conn) error {
		lo, err := rtnetlink.LinkByName(c, "lo")
		if err != nil {
			return err
		}
		links := map[string]int{lo.Name: lo.Index}
		if b.Link != nil {
			bridge, err := makeBridge(c, *b.Link)
			if err != nil {
				return err
			}
			links[b.Link.Name] = bridge
		}
		requests, names := sideRequests(links, b.Host)
		return firstError(c.Do(requests...), names, "the node")
	})
}

// CheckOwner returns an error if the table exists and has another owner, see plan.Table.
func (d *Datapath) CheckOwner(owner string) error {
	d.table.mu.Lock()
	defer d.table.mu.Unlock()
	return d.table.checkOwner(owner)
}

// TableExists reports whether the nftables table exists. Other programs may remove it with all
// others: `nft flush ruleset`.
func (d *Datapath) TableExists() bool { return d.table.exists() }

// BaseMissing reports whether an error of Apply means that the table or the bridge is missing.
func BaseMissing(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) }

// RepairBase makes the node's part again after another program removed some of it, and adds the
// elements of the pods.
func (d *Datapath) RepairBase(b plan.Base, elements []plan.Element) error {
	if err := d.Ensure(b); err != nil {
		return err
	}
	return d.table.add(append(b.Table.Nodes.Elements(), elements...))
}

// makeBridge makes the bridge and returns its index.
func makeBridge(c *nlsock.Conn, b plan.BridgeLink) (int, error) {
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK|unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(b.Name)))
	req.AddData(nl.NewRtAttr(unix.IFLA_ADDRESS, b.MAC[:]))
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, []byte("bridge"))
	req.AddData(info)
	answers := c.Do(req, rtnetlink.GetLink(b.Name, 0))
	if err := answers[0].Err; err != nil && !errors.Is(err, unix.EEXIST) {
		return 0, fmt.Errorf("bridge %s: %w", b.Name, err)
	}
	link, err := rtnetlink.ParseLink(answers[1].Data)
	if err = errors.Join(answers[1].Err, err); err != nil {
		return 0, fmt.Errorf("bridge %s: %w", b.Name, err)
	}
	if link.MAC != b.MAC {
		return 0, errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("link %s exists and doesn't belong to this network: delete it or use another name", b.Name))
	}
	change := rtnetlink.LinkChange{Name: b.Name, Up: true, NoAutoAddress: true, Forwarding: true, RouteLocalnet: true}
	if err := c.Do(rtnetlink.SetLink(change))[0].Err; err != nil {
		return 0, fmt.Errorf("bridge %s: %w", b.Name, err)
	}
	return link.Index, nil
}

// Teardown removes what Ensure has made for any configuration of the instance.
func (d *Datapath) Teardown() error {
	errs := []error{d.table.drop()}
	routes, err := listRoutes(d.handle)
	errs = append(errs, err)
	for _, r := range routes {
		p := toPlan(r, "")
		if _, ok := ours(d.deletion.tag, p); ok {
			errs = append(errs, d.removeSubnet(p, nil))
		}
	}
	errs = append(errs, d.removeResolvers(nil), d.markBridgeForDeletion(), d.Reap())
	return errors.Join(errs...)
}

// markBridgeForDeletion lets the next Reap delete the bridge, if Husk made it.
func (d *Datapath) markBridgeForDeletion() error {
	var bridge rtnetlink.Link
	err := d.withConn(func(c *nlsock.Conn) (err error) {
		bridge, err = rtnetlink.LinkByName(c, d.bridge)
		return err
	})
	if errors.Is(err, unix.ENODEV) || err == nil && bridge.MAC != plan.BridgeMAC(d.instance) {
		return nil
	}
	return errors.Join(err, d.markForDeletion(d.bridge))
}

// ours reports whether a route is a subnet's, of the instance with that tag, and its rank.
func ours(tag uint32, r plan.Route) (rank plan.Rank, ok bool) {
	rank, ok = plan.RankOf(tag, r.Metric)
	return rank, ok && r.Kind == plan.Unreachable
}

// SweepBase removes the routes of subnets that aren't part of b, with their addresses, and the
// addresses of name servers that aren't.
func (d *Datapath) SweepBase(b plan.Base) error {
	routes, err := listRoutes(d.handle)
	errs := []error{err}
	for _, r := range routes {
		p := toPlan(r, "")
		if _, ok := ours(d.deletion.tag, p); ok && !slices.Contains(b.Host.Routes, p) {
			errs = append(errs, d.removeSubnet(p, b.Host.Addresses))
		}
	}
	return errors.Join(append(errs, d.removeResolvers(b.Host.Addresses))...)
}

// removeSubnet deletes the route of a subnet, and its address on lo unless that is to be kept. The
// route goes last, as it identifies the address as ours.
func (d *Datapath) removeSubnet(r plan.Route, keep []plan.Address) error {
	rank, _ := ours(d.deletion.tag, r)
	if address := plan.LoopbackAddress(r.Dst); rank != plan.Remainder && !slices.Contains(keep, address) {
		if err := d.remove(address, loopback); err != nil {
			return err
		}
	}
	return d.remove(r, 0)
}

// removeResolvers deletes the addresses of the instance's name server, except for those to keep.
func (d *Datapath) removeResolvers(keep []plan.Address) error {
	var errs []error
	for _, a := range plan.Resolvers(d.instance) {
		if address := plan.ResolverAddress(a); !slices.Contains(keep, address) {
			errs = append(errs, d.remove(address, loopback))
		}
	}
	return errors.Join(errs...)
}

// loopback is the index of lo in every namespace: LOOPBACK_IFINDEX of the kernel.
const loopback = 1

// remove deletes a route, neighbour or address of the node. It isn't an error if it is gone, or is
// of IPv6 and the kernel has none.
func (d *Datapath) remove(object any, index int) error {
	var req *nl.NetlinkRequest
	switch o := object.(type) {
	case plan.Route:
		req = rtnetlink.Route(unix.RTM_DELROUTE, index, o)
	case plan.Neighbour:
		req = rtnetlink.Neighbour(unix.RTM_DELNEIGH, index, o)
	case plan.Address:
		req = rtnetlink.Address(unix.RTM_DELADDR, index, o)
	}
	return d.withConn(func(c *nlsock.Conn) error {
		err := c.Do(req)[0].Err
		if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EOPNOTSUPP) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("delete %v: %w", object, err)
		}
		return nil
	})
}
