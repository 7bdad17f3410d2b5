package nodes

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/heartbeat"
	"github.com/huskd/husk/internal/network/peer"
)

// The times of a change of a key.
const (
	lookTime = time.Second // between looks at the sessions
	// quietTime is how long no packets may have come by a link before its key is changed, at least.
	// It is several times as long as between two probes of a peer.
	quietTime   = 5 * time.Second
	quietProbes = 5
	// patience is how long a step takes before Status says for which nodes it waits.
	patience = time.Minute
)

// rotation follows how packets move between the two WireGuard links while keys are being changed.
// It decides when this node's own change goes on. It is pure.
type rotation struct {
	// self and peers are those of the last plan that was applied, if a key is being changed.
	self   backend.Self
	peers  []*peer.Node
	active bool
	known  bool // whether any plan was applied

	// heard has when the last packets came by a tunnel that is to be left.
	heard map[backend.TunnelID]heard
	// holdouts are the peers for which the change waits, and since is when this step of it began.
	holdouts []string
	since    time.Time
	said     bool
}

type heard struct {
	bytes int64
	at    time.Time
}

// rotates reports whether this node or a peer is changing its key.
func rotates(self *peer.Node, peers []*peer.Node) bool {
	if self.Rotation == nil {
		return false
	}
	if self.Rotating() {
		return true
	}
	for _, n := range peers {
		if n.Rotating() {
			return true
		}
	}
	return false
}

// follow takes what the last applied plan was made of.
func (r *rotation) follow(self backend.Self, peers []*peer.Node) {
	own := self.Record
	if !own.Rotating() || own.Key() != r.self.Record.Key() || !r.self.Record.Rotating() {
		*r = rotation{heard: map[backend.TunnelID]heard{}} // another step
	}
	r.self, r.peers, r.active, r.known = self, peers, rotates(&own, peers), true
}

// begun reports whether this node still has its old key on the first link.
func (r *rotation) begun() bool { return r.self.Record.Rotation.Key != r.self.Record.Key() }

// ready reports whether this node can go on with the change of its key: all peers that can be
// reached exchange packets with it by the link that stays.
func (r *rotation) ready(now time.Time, sessions map[backend.TunnelID]backend.Session) bool {
	if r.since.IsZero() {
		r.since = now
	}
	r.holdouts = nil
	quiet := max(quietTime, quietProbes*heartbeat.Interval(len(r.peers)))
	for _, n := range r.peers {
		if !r.self.HasSecond(n) {
			continue // an older version of Husk: it follows once the new key is on the first link
		}
		leave, second := r.self.Tunnels(n)
		if !r.begun() {
			leave = second
		}
		id := leave.ID()
		session := sessions[id]
		if !session.Alive {
			delete(r.heard, id)
			continue // it exchanges no packets by the link that is to be left
		}
		if last, ok := r.heard[id]; !ok || last.bytes != session.Received {
			r.heard[id] = heard{session.Received, now}
		}
		if r.self.Second[n.Name] != r.begun() || now.Sub(r.heard[id].at) < quiet {
			r.holdouts = append(r.holdouts, n.Name)
		}
	}
	return len(r.holdouts) == 0
}

// overdue reports, once, that the change has waited for long.
func (r *rotation) overdue(now time.Time) bool {
	if r.said || now.Sub(r.since) < patience {
		return false
	}
	r.said = true
	return true
}

// maxHoldouts is how many nodes a note names.
const maxHoldouts = 5

// notes says for which nodes the change waits, if it does so for long.
func (r *rotation) notes() []string {
	if !r.said || len(r.holdouts) == 0 {
		return nil
	}
	names := strings.Join(r.holdouts[:min(len(r.holdouts), maxHoldouts)], ", ")
	if more := len(r.holdouts) - maxHoldouts; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	remedy := "see whether they reach the store of nodes"
	if r.begun() {
		remedy = fmt.Sprintf("let UDP port %d pass between them, or use husk net rotate-key --now", r.self.Record.Rotation.Port)
	}
	return []string{fmt.Sprintf("the change of this node's WireGuard key waits for %s: %s", names, remedy)}
}

// chooseLinks decides by which WireGuard link packets go to each peer.
func (c *Controller) chooseLinks(self *backend.Self, peers []*peer.Node) error {
	if !rotates(&self.Record, peers) {
		return nil
	}
	sessions, err := c.cfg.Kernel.Sessions()
	if err != nil {
		return err
	}
	self.Second = self.BySecond(peers, sessions)
	return nil
}

// rotate looks at the sessions while a key is being changed, and does this node's next step. It
// reports whether a pass has something to do.
func (c *Controller) rotate(now time.Time) bool {
	r := &c.rotation
	if !r.active {
		return false
	}
	sessions, err := c.cfg.Kernel.Sessions()
	if err != nil || !maps.Equal(r.self.Second, r.self.BySecond(r.peers, sessions)) {
		return true // a pass reports the error
	}
	if !r.self.Record.Rotating() {
		return false
	}
	if !r.ready(now, sessions) {
		return r.overdue(now)
	}
	if err := c.nextStep(); err != nil {
		_ = c.failed(err)
	}
	return true
}

// nextStep goes on with the change of this node's key.
func (c *Controller) nextStep() error {
	if !c.rotation.begun() {
		c.cfg.Log.Info("pod network: the WireGuard key of this node has been changed")
		return c.cfg.Keys.End()
	}
	return c.cfg.Keys.Switch()
}

type rotationRequest struct {
	now    bool
	answer chan error
}

// RotateKey begins to change this node's key of WireGuard, and returns. Packets go on meanwhile. If
// the change has begun and waits for other nodes, now makes it go on without them.
func (c *Controller) RotateKey(ctx context.Context, now bool) error {
	r := rotationRequest{now, make(chan error, 1)}
	select {
	case c.requests <- r:
		return <-r.answer
	case <-ctx.Done():
		return ctx.Err()
	}
}

// changeKey does what RotateKey asks for.
func (c *Controller) changeKey(now bool) error {
	r := &c.rotation
	switch {
	case c.cfg.Keys == nil:
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("this node has no WireGuard key, as with network-backend %q it doesn't use WireGuard", c.cfg.Backend))
	case c.cfg.Ways.Rotation == nil:
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("with network-store %q, the keys of all nodes are written by hand: remove this node's key, restart huskd and write its new one", c.cfg.Store))
	case !r.known:
		return errdefs.ErrUnavailable.WithMessage("the other nodes aren't known yet: try again")
	case r.self.Record.Rotating() && now:
		return c.nextStep()
	case r.self.Record.Rotating():
		return errdefs.ErrFailedPrecondition.WithMessage("the key is being changed already: husk net nodes shows when that is done")
	}
	sessions, err := c.cfg.Kernel.Sessions()
	if err != nil {
		return err
	}
	for _, n := range r.peers {
		if !n.Rotating() || !r.self.HasSecond(n) {
			continue
		}
		// This node's second link has its present key, for the sake of that node. It can't get
		// another one while packets go by it.
		if first, second := r.self.Tunnels(n); sessions[first.ID()].Alive || sessions[second.ID()].Alive {
			return errdefs.ErrUnavailable.WithMessage(fmt.Sprintf("node %s is changing its key: try again in a minute", n.Name))
		}
	}
	c.cfg.Log.Info("pod network: the WireGuard key of this node is being changed")
	return c.cfg.Keys.Begin()
}
