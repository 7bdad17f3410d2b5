package conntrack

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/nlsock"
)

// More messages and attributes from linux/netfilter/nfnetlink_conntrack.h.
const (
	ctGetStats = unix.NFNL_SUBSYS_CTNETLINK<<8 | 5

	ctaStatsEntries = 1
	ctaStatsMax     = 2
)

// Size says how full a connection tracking table is. Max is net.netfilter.nf_conntrack_max; 0 means
// that there is no limit.
type Size struct{ Entries, Max int }

// SizeOf returns the size of the table in the network namespace of c, a socket of
// NETLINK_NETFILTER.
func SizeOf(c *nlsock.Conn) (s Size, _ error) {
	req := nl.NewNetlinkRequest(ctGetStats, 0)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC})
	answer := c.Do(req)[0]
	if answer.Err != nil {
		return s, fmt.Errorf("size of the connection tracking table: %w", answer.Err)
	}
	for typ, value := range nlsock.Attributes(answer.Data[min(nl.SizeofNfgenmsg, len(answer.Data)):]) {
		switch {
		case len(value) != 4:
		case typ == ctaStatsEntries:
			s.Entries = int(binary.BigEndian.Uint32(value))
		case typ == ctaStatsMax:
			s.Max = int(binary.BigEndian.Uint32(value))
		}
	}
	return s, nil
}

// Lasting counts the entries that stay when the table is full, by the addresses that began the
// connections. It reads the whole table.
func Lasting(c *nlsock.Conn) (map[netip.Addr]int, error) {
	out := map[netip.Addr]int{}
	_, err := list(c, func(data []byte) (struct{}, bool) {
		if e, ok := parse(data); ok && e.lasting {
			out[e.orig.src]++
		}
		return struct{}{}, false
	})
	return out, err
}

// Surplus deletes lasting entries of connections that the addresses began: as many as surplus says,
// or all if there are fewer. It reads the whole table, and returns how many it deleted.
func Surplus(c *nlsock.Conn, surplus map[netip.Addr]int) (int, error) {
	return remove(c, func(e tracked) bool {
		if !e.lasting || surplus[e.orig.src] <= 0 {
			return false
		}
		surplus[e.orig.src]--
		return true
	})
}
