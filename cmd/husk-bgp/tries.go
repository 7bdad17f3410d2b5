package main

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	wire "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// tries is what became of the attempts to have sessions with peers.
type tries struct {
	mu    sync.Mutex
	peers map[netip.Addr]try // Invariant: guarded by mu.
}

// try is what became of the attempts with a peer.
type try struct {
	since   time.Time // when its last session came up, even if that has ended
	failure string    // why the last attempt to connect failed
}

func newTries() *tries { return &tries{peers: map[netip.Addr]try{}} }

// reached takes note of a new state of a session.
func (t *tries) reached(peer netip.Addr, state wire.FSMState, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	last := t.peers[peer]
	switch state {
	case wire.BGP_FSM_ESTABLISHED:
		last = try{since: now}
	case wire.BGP_FSM_OPENSENT, wire.BGP_FSM_OPENCONFIRM:
		last.failure = ""
	}
	t.peers[peer] = last
}

func (t *tries) failed(peer netip.Addr, why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	last := t.peers[peer]
	last.failure = why
	t.peers[peer] = last
}

// forget forgets a peer. Its routes are gone, or it is.
func (t *tries) forget(peer netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.peers, peer)
}

// established returns when the last session with a peer came up, whose routes there may still be.
// It is zero if there was none.
func (t *tries) established(peer netip.Addr) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.peers[peer].since
}

// failure returns why the last attempt to connect to a peer failed. It is empty if it hasn't.
func (t *tries) failure(peer netip.Addr) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.peers[peer].failure
}

// closesEarly says that the peer takes connections and ends them without a word.
const closesEarly = "it closes connections at once: does it know this node, or does it wait after an error (BIRD: 1 to 5 minutes, see error wait time)?"

// triesHandler takes from gobgp's log, which is discarded, why it can't connect to a peer. gobgp
// says that nowhere else.
type triesHandler struct {
	tries *tries
	peer  netip.Addr // of which the log is
}

// What gobgp's log says, and the names of attributes in it.
const (
	connectFailed = "failed to connect"
	openFailed    = "outgoing connection IO error"
	peerAttribute = "Key"
	errAttribute  = "Error"
)

func (triesHandler) Enabled(context.Context, slog.Level) bool { return true }

// Handle takes a record of the log.
func (h triesHandler) Handle(_ context.Context, r slog.Record) error {
	if !h.peer.IsValid() {
		return nil
	}
	switch r.Message {
	case openFailed:
		h.tries.failed(h.peer, closesEarly)
	case connectFailed:
		r.Attrs(func(a slog.Attr) bool {
			if a.Key == errAttribute {
				h.tries.failed(h.peer, a.Value.String())
			}
			return true
		})
	}
	return nil
}

// WithAttrs returns a handler that knows whose log it is.
func (h triesHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	for _, a := range attrs {
		if a.Key == peerAttribute {
			h.peer, _ = netip.ParseAddr(a.Value.String())
		}
	}
	return h
}

// WithGroup returns the handler: gobgp has no groups.
func (h triesHandler) WithGroup(string) slog.Handler { return h }
