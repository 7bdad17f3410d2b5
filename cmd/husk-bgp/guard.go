package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/bgp"
)

// The sockets that receive packets of strangers are guarded by filters in the kernel, since gobgp
// looks at TTLs only of connections that it has accepted, which is too late. gobgp has no means to
// reach its sockets, so they are found among this process's files.

const (
	bgpPort  = 179
	hopLimit = 255 // of packets that no router has forwarded
)

// guard makes the sockets that listen for BGP take connections from behind routers only from peers
// without GTSM. Connections have the filter of the socket from which they were accepted.
func (s *speaker) guard(want map[netip.Addr]bgp.Peer) error {
	distant := []netip.Addr{}
	for a, p := range want {
		if !p.GTSM {
			distant = append(distant, a)
		}
	}
	slices.SortFunc(distant, netip.Addr.Compare)
	if s.distant != nil && slices.Equal(distant, s.distant) {
		return nil
	}
	n, err := attach(bgpPort, nearby(distant))
	if err == nil && n < len(s.desired.Local) {
		err = fmt.Errorf("%d of %d sockets were found", n, len(s.desired.Local))
	}
	if err != nil {
		return fmt.Errorf("guard port %d: %w", bgpPort, err)
	}
	s.distant = distant
	return nil
}

// nearbyOnly makes a socket take no packets from behind routers, as RFC 5881 requires for BFD. It
// is called before the socket is bound, so that no other packet is in its buffer.
func nearbyOnly(_, _ string, c syscall.RawConn) error {
	program, err := assemble(nearby(nil))
	if err != nil {
		return err
	}
	return errors.Join(c.Control(func(fd uintptr) { err = program.attach(int(fd)) }), err)
}

// attach attaches a filter to this process's listening sockets of TCP that are bound to a port.
// Those of connections answer with hopLimit. It returns how many sockets there are.
func attach(port int, filter []bpf.Instruction) (n int, err error) {
	program, err := assemble(filter)
	if err != nil {
		return 0, err
	}
	return each(port, func(fd int, six bool) error {
		// gobgp does so for IPv4, and forgets IPv6.
		if six {
			if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, hopLimit); err != nil {
				return os.NewSyscallError("IPV6_UNICAST_HOPS", err)
			}
		}
		return program.attach(fd)
	})
}

// program is an assembled filter.
type program []unix.SockFilter

func assemble(filter []bpf.Instruction) (program, error) {
	raw, err := bpf.Assemble(filter)
	if err != nil {
		return nil, err
	}
	out := make(program, len(raw))
	for i, r := range raw {
		out[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	return out, nil
}

func (p program) attach(fd int) error {
	all := unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]}
	return os.NewSyscallError("SO_ATTACH_FILTER", unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &all))
}

// each calls do for this process's listening sockets of TCP that are bound to a port, and returns
// how many these are.
func each(port int, do func(fd int, six bool) error) (n int, err error) {
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0, err
	}
	for _, f := range files {
		fd, err := strconv.Atoi(f.Name())
		if err != nil {
			continue
		}
		at, ok := listens(fd)
		if !ok {
			continue
		}
		var bound int
		_, six := at.(*unix.SockaddrInet6)
		switch at := at.(type) {
		case *unix.SockaddrInet4:
			bound = at.Port
		case *unix.SockaddrInet6:
			bound = at.Port
		}
		if bound != port {
			continue
		}
		if err := do(fd, six); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// listens returns where a file is bound if it is a socket of TCP that anybody can connect to.
func listens(fd int) (at unix.Sockaddr, ok bool) {
	if t, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE); err != nil || t != unix.SOCK_STREAM {
		return nil, false
	}
	if _, err := unix.Getpeername(fd); !errors.Is(err, unix.ENOTCONN) {
		return nil, false
	}
	at, err := unix.Getsockname(fd)
	return at, err == nil
}

// network is the offset by which a filter reads the IP header: the data of a filter of TCP and UDP
// begins after it (SKF_NET_OFF of linux/filter.h).
const network = 1<<32 - 0x100000

// nearby returns a filter that takes packets of hopLimit, and all of some addresses.
func nearby(distant []netip.Addr) []bpf.Instruction {
	all, none := bpf.RetConstant{Val: 1<<32 - 1}, bpf.RetConstant{Val: 0}
	branch := func(source, ttl uint32, six bool) (out []bpf.Instruction) {
		for _, a := range distant {
			if a.Is6() != six {
				continue
			}
			words := a.AsSlice()
			for i := 0; i < len(words); i += 4 {
				word := uint32(words[i])<<24 | uint32(words[i+1])<<16 | uint32(words[i+2])<<8 | uint32(words[i+3])
				rest := (len(words)-i-4)/4*2 + 1 // to the next address
				out = append(out, bpf.LoadAbsolute{Off: source + uint32(i), Size: 4}, bpf.JumpIf{Cond: bpf.JumpEqual, Val: word, SkipFalse: uint8(rest)})
			}
			out = append(out, all)
		}
		return append(out, bpf.LoadAbsolute{Off: ttl, Size: 1}, bpf.JumpIf{Cond: bpf.JumpEqual, Val: hopLimit, SkipFalse: 1}, all, none)
	}
	four := branch(network+12, network+8, false)
	return append(append([]bpf.Instruction{
		bpf.LoadAbsolute{Off: network, Size: 1},
		bpf.ALUOpConstant{Op: bpf.ALUOpShiftRight, Val: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 4, SkipTrue: 1},
		bpf.Jump{Skip: uint32(len(four))},
	}, four...), branch(network+8, network+7, true)...)
}
