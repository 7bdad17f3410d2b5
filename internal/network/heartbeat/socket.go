package heartbeat

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// receiveBuffer is how many bytes of datagrams may wait for the next look.
const receiveBuffer = 4 << 20

// padding is what datagrams end with.
var padding [1 << 16]byte

// socket is a UDP socket that never blocks. It isn't registered with Go's poller: to wake up for
// each datagram would cost a node of many peers several times as much as all the rest.
type socket struct {
	fd      int
	data    [maxMessage]byte
	control []byte
}

// openSocket returns a socket bound to an address and Port, with a filter.
func openSocket(from netip.Addr, instructions []bpf.Instruction) (*socket, error) {
	family, level, discover, probe := unix.AF_INET, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE
	if from.Is6() {
		family, level, discover, probe = unix.AF_INET6, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer)
	err = errors.Join(
		// Probes are sent whatever the kernel has learned about the path's MTU, and never in fragments.
		unix.SetsockoptInt(fd, level, discover, probe),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
		filter(fd, instructions),
		unix.Bind(fd, sockaddr(netip.AddrPortFrom(from, Port))))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen on %v: %w", from, err), unix.Close(fd))
	}
	return &socket{fd: fd, control: make([]byte, unix.CmsgSpace(int(unsafe.Sizeof(unix.Timespec{}))))}, nil
}

func (s *socket) close() error { return unix.Close(s.fd) }

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// send sends a datagram, padded to a size if it is smaller. If that isn't possible, it is lost.
func (s *socket) send(message []byte, size int, to netip.AddrPort) {
	buffers := [][]byte{message, padding[:min(max(0, size-len(message)), len(padding))]}
	_, _ = unix.SendmsgBuffers(s.fd, buffers, nil, sockaddr(to), 0)
}

// received is a datagram without its padding.
type received struct {
	from netip.AddrPort
	data []byte    // valid until the next call of receive
	at   time.Time // when the kernel received it
}

// receive returns a datagram if one has come.
func (s *socket) receive() (r received, ok bool) {
	// What doesn't fit is padding, and isn't copied.
	n, controls, _, from, err := unix.Recvmsg(s.fd, s.data[:], s.control, 0)
	if err != nil {
		return r, false
	}
	r = received{data: s.data[:n], at: time.Now()}
	r.at = r.at.Add(-waited(s.control[:controls], r.at))
	switch from := from.(type) {
	case *unix.SockaddrInet4:
		r.from = netip.AddrPortFrom(netip.AddrFrom4(from.Addr), uint16(from.Port))
	case *unix.SockaddrInet6:
		r.from = netip.AddrPortFrom(netip.AddrFrom16(from.Addr), uint16(from.Port))
	}
	return r, true
}

// waited returns how long ago the kernel received a datagram, which it says in a control message.
func waited(control []byte, now time.Time) time.Duration {
	header, data, _, err := unix.ParseOneSocketControlMessage(control)
	var at unix.Timespec
	if err != nil || header.Type != unix.SCM_TIMESTAMPNS || len(data) < int(unsafe.Sizeof(at)) {
		return 0
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&at)), unsafe.Sizeof(at)), data)
	return max(0, now.Round(0).Sub(time.Unix(at.Unix()))) // by the wall clock
}
