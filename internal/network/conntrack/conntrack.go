// Package conntrack deletes conntrack entries: those of pods that are gone, those that bypass new
// hostPorts, and those of connections that a caller no longer allows.
package conntrack

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/nlsock"
)

// Messages and attributes from linux/netfilter/nfnetlink_conntrack.h.
const (
	ctGet    = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1
	ctDelete = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2

	ctaTupleOrig  = 1
	ctaTupleReply = 2
	ctaID         = 12
	ctaZone       = 18

	ctaTupleIP    = 1
	ctaTupleProto = 2

	ctaProtoNum     = 1
	ctaProtoSrcPort = 2
	ctaProtoDstPort = 3
)

// Flows selects conntrack entries.
type Flows struct {
	// Pods are addresses of pods that are gone. All entries with one of them are selected.
	Pods []netip.Addr
	// Ports are new hostPorts. UDP entries to them that lead to the node itself are selected: a
	// client that keeps sending from one port keeps such an entry alive. (TCP clients make a new
	// connection.)
	Ports []uint16
}

// Empty reports whether no entry is selected.
func (f Flows) Empty() bool { return len(f.Pods) == 0 && len(f.Ports) == 0 }

// tuple is one direction of a conntrack entry.
type tuple struct {
	src, dst         netip.Addr
	protocol         byte
	srcPort, dstPort uint16
}

// Forget deletes the selected entries in the network namespace of c, a socket of NETLINK_NETFILTER.
// It reads the whole table once, however many are selected, so callers collect flows.
func Forget(c *nlsock.Conn, f Flows) error {
	if f.Empty() {
		return nil
	}
	pods := map[netip.Addr]bool{}
	for _, a := range f.Pods {
		pods[a] = true
	}
	ports := map[uint16]bool{}
	for _, p := range f.Ports {
		ports[p] = true
	}
	stale := func(orig, reply tuple) bool {
		if pods[orig.src] || pods[orig.dst] || pods[reply.src] || pods[reply.dst] {
			return true
		}
		untouched := orig.src == reply.dst && orig.dst == reply.src
		return untouched && orig.protocol == unix.IPPROTO_UDP && ports[orig.dstPort]
	}
	_, err := remove(c, stale)
	return err
}

// Connection is what a conntrack entry stands for: where it comes from, before its source is
// translated, and where it leads, after its destination is. Port is 0 for protocols without ports.
type Connection struct {
	From, To netip.Addr
	Protocol uint8
	Port     uint16
}

// End deletes the entries for which denied returns true, in the network namespace of c, a socket of
// NETLINK_NETFILTER. It reads the whole table. It returns how many entries it deleted.
func End(c *nlsock.Conn, denied func(Connection) bool) (int, error) {
	return remove(c, func(orig, reply tuple) bool {
		return denied(Connection{orig.src, reply.src, orig.protocol, reply.srcPort})
	})
}

// Translation is what a conntrack entry does to the destination: To is what the client knows, and
// Now is where its packets go.
type Translation struct {
	To, Now  netip.AddrPort
	Protocol uint8
}

// EndTranslated deletes the entries for which stale returns true, as End does.
func EndTranslated(c *nlsock.Conn, stale func(Translation) bool) (int, error) {
	return remove(c, func(orig, reply tuple) bool {
		return stale(Translation{netip.AddrPortFrom(orig.dst, orig.dstPort), netip.AddrPortFrom(reply.src, reply.srcPort), orig.protocol})
	})
}

// remove deletes stale entries.
func remove(c *nlsock.Conn, stale func(orig, reply tuple) bool) (n int, err error) {
	list := nl.NewNetlinkRequest(ctGet, 0)
	list.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC})
	doomed, err := nlsock.List(c, list, func(data []byte) (*nl.NetlinkRequest, bool) {
		req := deletion(data, stale)
		return req, req != nil
	})
	if err != nil {
		return 0, fmt.Errorf("list conntrack entries: %w", err)
	}
	for part := range slices.Chunk(doomed, 64) {
		for _, a := range c.Do(part...) {
			switch {
			case a.Err == nil:
				n++
			case !errors.Is(a.Err, unix.ENOENT):
				err = fmt.Errorf("delete conntrack entry: %w", a.Err)
			}
		}
	}
	return n, err
}

// deletion returns the request that deletes a listed entry, nil if it isn't stale.
func deletion(data []byte, stale func(orig, reply tuple) bool) *nl.NetlinkRequest {
	if len(data) < nl.SizeofNfgenmsg {
		return nil
	}
	var orig, reply tuple
	for typ, value := range nlsock.Attributes(data[nl.SizeofNfgenmsg:]) {
		switch typ {
		case ctaTupleOrig:
			orig = parseTuple(value)
		case ctaTupleReply:
			reply = parseTuple(value)
		}
	}
	if !orig.src.IsValid() || !reply.src.IsValid() || !stale(orig, reply) {
		return nil
	}
	req := nl.NewNetlinkRequest(ctDelete, unix.NLM_F_ACK)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: data[0]})
	for typ, value := range nlsock.Attributes(data[nl.SizeofNfgenmsg:]) {
		switch typ {
		case ctaTupleOrig:
			req.AddData(nl.NewRtAttr(ctaTupleOrig|unix.NLA_F_NESTED, bytes.Clone(value)))
		case ctaID, ctaZone: // they identify this very entry
			req.AddData(nl.NewRtAttr(int(typ), bytes.Clone(value)))
		}
	}
	return req
}

func parseTuple(data []byte) (t tuple) {
	for part, value := range nlsock.Attributes(data) {
		for typ, value := range nlsock.Attributes(value) {
			switch {
			case part == ctaTupleIP && typ%2 == 1: // CTA_IP_V4_SRC, CTA_IP_V6_SRC
				t.src, _ = netip.AddrFromSlice(value)
			case part == ctaTupleIP:
				t.dst, _ = netip.AddrFromSlice(value)
			case part == ctaTupleProto && typ == ctaProtoNum && len(value) == 1:
				t.protocol = value[0]
			case part == ctaTupleProto && typ == ctaProtoSrcPort && len(value) == 2:
				t.srcPort = binary.BigEndian.Uint16(value)
			case part == ctaTupleProto && typ == ctaProtoDstPort && len(value) == 2:
				t.dstPort = binary.BigEndian.Uint16(value)
			}
		}
	}
	return t
}
