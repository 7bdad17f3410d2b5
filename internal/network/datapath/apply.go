package datapath

import (
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/crashpoint"
	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/network/nlsock"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/network/rtnetlink"
)

// Apply makes everything in the plan that doesn't exist yet.
func (d *Datapath) Apply(p plan.Plan) error {
	added := make(chan error, 1)
	go func() { // the elements don't depend on the links
		added <- d.table.add(p.Elements)
		crashpoint.Hit("network.elements")
	}()
	err := d.link(p)
	return errors.Join(err, <-added)
}

// link makes the plan's veth and the settings of its two ends.
func (d *Datapath) link(p plan.Plan) error {
	ns, err := unix.Open(p.Netns, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("network namespace %s: %w", p.Netns, err)
	}
	defer unix.Close(ns)
	inPod := dialAt(p.Netns) // runs on a new thread while this one makes the veth
	links, eth, err := d.ensureVeth(p, ns, inPod)
	pod, dialErr := inPod()
	if dialErr != nil {
		return dialErr
	}
	defer pod.Close()
	if err != nil {
		return err
	}
	crashpoint.Hit("network.link")
	err = d.withConn(func(c *nlsock.Conn) error {
		requests, names := sideRequests(links, p.Host)
		if p.Veth.Bridge != "" {
			requests, names = append(requests, hairpin(links[p.Veth.Host], p.Veth.Hairpin)), append(names, "hairpin mode of "+p.Veth.Host)
		}
		return firstError(c.Do(requests...), names, "the node")
	})
	if err != nil {
		return err
	}
	crashpoint.Hit("network.host")
	if p.Bandwidth != (plan.Bandwidth{}) {
		if err := setBandwidth(d.handle, p.Bandwidth); err != nil {
			return err
		}
		crashpoint.Hit("network.bandwidth")
	}
	if p.Veth.Bridge != "" {
		if err := ignoreRouters(p); err != nil {
			return err
		}
	}
	err = podSide(pod, eth, p)
	crashpoint.Hit("network.pod")
	if err != nil {
		return err
	}
	return d.withConn(func(c *nlsock.Conn) error { return waitForCarrier(c, p.Veth) })
}

// waitForCarrier returns when the veth forwards packets to the pod. The host's end, and then the
// bridge, notice the carrier a moment later, in a kernel worker, and drop outgoing packets until
// then. The kernel completes that before it answers a request for the link (since Linux 6.8, "net:
// core: synchronize link-watch when carrier is queried").
func waitForCarrier(c *nlsock.Conn, p plan.Veth) error {
	links := []*nl.NetlinkRequest{rtnetlink.GetLink(p.Host, 0)}
	if p.Bridge != "" {
		links = append(links, rtnetlink.GetLink(p.Bridge, 0))
	}
	for _, a := range c.Do(links...) {
		if a.Err != nil {
			return fmt.Errorf("link %s: %w", p.Host, a.Err)
		}
	}
	return nil
}

// ignoreRouters keeps a pod from taking routes from other pods on its bridge. It has all routes
// that it needs. In mode ptp only the node could send it any.
func ignoreRouters(p plan.Plan) error {
	eth := p.Veth.Pod
	return netns.Do(p.Netns, func() error {
		for _, name := range []string{
			"net/ipv6/conf/" + eth + "/accept_ra", "net/ipv6/conf/" + eth + "/accept_redirects",
			"net/ipv4/conf/" + eth + "/accept_redirects", "net/ipv4/conf/all/accept_redirects",
		} {
			if err := setSysctl(name, "0"); err != nil {
				return err
			}
		}
		return nil
	})
}

// podSide makes the settings of the pod's end, over a socket in its namespace.
func podSide(c *nlsock.Conn, eth int, p plan.Plan) error {
	requests, names := sideRequests(map[string]int{p.Veth.Pod: eth}, p.Pod)
	// Two messages: in a single one, the kernel would set the link up first, which gives it an
	// address.
	requests = append([]*nl.NetlinkRequest{rtnetlink.SetLink(rtnetlink.LinkChange{Index: eth, NoAutoAddress: true}), rtnetlink.SetLink(rtnetlink.LinkChange{Index: eth, Up: true})}, requests...)
	names = append([]string{"settings of " + p.Veth.Pod, "set " + p.Veth.Pod + " up"}, names...)
	// In mode ptp, the node is the only neighbour, and permanent.
	if p.Veth.Bridge == "" && slices.ContainsFunc(p.Pod.Neighbours, func(n plan.Neighbour) bool { return n.Addr.Is6() }) {
		requests, names = append(requests, rtnetlink.NoDiscovery(eth)), append(names, "neighbour discovery of "+p.Veth.Pod)
	}
	return firstError(c.Do(requests...), names, p.Netns)
}

// dialAt opens a socket in the network namespace at path, in the background. The returned function
// waits for it, and may be called more than once.
func dialAt(path string) func() (*nlsock.Conn, error) {
	var c *nlsock.Conn
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = netns.Do(path, func() error {
			var err error
			c, err = nlsock.Dial(unix.NETLINK_ROUTE)
			return err
		})
	}()
	return func() (*nlsock.Conn, error) {
		<-done
		return c, err
	}
}

// sideRequests returns the requests that make s, and their names for errors. Requests without a
// name may fail. links has the links' indexes by name.
func sideRequests(links map[string]int, s plan.Side) (requests []*nl.NetlinkRequest, names []string) {
	for _, a := range s.Addresses {
		requests, names = append(requests, rtnetlink.Address(unix.RTM_NEWADDR, links[a.Link], a)), append(names, a.String())
	}
	for _, n := range s.Neighbours {
		requests, names = append(requests, rtnetlink.Neighbour(unix.RTM_NEWNEIGH, links[n.Link], n)), append(names, n.String())
	}
	for _, r := range s.Routes {
		name := r.String()
		if r.Preferred {
			name = "" // fails if the node has lost the address
		}
		requests, names = append(requests, rtnetlink.Route(unix.RTM_NEWROUTE, links[r.Link], r)), append(names, name)
	}
	return requests, names
}

// firstError returns the first error of the answers, with its object's name. EEXIST isn't an error.
func firstError(answers []nlsock.Answer, names []string, ns string) error {
	for i, a := range answers {
		if a.Err == nil || names[i] == "" || errors.Is(a.Err, unix.EEXIST) {
			continue
		}
		if errors.Is(a.Err, unix.EACCES) || errors.Is(a.Err, unix.EPERM) {
			return fmt.Errorf("%s in %s: %w: is IPv6 disabled there (net.ipv6.conf.all.disable_ipv6)?", names[i], ns, a.Err)
		}
		return fmt.Errorf("%s: %w", names[i], a.Err)
	}
	return nil
}

// ensureVeth makes the veth, or uses the existing one if it is the plan's. It returns the indexes
// of the node's links in the plan, and that of the pod's end.
func (d *Datapath) ensureVeth(p plan.Plan, ns int, inPod func() (*nlsock.Conn, error)) (links map[string]int, eth int, err error) {
	links = map[string]int{}
	err = d.withConn(func(c *nlsock.Conn) error {
		if p.Veth.Bridge != "" {
			bridge, err := rtnetlink.LinkByName(c, p.Veth.Bridge)
			if err != nil {
				return err
			}
			links[p.Veth.Bridge] = bridge.Index
		}
		for range 2 {
			host, err := d.tryVeth(c, p.Veth, links[p.Veth.Bridge], ns, inPod)
			if errors.Is(err, errStaleLink) {
				continue // it has been deleted
			}
			links[p.Veth.Host], eth = host.Index, host.Peer
			return wrapLink(err, p)
		}
		return wrapLink(errStaleLink, p)
	})
	return links, eth, err
}

func wrapLink(err error, p plan.Plan) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("link %s with %s in %s: %w", p.Veth.Host, p.Veth.Pod, p.Netns, err)
}

var errStaleLink = errors.New("another link has this name")

// tryVeth is one attempt of ensureVeth. It returns the host's end.
func (d *Datapath) tryVeth(c *nlsock.Conn, p plan.Veth, bridge, ns int, inPod func() (*nlsock.Conn, error)) (rtnetlink.Link, error) {
	answers := c.Do(
		newVeth(p, bridge, ns),
		rtnetlink.GetLink(p.Host, 0),
		rtnetlink.SetLink(rtnetlink.LinkChange{Name: p.Host, Up: true, Alias: p.Alias, Master: bridge, NoAutoAddress: true, Forwarding: true, RouteLocalnet: p.RouteLocalnet}))
	made, got, set := answers[0].Err, answers[1], answers[2].Err
	if made != nil && !errors.Is(made, unix.EEXIST) {
		return rtnetlink.Link{}, made
	}
	if made != nil && errors.Is(got.Err, unix.ENODEV) {
		return rtnetlink.Link{}, errdefs.ErrAlreadyExists.WithMessage("the namespace has a link " + p.Pod + " of its own: remove it or use another name")
	}
	if err := errors.Join(set, got.Err); err != nil {
		return rtnetlink.Link{}, err
	}
	host, err := rtnetlink.ParseLink(got.Data)
	if err != nil || made == nil {
		return host, err
	}
	pod, err := inPod()
	if err != nil {
		return rtnetlink.Link{}, err
	}
	peer, err := rtnetlink.LinkByName(pod, p.Pod)
	if err == nil && peer.Index == host.Peer && peer.MAC == p.PodMAC && host.MAC == p.HostMAC && !d.deletion.has(host) {
		return host, setMTU(linkAt{c, host}, linkAt{pod, peer}, p.MTU)
	}
	// By its name it is ours, but it belongs to another namespace, or is being deleted.
	if err := c.Do(rtnetlink.DeleteLinks(p.Host, 0))[0].Err; err != nil && !errors.Is(err, unix.ENODEV) {
		return rtnetlink.Link{}, err
	}
	return rtnetlink.Link{}, errStaleLink
}

// linkAt is a link and a socket in its namespace.
type linkAt struct {
	conn *nlsock.Conn
	link rtnetlink.Link
}

// setMTU sets the MTU of the two ends of a veth. An end drops packets that are longer than its MTU,
// so the one that sends most of what is too long for the path, the pod's, is lowered first and
// raised last.
func setMTU(host, pod linkAt, mtu int) error {
	ends := []linkAt{pod, host}
	if mtu > pod.link.MTU {
		ends = []linkAt{host, pod}
	}
	for _, end := range ends {
		if end.link.MTU == mtu {
			continue
		}
		if err := end.conn.Do(rtnetlink.SetLink(rtnetlink.LinkChange{Index: end.link.Index, MTU: mtu}))[0].Err; err != nil {
			return fmt.Errorf("set MTU %d: %w", mtu, err)
		}
	}
	return nil
}

// Cut ends the pod's traffic at once: it removes its hostPorts and sets its link down. It marks the
// link for deletion by Reap. It isn't an error if nothing of the plan exists.
func (d *Datapath) Cut(p plan.Plan) error {
	removed := make(chan error, 1)
	go func() {
		removed <- d.table.remove(p.Elements)
		crashpoint.Hit("network.cut.elements")
	}()
	err := d.withConn(func(c *nlsock.Conn) error {
		group := d.deletion.next()
		requests := []*nl.NetlinkRequest{rtnetlink.SetLink(rtnetlink.LinkChange{Name: p.Veth.Host, Down: true, Group: group})}
		if p.Bandwidth.IFB != "" {
			requests = append(requests, rtnetlink.SetLink(rtnetlink.LinkChange{Name: p.Bandwidth.IFB, Down: true, Group: group}))
		}
		if p.Veth.Bridge != "" {
			if bridge, err := rtnetlink.LinkByName(c, p.Veth.Bridge); err == nil {
				for _, n := range p.Host.Neighbours {
					requests = append(requests, rtnetlink.Neighbour(unix.RTM_DELNEIGH, bridge.Index, n))
				}
			}
		}
		for _, a := range c.Do(requests...) {
			if a.Err != nil && !errors.Is(a.Err, unix.ENODEV) && !errors.Is(a.Err, unix.ENOENT) {
				return fmt.Errorf("link %s: set it down: %w", p.Veth.Host, a.Err)
			}
		}
		return nil
	})
	crashpoint.Hit("network.cut.link")
	return errors.Join(err, <-removed)
}

// RollBack removes what Apply made of a plan, and returns when the link is gone.
func (d *Datapath) RollBack(p plan.Plan) error { return errors.Join(d.Cut(p), d.Reap()) }
