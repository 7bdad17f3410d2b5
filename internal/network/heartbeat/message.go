package heartbeat

import (
	"encoding/binary"
	"slices"

	"github.com/huskd/husk/internal/network/backend"
)

// The kinds of messages. An answer is small: the peer probes the way back itself.
const (
	kindProbe  = 1
	kindAnswer = 2
)

// magic begins each message; its last byte is the version.
var magic = [4]byte{'h', 'u', 'b', 1}

// wayNumbers are the ways by their numbers in messages.
var wayNumbers = []backend.Way{backend.Direct, backend.VXLAN, backend.IPIP, backend.WireGuard, backend.BGP}

// header is the size of a message without the name of its node and without padding.
const header = 20

// message is a probe or an answer. In a datagram it is
//
//	magic     4 bytes
//	kind      1 byte
//	way       1 byte, the index in wayNumbers
//	length    1 byte, of the node's name
//	reserved  1 byte
//	nonce     8 bytes
//	sequence  4 bytes, big endian
//	node      the name of the sender of a probe, empty in an answer
//
// and padding.
type message struct {
	kind byte
	way  backend.Way
	// nonce is the sender's of the probe. The answer repeats it, which keeps others from answering
	// for a peer.
	nonce [8]byte
	seq   uint32
	node  string
}

// encode returns the message as a datagram of a size, or larger if it needs more.
func (m message) encode(size int) []byte {
	node := m.node[:min(len(m.node), 255)]
	out := make([]byte, max(size, header+len(node)))
	copy(out, magic[:])
	out[4], out[5], out[6] = m.kind, byte(slices.Index(wayNumbers, m.way)), byte(len(node))
	copy(out[8:], m.nonce[:])
	binary.BigEndian.PutUint32(out[16:], m.seq)
	copy(out[header:], node)
	return out
}

// parse is the inverse of encode. It returns false for anything else.
func parse(b []byte) (m message, ok bool) {
	if len(b) < header || [4]byte(b) != magic || int(b[5]) >= len(wayNumbers) || len(b) < header+int(b[6]) {
		return m, false
	}
	return message{b[4], wayNumbers[b[5]], [8]byte(b[8:]), binary.BigEndian.Uint32(b[16:]), string(b[header : header+int(b[6])])}, true
}
