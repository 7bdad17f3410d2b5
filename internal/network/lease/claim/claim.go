// Package claim decides how a node claims, keeps and gives back its blocks of pod addresses in a
// store that all nodes share. It is pure: State takes what has happened and says what to do next.
//
// A node binds its record and its blocks to a session, which ends in the store a while after the
// node last prolonged it. Only then can another node claim the blocks. The node counts that while
// itself, from before it sent the request, and stops giving out addresses some time earlier. So no
// address is ever given out by two nodes, however late messages are and however wrong clocks run
// within the margin.
package claim

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/huskd/husk/internal/network/peer"
)

// Session is what a node's record and blocks are bound to. They leave the store when it ends. The
// empty Session is none.
type Session string

// Claim is a block that a node has.
type Claim struct {
	Block netip.Prefix
	Node  string
	// Session is empty if the claim doesn't end by itself.
	Session Session
}

// Record is a node's record. Its blocks are in Snapshot.Claims and not in Node.
type Record struct {
	Node    peer.Node
	Session Session
	// Revision changes whenever the record is written.
	Revision int64
}

// Snapshot is the whole content of a store at one moment.
type Snapshot struct {
	Records []*Record // in the order of their names; never modified
	Claims  []Claim
	// Notes say what in the store can't be used and why.
	Notes []string
	// Rewinds counts how often the store is known to have lost what was written into it. What a
	// snapshot lacks of the one before was deleted on purpose, or with its session, unless this has
	// grown.
	Rewinds int
}

// Kept is a session that was prolonged.
type Kept struct {
	Session Session
	// TTL is how long after the request the session ends, unless it is prolonged again.
	TTL time.Duration
	// Bound are the blocks that are bound to the session.
	Bound []netip.Prefix
}

// Errors of stores. All others mean that the store may or may not have done what it was asked to.
var (
	ErrLost     = errors.New("the session has ended")
	ErrConflict = errors.New("the record was changed meanwhile")
	ErrSettling = errors.New("the store lost its latest changes: no blocks are claimed for the first time until all nodes had time to claim theirs again")
)

// TakenError means that a block can't be claimed because of another claim.
type TakenError struct{ By Claim }

// Error names the claim.
func (e *TakenError) Error() string {
	return fmt.Sprintf("block %v belongs to node %s", e.By.Block, e.By.Node)
}

// Until returns when, on the node's clock, a session can't be relied on any more that the node
// asked the store to prolong at sent. The margin covers two clocks that differ by 2 % and the time
// between checking and using an address.
func Until(sent, ttl time.Duration) time.Duration { return sent + ttl - ttl/50 - time.Second }

// afterReboot returns how much longer a session can be relied on after a reboot, as far as the wall
// clock can tell. That clock may have been set: only half of the TTL counts.
func afterReboot(sent, now time.Time, ttl time.Duration) time.Duration {
	if sent.IsZero() || now.Before(sent) {
		return 0
	}
	return max(0, ttl/2-now.Sub(sent))
}

// Saved is what a node keeps on disk, so that it can go on after a restart without the store.
type Saved struct {
	Node      string       `json:"node"`
	Boot      string       `json:"boot"`
	Addresses []netip.Addr `json:"addresses,omitempty"`
	Session   Session      `json:"session,omitempty"`
	// Blocks are bound to the session. Unbound aren't, but pods may have addresses of them.
	Blocks  []netip.Prefix `json:"blocks,omitempty"`
	Unbound []netip.Prefix `json:"unbound,omitempty"`
	// Until is when the session can't be relied on any more, since the boot.
	Until time.Duration `json:"until"`
	// Sent is when the session was last prolonged, and TTL for how long.
	Sent time.Time     `json:"sent,omitzero"`
	TTL  time.Duration `json:"ttl,omitempty"`
}

// Instant is one moment on the node's clocks.
type Instant struct {
	// Boot is the time since the boot, including suspension.
	Boot time.Duration
	// Wall is the zero Time if the wall clock isn't synchronized.
	Wall time.Time
}
