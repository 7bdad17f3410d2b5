package bfd

import (
	"encoding/binary"
	"errors"
	"time"
)

// state is the state of a session, with the numbers of the protocol.
type state uint8

const (
	adminDown state = iota
	down
	initial
	up
)

// diagnostic says why a session went down, with the numbers of the protocol.
type diagnostic uint8

const (
	diagNone         diagnostic = 0
	diagExpired      diagnostic = 1
	diagNeighborDown diagnostic = 3
	diagAdminDown    diagnostic = 7
)

// packet is a control packet without authentication (RFC 5880, section 4.1).
type packet struct {
	diag        diagnostic
	state       state
	poll, final bool
	demand      bool
	multiplier  uint8
	mine, yours uint32 // discriminators
	// minTx is how often the sender likes to send, and minRx how often it can receive.
	minTx, minRx time.Duration
}

const (
	version    = 1
	packetSize = 24

	flagPoll       = 1 << 5
	flagFinal      = 1 << 4
	flagAuth       = 1 << 2
	flagDemand     = 1 << 1
	flagMultipoint = 1 << 0
)

func (p packet) encode() []byte {
	b := make([]byte, packetSize)
	b[0] = version<<5 | byte(p.diag)
	b[1] = byte(p.state) << 6
	for flag, set := range map[byte]bool{flagPoll: p.poll, flagFinal: p.final, flagDemand: p.demand} {
		if set {
			b[1] |= flag
		}
	}
	b[2], b[3] = p.multiplier, packetSize
	binary.BigEndian.PutUint32(b[4:], p.mine)
	binary.BigEndian.PutUint32(b[8:], p.yours)
	binary.BigEndian.PutUint32(b[12:], uint32(p.minTx.Microseconds()))
	binary.BigEndian.PutUint32(b[16:], uint32(p.minRx.Microseconds()))
	return b
}

var errPacket = errors.New("not a valid BFD packet")

// decode makes the checks of RFC 5880, section 6.8.6, that need no session. Packets with
// authentication are refused, as no session here has any.
func decode(b []byte) (p packet, err error) {
	if len(b) < packetSize || b[0]>>5 != version || b[3] < packetSize || int(b[3]) > len(b) || b[1]&(flagAuth|flagMultipoint) != 0 {
		return p, errPacket
	}
	us := func(i int) time.Duration {
		return time.Duration(binary.BigEndian.Uint32(b[i:])) * time.Microsecond
	}
	p = packet{
		diag: diagnostic(b[0] & 0x1f), state: state(b[1] >> 6),
		poll: b[1]&flagPoll != 0, final: b[1]&flagFinal != 0, demand: b[1]&flagDemand != 0,
		multiplier: b[2], mine: binary.BigEndian.Uint32(b[4:]), yours: binary.BigEndian.Uint32(b[8:]), minTx: us(12), minRx: us(16),
	}
	if p.multiplier == 0 || p.mine == 0 || p.yours == 0 && p.state > down {
		return p, errPacket
	}
	return p, nil
}
