// Package lease keeps this node's claims to blocks of pod addresses, in a store that all nodes of a
// cluster share. Its Keeper implements peer.Registry over any Store.
//
// Package claim decides; this package runs what it decides. Pods don't depend on the store: the
// node gives out addresses of its blocks alone, and goes on doing so for almost as long as the
// session's TTL while the store is away.
package lease

import (
	"context"
	"net/netip"
	"time"

	"github.com/huskd/husk/internal/network/lease/claim"
	"github.com/huskd/husk/internal/network/peer"
)

// Store is what all nodes share. Its methods are linearizable, and each may have taken effect
// though it failed. Package leasetest tests implementations.
type Store interface {
	Sessions
	// Write writes the record of a node, bound to the session. Its blocks are not in it. It fails
	// with claim.ErrConflict unless the record in the store has the given revision, which is 0 if
	// there is none. It returns the new revision.
	Write(ctx context.Context, session claim.Session, record peer.Node, revision int64) (int64, error)
	// Bind binds a block to the session, and succeeds if it is bound to it already. It fails with a
	// claim.TakenError if the block overlaps another claim, and with claim.ErrLost if the session
	// has ended. It may fail with claim.ErrSettling unless again says that pods may have addresses
	// of the block.
	Bind(ctx context.Context, c claim.Claim, again bool) error
	// Free gives a block back, and succeeds if it isn't bound to the session.
	Free(ctx context.Context, session claim.Session, block netip.Prefix) error
	// Move replaces the record of a node's former name by one that is bound to the session, binds the
	// blocks of the former session to it, and ends the former session. Others see that as one change.
	// It fails with claim.ErrConflict unless both records have the given revisions, and the former
	// record and the blocks are bound to the former session. It returns the new record's revision.
	Move(ctx context.Context, session claim.Session, record peer.Node, revision int64, from claim.From) (int64, error)
	// Follow calls update with the whole content, and again when that has changed, until ctx ends or
	// it fails. It may leave out states that lasted shortly, but never the latest. An update may be
	// older than what the other methods returned.
	Follow(ctx context.Context, update func(claim.Snapshot)) error
}

// Sessions are what claims and records are bound to.
type Sessions interface {
	// Keep prolongs a session, or begins one if it is empty, and returns which of the blocks are
	// bound to it. It fails with claim.ErrLost if the session has ended.
	Keep(ctx context.Context, session claim.Session, blocks []netip.Prefix) (claim.Kept, error)
	// Prolonged returns how long ago a session was last prolonged, to about a second. It fails with
	// claim.ErrLost if the session has ended.
	Prolonged(ctx context.Context, session claim.Session) (ago time.Duration, err error)
	// End ends a session with all that is bound to it. It succeeds if the session has ended.
	End(ctx context.Context, session claim.Session) error
	// Revive begins a session that the store has lost once more, and succeeds if it is there. It fails
	// with claim.ErrLost if that can't be done.
	Revive(ctx context.Context, session claim.Session) error
}

// Journal keeps a Keeper's state over restarts of huskd and reboots of the node.
type Journal interface {
	// Load returns what was last saved, and the zero value if nothing was.
	Load() (claim.Saved, error)
	Save(claim.Saved) error
}

// Clock is the node's clock.
type Clock interface {
	Now() claim.Instant
}
