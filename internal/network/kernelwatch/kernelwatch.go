// Package kernelwatch reports when others have removed or changed objects of the node's own pod
// network in the kernel. It changes nothing.
//
// The kernel announces changes that Husk makes too. So a report says what to compare, not what is
// wrong.
package kernelwatch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/network/nlsock"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/network/rtnetlink"
	"github.com/huskd/husk/internal/pod"
)

// Changes are what others may have removed or changed.
type Changes struct {
	All    bool // announcements were lost: anything
	Base   bool // addresses, links or routes that belong to no single pod
	Table  bool // the nftables table, or something in it
	Uplink bool // a default route, or the MTU of a link that isn't a pod's
	// Links are the names of pods' links.
	Links map[string]bool
	// Addresses are destinations of removed routes, and addresses that the node has been given.
	Addresses map[netip.Addr]bool
	// Neighbours are entries without their MACs.
	Neighbours map[plan.Neighbour]bool
}

// Add adds other changes.
func (c *Changes) Add(o Changes) {
	c.All, c.Base, c.Table, c.Uplink = c.All || o.All, c.Base || o.Base, c.Table || o.Table, c.Uplink || o.Uplink
	c.Links = union(c.Links, o.Links)
	c.Addresses = union(c.Addresses, o.Addresses)
	c.Neighbours = union(c.Neighbours, o.Neighbours)
}

func union[K comparable](a, b map[K]bool) map[K]bool {
	if len(a) == 0 {
		return b
	}
	maps.Copy(a, b)
	return a
}

// Empty reports whether there are no changes.
func (c *Changes) Empty() bool {
	return !c.All && !c.Base && !c.Table && !c.Uplink && len(c.Links)+len(c.Addresses)+len(c.Neighbours) == 0
}

func note[K comparable](m *map[K]bool, key K) {
	if *m == nil {
		*m = map[K]bool{}
	}
	(*m)[key] = true
}

// Config says what to watch.
type Config struct {
	Netns    string // path of the node's network namespace; empty is the process's
	Instance pod.Instance
	// Bridge is the name of the link whose ports the pods' links are, if there is one.
	Bridge string
	// OwnTable is the number, see nlsock.PortID, of a socket whose changes of the table aren't
	// reported.
	OwnTable uint32
}

// Watch calls changed for all changes that the kernel announces, until ctx ends. It begins with
// All, as it can't know what happened before. The calls may be concurrent.
func Watch(ctx context.Context, cfg Config, changed func(Changes)) error {
	w := &watcher{cfg: cfg, links: map[int]rtnetlink.Link{}}
	t := &tableWatcher{own: cfg.OwnTable, table: cfg.Instance.Table(), messages: deletions}
	var links, table *os.File
	err := inNode(cfg.Netns, func() (err error) {
		links, err = nlsock.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_TC,
			unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
		if err != nil {
			return err
		}
		if err = w.list(); err == nil {
			table, err = nlsock.Subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
		}
		if err != nil {
			err = errors.Join(err, links.Close())
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("watch the node's network: %w", err)
	}
	changed(Changes{All: true})
	reading, ctx := errgroup.WithContext(ctx)
	reading.Go(func() error { return follow(ctx, links, w.read, Changes{All: true}, changed) })
	reading.Go(func() error { return follow(ctx, table, t.read, Changes{Table: true}, changed) })
	return reading.Wait()
}

// WatchTable calls changed whenever others have changed something in an nftables table of the inet
// family in the network namespace at path, until ctx ends. Others are all but the socket with the
// number own, see nlsock.PortID.
func WatchTable(ctx context.Context, path, table string, own uint32, changed func()) error {
	var socket *os.File
	err := inNode(path, func() (err error) {
		socket, err = nlsock.Subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
		return err
	})
	if err != nil {
		return fmt.Errorf("watch nftables table inet %s: %w", table, err)
	}
	t := &tableWatcher{own: own, table: table, messages: alterations}
	return follow(ctx, socket, t.read, Changes{Table: true}, func(Changes) { changed() })
}

func inNode(path string, fn func() error) error {
	if path == "" {
		return fn()
	}
	return netns.Do(path, fn)
}

// follow reads announcements from a socket, which it closes, until ctx ends. lost are the changes
// to report if some were lost.
func follow(ctx context.Context, socket *os.File, read func(*Changes, unix.NlMsghdr, []byte), lost Changes, changed func(Changes)) error {
	defer socket.Close()
	defer context.AfterFunc(ctx, func() { _ = socket.SetReadDeadline(time.Now()) })()
	for buf := make([]byte, 64<<10); ; {
		k, err := socket.Read(buf)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			changed(lost)
			continue
		case err != nil:
			return fmt.Errorf("watch the node's network: %w", err)
		}
		var c Changes
		_ = nlsock.Messages(buf[:k], func(h unix.NlMsghdr, data []byte) { read(&c, h, data) })
		if !c.Empty() {
			changed(c)
		}
	}
}

// watcher reads announcements of links, addresses, neighbours, routes and queueing disciplines.
type watcher struct {
	cfg   Config
	links map[int]rtnetlink.Link // all links of the node by index, as last announced
}

// list reads the links that there are.
func (w *watcher) list() error {
	c, err := nlsock.Dial(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer c.Close()
	links, err := rtnetlink.Links(c)
	for _, l := range links {
		w.links[l.Index] = l
	}
	return err
}

// pods reports whether a link is a pod's.
func (w *watcher) pods(name string) bool {
	return strings.HasPrefix(name, w.cfg.Instance.HostLinkPrefix()) || strings.HasPrefix(name, plan.IFBPrefix(w.cfg.Instance))
}

// base reports whether a link has addresses of the network's base.
func (w *watcher) base(name string) bool { return name == "lo" || name != "" && name == w.cfg.Bridge }

func (w *watcher) read(c *Changes, h unix.NlMsghdr, data []byte) {
	switch h.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		l, err := rtnetlink.ParseLink(data)
		if err == nil && data[0] != unix.AF_BRIDGE { // about a port
			w.link(c, l, h.Type == unix.RTM_DELLINK)
		}
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		a, ok := rtnetlink.ParseAddress(data)
		switch {
		case !ok:
		case h.Type == unix.RTM_NEWADDR: // routes that have it as their source may be possible again
			note(&c.Addresses, a.Prefix.Addr())
		case w.base(w.links[a.Link].Name):
			c.Base = true
		}
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		r, ok := rtnetlink.ParseRoute(data)
		switch {
		case !ok:
		case r.Dst.Bits() == 0:
			c.Uplink = true
		case h.Type == unix.RTM_DELROUTE && r.Protocol == plan.Protocol:
			w.route(c, r)
		}
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		n, ok := rtnetlink.ParseNeighbour(data)
		link := w.links[n.Link].Name
		// An entry that is in use becomes one that has failed, and stays.
		if ok && (h.Type == unix.RTM_DELNEIGH || n.State&netlink.NUD_PERMANENT == 0) && (w.pods(link) || link == w.cfg.Bridge) {
			note(&c.Neighbours, plan.Neighbour{Link: link, Addr: n.Addr})
		}
	case unix.RTM_DELQDISC, unix.RTM_DELTFILTER:
		if l, err := rtnetlink.ParseLink(data); err == nil && w.pods(w.links[l.Index].Name) { // struct tcmsg has the index at the same place
			note(&c.Links, w.links[l.Index].Name)
		}
	}
}

// link compares a link with what it was.
func (w *watcher) link(c *Changes, l rtnetlink.Link, gone bool) {
	was, known := w.links[l.Index]
	if w.links[l.Index] = l; gone {
		delete(w.links, l.Index)
	}
	if !known {
		was = l
	}
	differs := gone || was.Up && !l.Up || was.MTU != l.MTU || was.MAC != l.MAC || was.Master != l.Master || was.Name != l.Name
	switch {
	case !differs:
	case w.pods(was.Name):
		note(&c.Links, was.Name)
	case was.Name != "" && was.Name == w.cfg.Bridge:
		c.All = true // each port is gone too
	default:
		c.Uplink = c.Uplink || was.MTU != l.MTU
	}
}

func (w *watcher) route(c *Changes, r rtnetlink.KernelRoute) {
	if r.Kind == plan.Unreachable {
		c.Base = true
		return
	}
	note(&c.Addresses, r.Dst.Addr())
	for _, hop := range r.Hops {
		switch name := w.links[hop.Link].Name; {
		case w.pods(name) && r.Kind == plan.Local:
			note(&c.Links, name)
		case w.base(name):
			c.Base = true
		}
	}
}

// tableWatcher reads announcements of nftables.
type tableWatcher struct {
	own      uint32
	table    string
	messages map[uint16]bool // that matter
}

// deletions are the messages about what is removed, and alterations those about any change. The
// name of the table is attribute 1 of each.
var deletions = map[uint16]bool{
	unix.NFT_MSG_DELTABLE: true, unix.NFT_MSG_DELCHAIN: true, unix.NFT_MSG_DELRULE: true,
	unix.NFT_MSG_DELSET: true, unix.NFT_MSG_DELSETELEM: true,
}

var alterations = map[uint16]bool{
	unix.NFT_MSG_NEWTABLE: true, unix.NFT_MSG_NEWCHAIN: true, unix.NFT_MSG_NEWRULE: true,
	unix.NFT_MSG_NEWSET: true, unix.NFT_MSG_NEWSETELEM: true,
	unix.NFT_MSG_DELTABLE: true, unix.NFT_MSG_DELCHAIN: true, unix.NFT_MSG_DELRULE: true,
	unix.NFT_MSG_DELSET: true, unix.NFT_MSG_DELSETELEM: true,
}

func (t *tableWatcher) read(c *Changes, h unix.NlMsghdr, data []byte) {
	const header = 4 // struct nfgenmsg
	if h.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || !t.messages[h.Type&0xff] || h.Pid == t.own || len(data) < header || data[0] != unix.NFPROTO_INET {
		return
	}
	for typ, value := range nlsock.Attributes(data[header:]) {
		if typ == unix.NFTA_TABLE_NAME {
			c.Table = c.Table || unix.ByteSliceToString(value) == t.table
			return
		}
	}
}
