// Package datapath applies network/plan's plans to the kernel, and reports where the kernel differs
// from them. It keeps no state in memory: every call can be repeated, and after a crash anywhere
// the next call completes or removes what was begun.
//
// It changes the following on the node, and nothing else:
//
//   - veth pairs, whose host ends have the instance's prefix hk<instance>, and in mode bridge one
//     bridge, by default hkbr<instance>;
//   - for pods with a bandwidth, queueing disciplines on the veth, and an IFB hf<instance>… for
//     packets from the pod;
//   - in mode ptp, the first address of each pod subnet on lo, in a form that the kernel doesn't
//     choose as a source by itself;
//   - routes of protocol 104: one or two per pod address on the pod's veth, one unreachable route
//     per pod subnet of the node and of its cluster, with a metric that identifies the instance, and
//     one local ::1 on the veths of pods with hostPorts;
//   - one nftables table, inet husk-<instance>; see rules.go for its rules;
//   - conntrack entries of pods that end and of new UDP hostPorts;
//   - the sysctls net.ipv4.ip_forward and net.ipv6.conf.all.forwarding, which it sets to 1. Where
//     it has to, it first sets net.ipv6.conf.<link>.accept_ra from 1 to 2, as the node would lose
//     the default route that its router advertises. The caller records and restores the former
//     values.
//
// The settings of a veth disappear with it: net.ipv4.conf.<veth>.forwarding is set whatever the
// default for new links is. route_localnet, for 127.0.0.1:hostPort, is set only on the veths (or
// the bridge) of pods with hostPorts. The table drops packets from pods to 127.0.0.0/8.
//
// [::1]:hostPort works by a route, see plan.loopbackRoute. In mode bridge it doesn't work while
// net.bridge.bridge-nf-call-ip6tables is on (br_netfilter): the bridge then translates the replies,
// and the IPv6 layer, which sees them later, drops every packet to ::1.
//
// No program is run.
package datapath

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/network/conntrack"
	"github.com/huskd/husk/internal/network/kernelwatch"
	"github.com/huskd/husk/internal/network/nlsock"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/pod"
)

// nodeConns is how many attachments can talk to the kernel at the same time. More would only wait
// in the kernel, for rtnl_mutex.
const nodeConns = 4

// Datapath acts in one node's network namespace. Its methods may be called concurrently, but not
// for the same sandbox.
type Datapath struct {
	netns     string
	instance  pod.Instance
	bridge    string
	deletion  groupAllocator
	conns     chan *nlsock.Conn
	reapConns chan *nlsock.Conn // for deletions, which wait for RCU grace periods
	flows     *nlsock.Conn
	handle    *netlink.Handle // for lists
	table     *table
}

// Open returns the datapath of an instance in the network namespace at path; an empty path means
// the process's namespace. Its sockets and sysctls belong to that namespace, whichever thread
// calls. An empty bridge is the instance's default.
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

// Watch reports what others may have changed on the node, see kernelwatch.Watch.
func (d *Datapath) Watch(ctx context.Context, changed func(kernelwatch.Changes)) error {
	own, err := d.table.changes.PortID()
	if err != nil {
		return err
	}
	return kernelwatch.Watch(ctx, kernelwatch.Config{Netns: d.netns, Instance: d.instance, Bridge: d.bridge, OwnTable: own}, changed)
}

// Forget deletes conntrack entries of the node.
func (d *Datapath) Forget(f conntrack.Flows) error { return conntrack.Forget(d.flows, f) }

// withConn calls fn with a socket of the node.
func (d *Datapath) withConn(fn func(*nlsock.Conn) error) error {
	c := <-d.conns
	defer func() { d.conns <- c }()
	return fn(c)
}
