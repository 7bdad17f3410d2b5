package network

import (
	"net/netip"

	"github.com/huskd/husk/internal/network/connlimit"
	"github.com/huskd/husk/internal/network/conntrack"
	"github.com/huskd/husk/internal/network/datapath"
	"github.com/huskd/husk/internal/network/ipam"
)

// openLimit opens what limits the connections of pods.
func openLimit(n *Network) (err error) {
	n.limit, err = connlimit.Open(connlimit.Config{
		Netns: n.cfg.Netns, Instance: n.cfg.Instance, Cluster: n.base.Cluster, Log: n.log, Refused: n.cfg.Refused,
		Own: func() []netip.Prefix { return n.share.Load().Blocks },
		Pods: func() map[netip.Addr]string {
			out := map[netip.Addr]string{}
			for _, r := range n.ledger.all() {
				if n.ledger.state(r) != ipam.Bound {
					continue
				}
				for _, a := range r.addrs() {
					out[a] = r.Attachment.Pod.String()
				}
			}
			return out
		},
	})
	return err
}

// Connections say how full the node's connection tracking table is, and which pods hold too much.
type Connections = connlimit.Usage

// Connections returns them.
func (n *Network) Connections() (Connections, error) { return n.limit.Usage() }

// setTimeouts makes the node forget idle TCP connections as a node with kube-proxy does. The kernel
// has these sysctls once the network's table exists. Pods work without.
func setTimeouts(n *Network) {
	var changes []datapath.Sysctl
	err := n.dp.InNode(func() error {
		timeouts, err := conntrack.Timeouts()
		for _, t := range timeouts {
			changes = append(changes, datapath.Sysctl(t))
		}
		return err
	})
	if err == nil {
		err = changeSysctls(n, changes)
	}
	if err != nil {
		n.log.Warn("network: idle connections are remembered for as long as before", "error", err)
	}
}
