package heartbeat

import (
	"encoding/binary"
	"math"
	"slices"
	"time"

	"github.com/huskd/husk/internal/network/backend"
)

// The kinds of messages. An answer is small: the peer probes the way back itself.
const (
	kindProbe  = 1
	kindAnswer = 2
)

// maxMessage is the size of the largest message without padding.
const maxMessage = header + 255 + 4

// magic begins each message; its last byte is the version.
var magic = [4]byte{'h', 'u', 'b', 1}

// wayNumbers are the ways by their numbers in messages.
var wayNumbers = []backend.Way{backend.Direct, backend.VXLAN, backend.IPIP, backend.WireGuard, backend.BGP}

// header is the size of a message without the name of its node and without padding.
const header = 20

// answerLength is the size of an answer.
const answerLength = header + 4

// message is a probe or an answer. In a datagram it is
//
//	magic     4 bytes
//	kind      1 byte
//	way       1 byte, the index in wayNumbers
//	length    1 byte, of the node's name
//	flags     1 byte
//	nonce     8 bytes
//	sequence  4 bytes, big endian
//	node      the name of the sender of a probe, empty in an answer
//	held      4 bytes in an answer, big endian, of microseconds; earlier versions have none
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
	// held is how long the sender of an answer has had the probe.
	held time.Duration
	// summed means that the packet has its checksum from the sender, not from the network card. It is
	// answered by such a packet. Older versions of Husk ignore it.
	summed bool
}

// flagSummed is message.summed.
const flagSummed = 1

// encode returns the message without padding.
func (m message) encode() []byte {
	node := m.node[:min(len(m.node), 255)]
	out := make([]byte, header+len(node))
	copy(out, magic[:])
	out[4], out[5], out[6] = m.kind, byte(slices.Index(wayNumbers, m.way)), byte(len(node))
	if m.summed {
		out[7] |= flagSummed
	}
	copy(out[8:], m.nonce[:])
	binary.BigEndian.PutUint32(out[16:], m.seq)
	copy(out[header:], node)
	if m.kind == kindAnswer {
		out = binary.BigEndian.AppendUint32(out, uint32(min(m.held.Microseconds(), math.MaxUint32)))
	}
	return out
}

// parse is the inverse of encode, and ignores padding. It returns false for anything else.
func parse(b []byte) (m message, ok bool) {
	if len(b) < header || [4]byte(b) != magic || int(b[5]) >= len(wayNumbers) || len(b) < header+int(b[6]) {
		return m, false
	}
	rest := b[header:]
	m = message{kind: b[4], way: wayNumbers[b[5]], nonce: [8]byte(b[8:]), seq: binary.BigEndian.Uint32(b[16:]), node: string(rest[:b[6]]), summed: b[7]&flagSummed != 0}
	if rest = rest[b[6]:]; m.kind == kindAnswer && len(rest) >= 4 {
		m.held = time.Duration(binary.BigEndian.Uint32(rest)) * time.Microsecond
	}
	return m, true
}
