// Package conntrack counts conntrack entries, and deletes some: those of pods that are gone, those
// that bypass new hostPorts, and those of connections that a caller no longer allows.
package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/nftable"
	"github.com/huskd/husk/internal/network/nlsock"
)

// Messages and attributes from linux/netfilter/nfnetlink_conntrack.h.
const (
	ctGet    = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1
	ctDelete = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2

	ctaTupleOrig  = 1
	ctaTupleReply = 2
	ctaStatus     = 3
	ctaProtoInfo  = 4
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

// tracked is a conntrack entry.
type tracked struct {
	orig, reply tuple
	// lasting is whether the kernel keeps the entry when the table is full. The others make room for
	// new ones: those without an answer, and those of TCP connections that are closing (early_drop
	// in net/netfilter/nf_conntrack_core.c).
	lasting bool
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
	stale := func(e tracked) bool {
		orig, reply := e.orig, e.reply
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
	return remove(c, func(e tracked) bool {
		return denied(Connection{e.orig.src, e.reply.src, e.orig.protocol, e.reply.srcPort})
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
	return remove(c, func(e tracked) bool {
		return stale(Translation{netip.AddrPortFrom(e.orig.dst, e.orig.dstPort), netip.AddrPortFrom(e.reply.src, e.reply.srcPort), e.orig.protocol})
	})
}

// remove deletes stale entries.
func remove(c *nlsock.Conn, stale func(tracked) bool) (n int, err error) {
	doomed, err := list(c, func(data []byte) (*nl.NetlinkRequest, bool) {
		req := deletion(data, stale)
		return req, req != nil
	})
	if err != nil {
		return 0, err
	}
	for part := range slices.Chunk(doomed, 64) {
		part[len(part)-1].Flags |= unix.NLM_F_ACK
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

// list returns what yield makes of the table's entries.
func list[T any](c *nlsock.Conn, yield func(data []byte) (T, bool)) ([]T, error) {
	req := nl.NewNetlinkRequest(ctGet, 0)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC})
	all, err := nlsock.List(c, req, yield)
	if err != nil {
		return nil, fmt.Errorf("list conntrack entries: %w", err)
	}
	return all, nil
}

// parse returns a listed entry; false if it isn't one.
func parse(data []byte) (e tracked, ok bool) {
	if len(data) < nl.SizeofNfgenmsg {
		return e, false
	}
	const assured = 1 << 2 // IPS_ASSURED of linux/netfilter/nf_conntrack_common.h
	var status uint32
	closing := false
	for typ, value := range nlsock.Attributes(data[nl.SizeofNfgenmsg:]) {
		switch {
		case typ == ctaTupleOrig:
			e.orig = parseTuple(value)
		case typ == ctaTupleReply:
			e.reply = parseTuple(value)
		case typ == ctaStatus && len(value) == 4:
			status = binary.BigEndian.Uint32(value)
		case typ == ctaProtoInfo:
			closing = isClosing(value)
		}
	}
	e.lasting = status&assured != 0 && !closing
	return e, e.orig.src.IsValid() && e.reply.src.IsValid()
}

// isClosing reports whether a CTA_PROTOINFO is of a TCP connection that is ending or has ended.
func isClosing(info []byte) bool {
	const infoTCP, infoState = 1, 1
	const firstClosing, lastClosing = 4, 8 // TCP_CONNTRACK_FIN_WAIT to TCP_CONNTRACK_CLOSE
	for typ, value := range nlsock.Attributes(info) {
		if typ != infoTCP {
			continue
		}
		for typ, value := range nlsock.Attributes(value) {
			if typ == infoState && len(value) == 1 {
				return value[0] >= firstClosing && value[0] <= lastClosing
			}
		}
	}
	return false
}

// deletion returns the request that deletes a listed entry, nil if it isn't stale.
func deletion(data []byte, stale func(tracked) bool) *nl.NetlinkRequest {
	e, ok := parse(data)
	if !ok || !stale(e) {
		return nil
	}
	raw := make(nftable.Attributes, nl.SizeofNfgenmsg, 128)
	raw[0] = data[0] // the family
	for typ, value := range nlsock.Attributes(data[nl.SizeofNfgenmsg:]) {
		switch typ {
		case ctaTupleOrig:
			raw = raw.Nested(typ, value)
		case ctaID, ctaZone: // they identify this very entry
			raw = raw.Bytes(typ, value)
		}
	}
	req := nl.NewNetlinkRequest(ctDelete, 0)
	req.RawData = raw
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
