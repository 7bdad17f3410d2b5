package overlay

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/nlsock"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/network/rtnetlink"
)

// observe returns our objects in the kernel, apart from those on unusable links, and names the
// routes of others to the destinations of want.
func (o *Overlay) observe(links []backend.Link, unusable map[string]bool, want objects) (have objects, notes []string, err error) {
	have = newObjects(len(want.routes))
	for _, l := range links {
		index, ok := o.links[l.Name]
		if !ok || unusable[l.Name] {
			continue // it is missing or somebody else's
		}
		switch l.Way {
		case backend.VXLAN:
			err = errors.Join(o.kernel.observeNeighbours(l.Name, index, have), o.kernel.observeForwards(l.Name, index, have))
		case backend.WireGuard:
			err = o.devices.observe(l.Name, have)
		}
		if err != nil {
			return have, nil, err
		}
	}
	names := make(map[int]string, len(o.links))
	for name, index := range o.links {
		names[index] = name
	}
	families := []int{unix.AF_INET}
	if rtnetlink.KernelHasIPv6() {
		families = append(families, unix.AF_INET6)
	}
	for _, family := range families {
		more, err := o.kernel.observeRoutes(family, names, have, want)
		if err != nil {
			return have, nil, err
		}
		notes = append(notes, more...)
	}
	slices.Sort(notes)
	return have, notes, nil
}

func (k *kernel) observeNeighbours(link string, index int, have objects) error {
	req := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, 0)
	req.AddData(&netlink.Ndmsg{Family: unix.AF_UNSPEC})
	req.AddData(nl.NewRtAttr(netlink.NDA_IFINDEX, nl.Uint32Attr(uint32(index))))
	_, err := nlsock.List(k.conn, req, func(data []byte) (none struct{}, ok bool) {
		if n, ok := rtnetlink.ParseNeighbour(data); ok && n.Link == index && n.State&netlink.NUD_PERMANENT != 0 {
			have.neighbours[neighbourKey{link, n.Addr}] = n.MAC
		}
		return none, false
	})
	if err != nil {
		return fmt.Errorf("list neighbours: %w", err)
	}
	return nil
}

func (k *kernel) observeForwards(link string, index int, have objects) error {
	req := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, 0)
	req.AddData(&netlink.Ndmsg{Family: unix.AF_BRIDGE, Index: uint32(index)})
	_, err := nlsock.List(k.conn, req, func(data []byte) (none struct{}, ok bool) {
		if n, ok := rtnetlink.ParseNeighbour(data); ok && n.Link == index {
			have.forwards[forwardKey{link, n.MAC}] = n.Addr
		}
		return none, false
	})
	if err != nil {
		return fmt.Errorf("list forwarding entries: %w", err)
	}
	return nil
}

// observeRoutes adds our routes of a family, and names those of others to the destinations of want.
func (k *kernel) observeRoutes(family int, names map[int]string, have, want objects) (notes []string, err error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETROUTE, 0)
	req.AddData(&nl.RtMsg{RtMsg: unix.RtMsg{Family: uint8(family), Table: unix.RT_TABLE_MAIN}})
	_, err = nlsock.List(k.conn, req, func(data []byte) (none struct{}, ok bool) {
		r, ok := rtnetlink.ParseRoute(data)
		if !ok || r.Table != unix.RT_TABLE_MAIN {
			return none, false
		}
		if k.oursRoute(r) {
			key, value := fromKernel(r, names)
			have.routes[key] = value
		} else if _, wanted := want.routes[routeKey{r.Dst, int(k.tag)}]; wanted && r.Protocol != plan.Protocol {
			notes = append(notes, noteOf(r, names, r.Metric < int(k.tag)))
		}
		return none, false
	})
	if err != nil && !errors.Is(err, unix.ENOENT) { // ENOENT: the table has no route yet
		return nil, fmt.Errorf("list routes: %w", err)
	}
	return notes, nil
}

// oursRoute reports whether a route is one to another node's pods.
func (k *kernel) oursRoute(r rtnetlink.KernelRoute) bool {
	return r.Protocol == plan.Protocol && r.Kind == plan.Unicast && r.Metric == int(k.tag) && r.Table == unix.RT_TABLE_MAIN
}

func fromKernel(r rtnetlink.KernelRoute, names map[int]string) (routeKey, route) {
	value := route{source: r.Source, mtu: r.MTU}
	for _, h := range r.Hops {
		value.hops = append(value.hops, hop{names[h.Link], h.Via})
	}
	slices.SortFunc(value.hops, compareHops)
	return routeKey{r.Dst, r.Metric}, value
}

func noteOf(r rtnetlink.KernelRoute, names map[int]string, preferred bool) string {
	key, value := fromKernel(r, names)
	note := fmt.Sprintf("%s of protocol %d and metric %d isn't Husk's", describeRoute(key, value), r.Protocol, r.Metric)
	if preferred {
		note += ", and the kernel prefers it to Husk's: remove it"
	}
	return note
}
