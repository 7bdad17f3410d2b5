package policytable

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/nftable"
	"github.com/huskd/husk/internal/network/nlsock"
	"github.com/huskd/husk/internal/network/policy"
	"github.com/huskd/husk/internal/network/policy/ruleset"
)

// Denial is a connection that a profile denied.
type Denial struct {
	Direction policy.Direction
	Profile   ruleset.ProfileID
	Flow      policy.Flow
}

// From linux/netfilter/nfnetlink_log.h.
const (
	logPacket = unix.NFNL_SUBSYS_ULOG << 8
	logConfig = unix.NFNL_SUBSYS_ULOG<<8 | 1

	logCommand   = 1 // NFULA_CFG_CMD
	logMode      = 2 // NFULA_CFG_MODE
	logThreshold = 5 // NFULA_CFG_QTHRESH

	logBind, logCopyPacket = 1, 2

	logHeader  = 1 // struct nfulnl_msg_packet_hdr
	logPayload = 9
	logPrefix  = 10

	// logLength is how much of a packet is copied: its headers.
	logLength = 128
)

// Denials calls denied with denied connections until ctx ends, at most logRate a second of each
// profile. A client that tries again is reported again. Only one process can listen.
func (t *Table) Denials(ctx context.Context, denied func(Denial)) error {
	var socket *os.File
	err := t.inNode(func() (err error) {
		socket, err = listen(logGroup(t.kernel.instance))
		return err
	})
	if err != nil {
		return fmt.Errorf("listen to denied connections: %w", err)
	}
	defer socket.Close()
	stop := context.AfterFunc(ctx, func() { _ = socket.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buf := make([]byte, 64<<10)
	for {
		n, err := socket.Read(buf)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the read ended because ctx did
		case errors.Is(err, unix.ENOBUFS):
			continue // some are lost
		case err != nil:
			return fmt.Errorf("listen to denied connections: %w", err)
		}
		err = nlsock.Messages(buf[:n], func(h unix.NlMsghdr, data []byte) {
			if d, ok := parseDenial(data); ok && h.Type == logPacket {
				denied(d)
			}
		})
		if err != nil {
			return err
		}
	}
}

// listen opens a socket on which the kernel logs the packets of a group.
func listen(group uint16) (*os.File, error) {
	socket, err := nlsock.Subscribe(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	configure := func(a nftable.Attributes) error {
		req := nl.NewNetlinkRequest(logConfig, unix.NLM_F_ACK)
		req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, ResId: nl.Swap16(group)})
		req.RawData = a
		if _, err := socket.Write(req.Serialize()); err != nil {
			return err
		}
		buf := make([]byte, 4<<10)
		for answered := false; !answered; {
			n, err := socket.Read(buf)
			if err != nil {
				return err
			}
			var failed error
			err = nlsock.Messages(buf[:n], func(h unix.NlMsghdr, data []byte) {
				if h.Type == unix.NLMSG_ERROR {
					answered, failed = true, nlsock.ErrorOf(h, data)
				}
			})
			if err = errors.Join(err, failed); err != nil {
				return err
			}
		}
		return nil
	}
	mode := append(binary.BigEndian.AppendUint32(nil, logLength), logCopyPacket, 0)
	err = errors.Join(
		configure(nftable.Attributes{}.Bytes(logCommand, []byte{logBind})),
		configure(nftable.Attributes{}.Bytes(logMode, mode).Number(logThreshold, 1)))
	if err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	return socket, nil
}

// parseDenial returns the connection of a logged packet.
func parseDenial(data []byte) (d Denial, ok bool) {
	named, parsed, toNode := false, false, false
	for typ, value := range nftable.Fields(data) {
		switch typ {
		case logPrefix:
			d.Direction, d.Profile, named = profileOf(unix.ByteSliceToString(value))
		case logHeader:
			toNode = len(value) > 2 && value[2] == unix.NF_INET_LOCAL_IN
		case logPayload:
			d.Flow, parsed = parsePacket(value)
		}
	}
	d.Flow.ToNode = toNode
	return d, named && parsed
}

// parsePacket returns the connection of an IP packet, of which the end may be missing.
func parsePacket(b []byte) (f policy.Flow, ok bool) {
	if len(b) < 1 {
		return f, false
	}
	var next byte
	switch b[0] >> 4 {
	case 4:
		length := int(b[0]&0xf) * 4
		if length < 20 || len(b) < length {
			return f, false
		}
		next = b[9]
		f.From, f.To = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
		b = b[length:]
	case 6:
		if len(b) < 40 {
			return f, false
		}
		next = b[6]
		f.From, f.To = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
		b = b[40:]
		for extension(next) && len(b) >= 8 {
			length := 8 + 8*int(b[1])
			if next == unix.IPPROTO_FRAGMENT {
				length = 8
			}
			next, b = b[0], b[min(length, len(b)):]
		}
	default:
		return f, false
	}
	f.Protocol = policy.Protocol(next)
	if f.Protocol.HasPorts() && len(b) >= 4 {
		f.Port = binary.BigEndian.Uint16(b[2:])
	}
	return f, true
}

// extension reports whether a header of IPv6 is followed by another one.
func extension(header byte) bool {
	switch header {
	case unix.IPPROTO_HOPOPTS, unix.IPPROTO_ROUTING, unix.IPPROTO_FRAGMENT, unix.IPPROTO_DSTOPTS:
		return true
	}
	return false
}
