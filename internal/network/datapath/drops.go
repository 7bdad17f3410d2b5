package datapath

import (
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Drop is a reason for which the table drops packets, and the name of its counter there.
type Drop string

// The reasons that are counted.
const (
	// Spoofed packets have the source of a pod, and come from elsewhere.
	Spoofed Drop = "spoofed"
	// PodToNode packets are for ports by which nodes talk to each other, and come from pods or were
	// led there by a Service.
	PodToNode Drop = "pod-to-node"
	// NoNode packets are for such a port of this node, and come from an address of no node.
	NoNode Drop = "no-node"
)

// Drops are all of them.
var Drops = []Drop{Spoofed, PodToNode, NoNode}

// String says what the packets are, for people.
func (d Drop) String() string {
	return map[Drop]string{
		Spoofed:   "packets with the address of a pod that don't come from where that pod is",
		PodToNode: "packets of pods to ports by which only nodes talk to each other",
		NoNode:    "packets to ports by which only nodes talk to each other, from addresses of no node",
	}[d]
}

// Remedy says how to find who sends them, by the nftables table.
func (d Drop) Remedy(table string) string {
	return fmt.Sprintf("see who sends them: nft insert rule inet %s %s meta nftrace set 1; nft monitor trace", table, chainGuard)
}

// counted counts a packet. The counters are objects of the table, so that they go on when its rules
// are made again.
func counted(d Drop) match {
	return match{&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: string(d)}}
}

// counters returns the table's counters, at zero.
func counters(t *nftables.Table) (out []*nftables.CounterObj) {
	for _, d := range Drops {
		out = append(out, &nftables.CounterObj{Table: t, Name: string(d)})
	}
	return out
}

// Dropped returns how many packets the table has dropped since it was made, by reason. It is empty
// if there is no table.
func (d *Datapath) Dropped() (map[Drop]uint64, error) {
	t := d.table
	t.mu.Lock()
	defer t.mu.Unlock()
	out := map[Drop]uint64{}
	objects, err := t.conn.GetObjects(t.nft)
	if errors.Is(err, unix.ENOENT) {
		return out, nil
	}
	if err != nil {
		return nil, t.wrap(errors.Join(fmt.Errorf("read counters: %w", err), t.reopen()))
	}
	for _, o := range objects {
		if c, ok := o.(*nftables.CounterObj); ok {
			out[Drop(c.Name)] = c.Packets
		}
	}
	return out, nil
}
