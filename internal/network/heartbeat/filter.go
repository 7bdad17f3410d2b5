package heartbeat

import (
	"encoding/binary"
	"net/netip"
	"os"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// maxFilter is how many instructions a filter of the kernel may have (BPF_MAXINSNS).
const maxFilter = 4096

// ipHeader is the offset by which a filter reads the IP header. The data of a UDP socket's filter
// begins after it (SKF_NET_OFF of linux/filter.h).
const ipHeader = 1<<32 - 0x100000

// wanted returns a filter that takes answers to this node's own probes, which only who has seen
// those can send, and probes of known senders. What it refuses takes no room in the socket's
// buffer. Thousands of senders are too many for a filter: then it takes probes of all.
func wanted(nonce [8]byte, six bool, senders []netip.Addr) []bpf.Instruction {
	all, none := bpf.RetConstant{Val: 1<<32 - 1}, bpf.RetConstant{Val: 0}
	// require goes on if a value is there, and refuses the packet otherwise.
	require := func(offset uint32, size int, value uint32) []bpf.Instruction {
		return []bpf.Instruction{bpf.LoadAbsolute{Off: offset, Size: size}, bpf.JumpIf{Cond: bpf.JumpEqual, Val: value, SkipTrue: 1}, none}
	}
	out := require(headerUDP, 4, binary.BigEndian.Uint32(magic[:]))
	out = append(out, bpf.LoadAbsolute{Off: headerUDP + 4, Size: 1}, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: kindAnswer, SkipTrue: 7})
	out = append(out, require(headerUDP+8, 4, binary.BigEndian.Uint32(nonce[:]))...)
	out = append(out, require(headerUDP+12, 4, binary.BigEndian.Uint32(nonce[4:]))...)
	out = append(out, all)
	out = append(out, require(headerUDP+4, 1, kindProbe)...)
	out = append(out, require(0, 2, Port)...)
	var known []bpf.Instruction
	if !six {
		known = append(known, bpf.LoadAbsolute{Off: ipHeader + 12, Size: 4})
	}
	for _, a := range senders {
		if a.Is6() != six {
			continue
		}
		b := a.AsSlice()
		if !six {
			known = append(known, bpf.JumpIf{Cond: bpf.JumpEqual, Val: binary.BigEndian.Uint32(b), SkipFalse: 1}, all)
			continue
		}
		// Prefixes of a cluster begin alike, so the last words differ first.
		for i := 12; i >= 0; i -= 4 {
			rest := i/4*2 + 1 // to the next address
			known = append(known, bpf.LoadAbsolute{Off: ipHeader + 8 + uint32(i), Size: 4}, bpf.JumpIf{Cond: bpf.JumpEqual, Val: binary.BigEndian.Uint32(b[i:]), SkipFalse: uint8(rest)})
		}
		known = append(known, all)
	}
	if len(out)+len(known)+1 > maxFilter {
		return append(out, all)
	}
	return append(append(out, known...), none)
}

// filter replaces the filter of a socket.
func filter(fd int, instructions []bpf.Instruction) error {
	raw, err := bpf.Assemble(instructions)
	if err != nil {
		return err
	}
	code := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		code[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	program := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	return os.NewSyscallError("SO_ATTACH_FILTER", unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program))
}
