package heartbeat

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/nlsock"
	"github.com/huskd/husk/internal/network/plan"
)

const (
	header4, header6, headerUDP = 20, 40, 8
	ttl                         = 64
)

// headers returns the size of the headers of a datagram to an address.
func headers(to netip.Addr) int {
	if to.Is4() {
		return header4 + headerUDP
	}
	return header6 + headerUDP
}

// ethertype returns the protocol of packets to an address, in network byte order.
func ethertype(to netip.Addr) uint16 {
	if to.Is4() {
		return nl.Swap16(unix.ETH_P_IP)
	}
	return nl.Swap16(unix.ETH_P_IPV6)
}

// datagram returns an IP packet with a UDP datagram from Port to Port that mustn't be fragmented.
func datagram(from, to netip.Addr, payload []byte) []byte {
	udp := make([]byte, headerUDP, headerUDP+len(payload))
	binary.BigEndian.PutUint16(udp[0:], Port)
	binary.BigEndian.PutUint16(udp[2:], Port)
	binary.BigEndian.PutUint16(udp[4:], uint16(headerUDP+len(payload)))
	udp = append(udp, payload...)
	pseudo := append(from.AsSlice(), to.AsSlice()...)
	pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(len(udp)))
	pseudo = append(pseudo, 0, 0, 0, unix.IPPROTO_UDP)
	sum := checksum(append(pseudo, udp...))
	if sum == 0 {
		sum = 0xffff // RFC 768: zero means none
	}
	binary.BigEndian.PutUint16(udp[6:], sum)

	if to.Is4() {
		ip := make([]byte, header4, header4+len(udp))
		ip[0] = 4<<4 | header4/4
		binary.BigEndian.PutUint16(ip[2:], uint16(header4+len(udp)))
		ip[6] = 1 << 6 // don't fragment
		ip[8], ip[9] = ttl, unix.IPPROTO_UDP
		copy(ip[12:], from.AsSlice())
		copy(ip[16:], to.AsSlice())
		binary.BigEndian.PutUint16(ip[10:], checksum(ip))
		return append(ip, udp...)
	}
	ip := make([]byte, header6, header6+len(udp))
	ip[0] = 6 << 4
	binary.BigEndian.PutUint16(ip[4:], uint16(len(udp)))
	ip[6], ip[7] = unix.IPPROTO_UDP, ttl
	copy(ip[8:], from.AsSlice())
	copy(ip[24:], to.AsSlice())
	return append(ip, udp...)
}

// checksum returns the Internet checksum (RFC 1071).
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(b[0])<<8 | uint32(b[1])
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

func (p *Prober) linkIndex(name string) (int, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	a := p.links.Do(req)[0]
	if a.Err != nil {
		return 0, a.Err
	}
	if len(a.Data) < unix.SizeofIfInfomsg {
		return 0, errors.New("short answer about a link")
	}
	return int(int32(binary.NativeEndian.Uint32(a.Data[4:]))), nil
}

// neighbour returns the MAC of a neighbour that the kernel knows.
func (p *Prober) neighbour(link int, addr netip.Addr) (mac plan.MAC, err error) {
	family := uint8(unix.AF_INET)
	if addr.Is6() {
		family = unix.AF_INET6
	}
	req := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, 0)
	req.AddData(&netlink.Ndmsg{Family: family, Index: uint32(link)})
	req.AddData(nl.NewRtAttr(unix.NDA_DST, addr.AsSlice()))
	a := p.links.Do(req)[0]
	if a.Err != nil {
		return mac, a.Err
	}
	if len(a.Data) >= unix.SizeofNdMsg {
		for typ, value := range nlsock.Attributes(a.Data[unix.SizeofNdMsg:]) {
			if typ == unix.NDA_LLADDR && len(value) == len(mac) {
				return plan.MAC(value), nil
			}
		}
	}
	return mac, errors.New("the neighbour's MAC isn't known")
}
