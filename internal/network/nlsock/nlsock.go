// Package nlsock sends netlink messages in batches and reads the kernel's answers. The messages are
// those of github.com/vishvananda/netlink/nl. A batch costs a single system call, see
// docs/decisions/0028.
package nlsock

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Conn is a netlink socket of the network namespace in which it was dialed. The kernel handles
// requests before sendto returns, so the answers are there already. Its methods may be called
// concurrently.
type Conn struct {
	mu  sync.Mutex // Invariant: guards what follows.
	fd  int        // -1 once it is closed
	seq uint32
	buf []byte
}

const (
	// timeout is how long an answer may take; it usually takes a few µs.
	timeout = 30 // seconds
	// answerSize is more than any single answer needs; the parts of a list are larger.
	answerSize, listSize = 8 << 10, 64 << 10
)

// Dial opens a socket of a protocol, such as NETLINK_ROUTE, in the network namespace of the calling
// thread.
func Dial(protocol int) (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	err = errors.Join(
		unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: timeout}),
		// Errors include the kernel's explanation, and leave out our message.
		unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1),
		unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1))
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	return &Conn{fd: fd, buf: make([]byte, answerSize)}, nil
}

// Strict makes the kernel apply the filters in requests for lists, which it ignores otherwise, and
// refuse what it doesn't know in them.
func (c *Conn) Strict() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return unix.SetsockoptInt(c.fd, unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
}

// Grow lets the socket send a message of up to size bytes, such as a large transaction.
func (c *Conn) Grow(size int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, size); err != nil {
		return fmt.Errorf("raise the send buffer of a netlink socket: %w", err)
	}
	return nil
}

// Close closes the socket. Closing it again does nothing: the number may be another file's by then.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fd < 0 {
		return nil
	}
	fd := c.fd
	c.fd = -1
	return unix.Close(fd)
}

// Answer is the answer to one request: an error, or data if the request asks for it.
type Answer struct {
	Data []byte // after the netlink header
	Err  error
}

// Do sends the requests as one batch and returns their answers in order. A failed request doesn't
// affect the others. None may be a dump, and the last one must ask for an answer. Of the others,
// those that ask for none have an empty one unless they fail: each answer costs a system call.
func (c *Conn) Do(requests ...*nl.NetlinkRequest) []Answer {
	c.mu.Lock()
	defer c.mu.Unlock()
	answers := make([]Answer, len(requests))
	first := c.seq + 1
	done, err := len(requests) == 0, c.send(requests)
	for !done && err == nil {
		err = c.receive(func(h unix.NlMsghdr, data []byte) {
			i := h.Seq - first
			if i >= uint32(len(answers)) {
				return // of an earlier batch that timed out
			}
			done = done || i == uint32(len(answers)-1) // the kernel answers in order
			if h.Type == unix.NLMSG_ERROR {
				answers[i].Err = ErrorOf(h, data)
			} else {
				answers[i].Data = bytes.Clone(data)
			}
		})
	}
	if err != nil {
		for i := range answers {
			answers[i] = Answer{Err: err}
		}
	}
	return answers
}

// Transact sends the requests to nftables as one transaction: either all take effect or none. Only
// the last one is acknowledged; errors are always reported.
func (c *Conn) Transact(requests ...*nl.NetlinkRequest) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	requests = slices.Concat(
		[]*nl.NetlinkRequest{NftRequest(unix.NFNL_MSG_BATCH_BEGIN)},
		requests,
		[]*nl.NetlinkRequest{NftRequest(unix.NFNL_MSG_BATCH_END)})
	last := len(requests) - 2
	requests[last].Flags |= unix.NLM_F_ACK
	first := c.seq + 1
	if err := c.send(requests); err != nil {
		return err
	}
	var failed error
	for answered := false; !answered; {
		err := c.receive(func(h unix.NlMsghdr, data []byte) {
			i := int(int32(h.Seq - first))
			if i < 0 || i > last || h.Type != unix.NLMSG_ERROR {
				return // of an earlier batch that timed out
			}
			failed = cmp.Or(failed, ErrorOf(h, data))
			// An error of the whole batch has the sequence number of its first message, and may be
			// the only answer.
			answered = answered || i == last || i == 0
		})
		if err != nil {
			return err
		}
	}
	return failed
}

// NftRequest returns an empty message to nftables: about family inet, or the start or end of a
// transaction.
func NftRequest(typ int) *nl.NetlinkRequest {
	msg := &nl.Nfgenmsg{NfgenFamily: unix.NFPROTO_INET}
	if typ == unix.NFNL_MSG_BATCH_BEGIN || typ == unix.NFNL_MSG_BATCH_END {
		msg.NfgenFamily = unix.AF_UNSPEC
		msg.ResId = nl.Swap16(unix.NFNL_SUBSYS_NFTABLES)
	} else {
		typ |= unix.NFNL_SUBSYS_NFTABLES << 8
	}
	req := nl.NewNetlinkRequest(typ, 0)
	req.AddData(msg)
	return req
}

// errInterrupted means that something changed while a list was read.
var errInterrupted = errors.New("list changed while it was read")

// List sends a request for a list, repeatedly until it gets a consistent one, a limited number of
// times. It returns the items that parse accepts.
func List[T any](c *Conn, request *nl.NetlinkRequest, parse func(data []byte) (T, bool)) ([]T, error) {
	request.Flags |= unix.NLM_F_DUMP
	var err error
	for range 10 {
		var out []T
		err = c.dump(request, func(data []byte) {
			if v, ok := parse(data); ok {
				out = append(out, v)
			}
		})
		if err == nil {
			return out, nil
		}
		if !errors.Is(err, errInterrupted) {
			break
		}
	}
	return nil, err
}

// dump reads a list once.
func (c *Conn) dump(request *nl.NetlinkRequest, yield func(data []byte)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.buf) < listSize {
		c.buf = make([]byte, listSize)
	}
	if err := c.send([]*nl.NetlinkRequest{request}); err != nil {
		return err
	}
	var done, interrupted bool
	var failed error
	for !done {
		err := c.receive(func(h unix.NlMsghdr, data []byte) {
			if h.Seq != c.seq {
				return
			}
			interrupted = interrupted || h.Flags&unix.NLM_F_DUMP_INTR != 0
			switch h.Type {
			case unix.NLMSG_DONE, unix.NLMSG_ERROR:
				done = true
				failed = ErrorOf(h, data)
			default:
				yield(data)
			}
		})
		if err != nil {
			return err
		}
	}
	if failed == nil && interrupted {
		return errInterrupted
	}
	return failed
}

func (c *Conn) send(requests []*nl.NetlinkRequest) error {
	var batch []byte
	for _, r := range requests {
		c.seq++
		r.Seq = c.seq
		batch = append(batch, r.Serialize()...)
		for len(batch)%unix.NLMSG_ALIGNTO != 0 {
			batch = append(batch, 0)
		}
	}
	for {
		err := unix.Sendto(c.fd, batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// receive reads one datagram and calls yield with each message in it.
func (c *Conn) receive(yield func(h unix.NlMsghdr, data []byte)) error {
	n, _, err := unix.Recvfrom(c.fd, c.buf, 0)
	if errors.Is(err, unix.EINTR) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("receive from netlink: %w", err)
	}
	return Messages(c.buf[:n], yield)
}

// Messages calls yield with the header of each message in a datagram, and what follows it.
func Messages(b []byte, yield func(h unix.NlMsghdr, data []byte)) error {
	for len(b) >= unix.SizeofNlMsghdr {
		h := unix.NlMsghdr{
			Len:   binary.NativeEndian.Uint32(b[0:]),
			Type:  binary.NativeEndian.Uint16(b[4:]),
			Flags: binary.NativeEndian.Uint16(b[6:]),
			Seq:   binary.NativeEndian.Uint32(b[8:]),
			Pid:   binary.NativeEndian.Uint32(b[12:]),
		}
		if h.Len < unix.SizeofNlMsghdr || int(h.Len) > len(b) {
			return fmt.Errorf("receive from netlink: message of %d bytes in %d", h.Len, len(b))
		}
		yield(h, b[unix.SizeofNlMsghdr:h.Len])
		b = b[min(len(b), align(int(h.Len))):]
	}
	return nil
}

func align(n int) int { return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }

// ErrorOf returns the error in an NLMSG_ERROR or NLMSG_DONE message, nil if there is none.
func ErrorOf(h unix.NlMsghdr, data []byte) error {
	if len(data) < 4 {
		return nil
	}
	code := int32(binary.NativeEndian.Uint32(data))
	if code == 0 {
		return nil
	}
	err := unix.Errno(-code)
	const ackTLVs = 0x200 // NLM_F_ACK_TLVS: attributes follow the header we sent
	at := 4
	if h.Type == unix.NLMSG_ERROR {
		at += unix.SizeofNlMsghdr
	}
	if h.Flags&ackTLVs == 0 || len(data) < at {
		return err
	}
	for typ, value := range Attributes(data[at:]) {
		if typ == 1 { // NLMSGERR_ATTR_MSG
			return fmt.Errorf("%w: %s", err, unix.ByteSliceToString(value))
		}
	}
	return err
}

// Attributes yields the types, without flags, and values of the attributes in b, as long as they
// are well-formed.
func Attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.SizeofNlAttr {
			size := int(binary.NativeEndian.Uint16(b))
			typ := binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
			if size < unix.SizeofNlAttr || size > len(b) || !yield(typ, b[unix.SizeofNlAttr:size]) {
				return
			}
			b = b[min(len(b), align(size)):]
		}
	}
}

// Uint32 returns a value of four bytes as a number, 0 for other sizes.
func Uint32(value []byte) uint32 {
	if len(value) != 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(value)
}
