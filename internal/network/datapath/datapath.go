// Package datapath makes network/plan's values so in the kernel, and says where
// the kernel differs from them. It keeps nothing in memory: every call can be
// repeated, and after a crash anywhere the next call completes or removes what
// was begun.
//
// What it changes on the node, and nothing else:
//
//   - veth pairs, whose host ends begin with the instance's prefix hk<instance>,
//     and in mode bridge one bridge, hkbr<instance> if it isn't given a name;
//   - for pods with a bandwidth, queueing disciplines on the pair, and for what
//     they send an IFB hf<instance>…;
//   - in mode ptp, the first address of each pod subnet on lo, of a kind that
//     the kernel doesn't choose as a source by itself;
//   - routes of protocol 104: one or two per pod's address on its pair, one
//     unreachable per pod subnet with a metric that names the instance, and
//     for pods with hostPorts one local ::1 on their pair;
//   - one nftables table, inet husk-<instance>; see table.go for its rules;
//   - conntrack entries of pods that end and of UDP hostPorts that begin;
//   - the sysctls net.ipv4.ip_forward and net.ipv6.conf.all.forwarding, set to 1
//     if they aren't, and only then net.ipv6.conf.<link>.accept_ra to 2 where it
//     is 1, without which the node would lose the default route that its router
//     advertises. Their former values are the caller's to record and restore.
//
// The settings of a pair die with it: net.ipv4.conf.<pair>.forwarding is set
// whatever the default for new links is, and .route_localnet only on the pairs
// (or the bridge) of pods that have hostPorts, so that 127.0.0.1:hostPort
// works. The table drops what a pod sends to 127.0.0.0/8 itself.
//
// [::1]:hostPort works too, by a route that plan.loopbackRoute explains; but not
// in mode bridge while net.bridge.bridge-nf-call-ip6tables is on (br_netfilter):
// then the bridge translates the replies, and the IPv6 layer, which comes after
// it, drops every packet to ::1.
//
// No program is run.
package datapath

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/network/conntrack"
	"github.com/huskd/husk/internal/network/nlsock"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/pod"
)

// nodeConns is how many attachments can talk to the kernel at the same time.
// More would only wait for each other in it, on rtnl_mutex.
const nodeConns = 4

// Datapath acts in one node's network namespace. Its methods may be called
// concurrently, if no two are about the same sandbox.
type Datapath struct {
	netns     string
	instance  pod.Instance
	bridge    string
	deletion  groupAllocator
	conns     chan *nlsock.Conn
	reapConns chan *nlsock.Conn // for what waits for RCU grace periods
	flows     *nlsock.Conn
	handle    *netlink.Handle // for lists
	table     *table
}

// Open returns the datapath of an instance in the network namespace at path;
// an empty path is the namespace of the process. Its sockets, and what it does
// in /proc/sys, belong to that namespace, whichever thread calls. An empty
// bridge is the instance's own.
func Open(path string, instance pod.Instance, bridge string) (*Datapath, error) {
	tag, err := plan.Tag(instance)
	if err != nil {
		return nil, err
	}
	d := &Datapath{netns: path, instance: instance, bridge: plan.BridgeName(instance, bridge), deletion: groupAllocator{tag: tag}, conns: make(chan *nlsock.Conn, nodeConns), reapConns: make(chan *nlsock.Conn, reapers)}
	err = d.InNode(func() error {
		for _, pool := range []chan *nlsock.Conn{d.conns, d.reapConns} {
			for range cap(pool) {
				c, err := nlsock.Dial(unix.NETLINK_ROUTE)
				if err != nil {
					return err
				}
				pool <- c
			}
		}
		var err error
		if d.flows, err = nlsock.Dial(unix.NETLINK_NETFILTER); err != nil {
			return err
		}
		d.handle, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err == nil {
		d.table, err = openTable(d)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("network: %w", err), d.Close())
	}
	return d, nil
}

// Close closes the sockets. Nothing in the kernel changes.
func (d *Datapath) Close() error {
	var errs []error
	for _, pool := range []chan *nlsock.Conn{d.conns, d.reapConns} {
		for len(pool) > 0 {
			errs = append(errs, (<-pool).Close())
		}
	}
	if d.flows != nil {
		errs = append(errs, d.flows.Close())
	}
	if d.handle != nil {
		d.handle.Close()
	}
	if d.table != nil {
		errs = append(errs, d.table.close())
	}
	return errors.Join(errs...)
}

// InNode runs fn on a thread in the node's network namespace.
func (d *Datapath) InNode(fn func() error) error {
	if d.netns == "" {
		return fn()
	}
	return netns.Do(d.netns, fn)
}

// Forget has the node forget connections.
func (d *Datapath) Forget(f conntrack.Flows) error { return conntrack.Forget(d.flows, f) }

// withConn calls fn with a socket of the node.
func (d *Datapath) withConn(fn func(*nlsock.Conn) error) error {
	c := <-d.conns
	defer func() { d.conns <- c }()
	return fn(c)
}
