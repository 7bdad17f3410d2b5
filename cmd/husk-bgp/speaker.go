package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	wire "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"

	"github.com/huskd/husk/internal/network/bfd"
	"github.com/huskd/husk/internal/network/bgp"
)

// The times of sessions, in seconds.
const (
	holdTime      = 30
	keepaliveTime = 10
	connectTime   = 3
	// restartTime is how long peers keep the routes of a speaker that was killed (RFC 4724).
	restartTime = 120
	// deferralTime is how long a restarted speaker waits for the routes of a peer that is down.
	deferralTime = 5
)

const (
	// settleTime is how long a speaker waits for the routes of its peers after its start, and
	// quietTime how long for those of a peer that doesn't say when it has sent all.
	settleTime = 10 * time.Second
	quietTime  = 2 * time.Second
	// graceTime is how long a session may be down without being reported.
	graceTime = 10 * time.Second
	// patience is how long a peer that hasn't connected yet is waited for, before it is connected to:
	// one of an earlier version connects with a TTL of 64, but answers with 255. It is short, so that
	// its routes are there before settleTime is over.
	patience = 4 * time.Second
	// leaveTime is how long peers have to read the last withdrawals.
	leaveTime = 300 * time.Millisecond
	// reopenTime is after how long a session that was closed because of maxPrefixes is tried again.
	reopenTime = time.Minute
)

// usualPref is the LOCAL_PREF with which the node's own prefixes are announced.
const usualPref = 100

// maxPrefixes is how many prefixes of a family a peer may announce. A peer that announces more is
// hostile or misconfigured, and its session is closed.
const maxPrefixes = 10000

var families = []wire.Family{wire.RF_IPv4_UC, wire.RF_IPv6_UC}

// speaker makes gobgp do what huskd desires.
type speaker struct {
	changed   chan struct{} // has an item when state may return something new
	restarted bool          // another one ran before on this node

	bgp     *server.BgpServer // nil before the first start
	desired bgp.Desired
	err     error
	settled bool
	begun   time.Time // when bgp was started

	peers    map[netip.Addr]*peer
	prefixes map[netip.Prefix]netip.Addr // next hops
	sent     *sentFamilies
	tries    *tries
	bfd      *bfd.Detector // nil while no peer has BFD
	// distant are the peers without GTSM, from which the sockets that listen take packets of any TTL.
	// It is nil until the sockets are guarded.
	distant []netip.Addr
}

func newSpeaker(restarted bool) *speaker {
	return &speaker{changed: make(chan struct{}, 1), restarted: restarted, tries: newTries()}
}

func (s *speaker) nudge() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// set makes everything as desired.
func (s *speaker) set(d bgp.Desired) {
	if s.bgp != nil && (d.AS != s.desired.AS || d.RouterID != s.desired.RouterID || !slices.Equal(d.Local, s.desired.Local)) {
		s.stop()
	}
	s.desired = d
	s.err = s.apply()
}

// retry tries again what failed, and opens sessions again that were closed for a while.
func (s *speaker) retry() {
	if s.err != nil {
		s.err = s.apply()
	}
	for _, p := range s.peers {
		if p.mustDial(time.Now()) {
			s.err = cmp.Or(s.err, s.dial(p))
		}
		if p.reopen(time.Now()) {
			s.err = cmp.Or(s.err, s.add(p.Peer))
			p.closed, p.removed = time.Now(), s.err != nil
		}
	}
}

// leave withdraws all prefixes and ends all sessions. The withdrawals come first, and get their
// time: a connection that is closed while the peer sends is reset, so the peer may never read that
// the session has ended, and keep the routes as after a crash.
func (s *speaker) leave() {
	if s.bgp != nil && len(s.prefixes) > 0 {
		s.desired.Prefixes = nil
		_ = s.setPrefixes()
		time.Sleep(leaveTime)
	}
	s.stop()
}

// stop ends all sessions; peers remove the routes at once.
func (s *speaker) stop() {
	if s.bgp != nil {
		_ = s.bgp.StopBgp(context.Background(), &api.StopBgpRequest{})
		s.bgp.Stop()
		s.bgp = nil
		s.stopBFD()
	}
}

func (s *speaker) apply() error {
	if s.bgp == nil {
		if err := s.start(); err != nil {
			return err
		}
	}
	// The prefixes come first, so that a new peer is sent all of them before it is told that these
	// are all.
	if err := s.setPrefixes(); err != nil {
		return err
	}
	return s.setPeers()
}

func (s *speaker) start() error {
	tries := newTries()
	b := server.NewBgpServer(server.LoggerOption(slog.New(triesHandler{tries: tries}), &slog.LevelVar{}))
	go b.Serve()
	ctx := context.Background()
	global := &api.Global{Asn: s.desired.AS, RouterId: s.desired.RouterID.String(), ListenPort: 179, UseMultiplePaths: true}
	for _, a := range s.desired.Local {
		global.ListenAddresses = append(global.ListenAddresses, a.String())
	}
	if err := b.StartBgp(ctx, &api.StartBgpRequest{Global: global}); err != nil {
		b.Stop()
		return fmt.Errorf("listen on port 179 of %v: %w: does another BGP speaker run on this node?", s.desired.Local, err)
	}
	s.bgp, s.begun = b, time.Now()
	s.peers, s.prefixes, s.sent = map[netip.Addr]*peer{}, map[netip.Prefix]netip.Addr{}, newSentFamilies()
	s.tries, s.distant = tries, nil
	// A node announces its own blocks only. It must not become a transit for its peers.
	const name = "own"
	policy := &api.Policy{Name: name, Statements: []*api.Statement{{
		Name: name, Conditions: &api.Conditions{RouteType: api.Conditions_ROUTE_TYPE_LOCAL},
		Actions: &api.Actions{RouteAction: api.RouteAction_ROUTE_ACTION_ACCEPT, LocalPref: &api.LocalPrefAction{Value: usualPref}},
	}}}
	if err := b.AddPolicy(ctx, &api.AddPolicyRequest{Policy: policy}); err != nil {
		return err
	}
	if err := b.SetPolicyAssignment(ctx, &api.SetPolicyAssignmentRequest{Assignment: &api.PolicyAssignment{
		Name: "global", Direction: api.PolicyDirection_POLICY_DIRECTION_EXPORT, Policies: []*api.Policy{{Name: name}}, DefaultAction: api.RouteAction_ROUTE_ACTION_REJECT,
	}}); err != nil {
		return err
	}
	sent := s.sent
	return b.WatchEvent(ctx, server.WatchEventMessageCallbacks{
		OnPathUpdate: func([]*apiutil.Path, time.Time) { s.nudge() },
		OnPathEor: func(p *apiutil.Path, _ time.Time) {
			sent.add(p.PeerAddress, p.Family)
			s.nudge()
		},
		OnPeerUpdate: func(e *apiutil.WatchEventMessage_PeerEvent, _ time.Time) {
			if e.Peer.State.SessionState != wire.BGP_FSM_ESTABLISHED {
				sent.reset(e.Peer.State.NeighborAddress)
			}
			tries.reached(e.Peer.State.NeighborAddress, e.Peer.State.SessionState, time.Now())
			s.nudge()
		},
	}, server.WatchPostUpdate(false, "", ""), server.WatchEor(false), server.WatchPeer())
}

func (s *speaker) setPrefixes() error {
	want := map[netip.Prefix]netip.Addr{}
	for _, p := range s.desired.Prefixes {
		if via := s.local(p.Addr().Is6()); via.IsValid() {
			want[p] = via
		} else if p.Addr().Is4() {
			want[p] = s.local(true)
		}
	}
	// New ones come first, so that a prefix that replaces others leaves no gap.
	for p, via := range want {
		if s.prefixes[p] == via {
			continue
		}
		path, err := pathOf(p, via)
		if err != nil {
			return err
		}
		if _, err := s.bgp.AddPath(apiutil.AddPathRequest{Paths: []*apiutil.Path{path}}); err != nil {
			return fmt.Errorf("announce %v: %w", p, err)
		}
		s.prefixes[p] = via
	}
	for p, via := range s.prefixes {
		if want[p].IsValid() {
			continue
		}
		path, err := pathOf(p, via)
		if err != nil {
			return err
		}
		if err := s.bgp.DeletePath(apiutil.DeletePathRequest{Paths: []*apiutil.Path{path}}); err != nil {
			return fmt.Errorf("withdraw %v: %w", p, err)
		}
		delete(s.prefixes, p)
	}
	return nil
}

// local returns the node's address of a family.
func (s *speaker) local(six bool) netip.Addr {
	for _, a := range s.desired.Local {
		if a.Is6() == six {
			return a
		}
	}
	return netip.Addr{}
}

func pathOf(p netip.Prefix, via netip.Addr) (*apiutil.Path, error) {
	nlri, err := wire.NewIPAddrPrefix(p)
	if err != nil {
		return nil, err
	}
	// Nothing that a peer announces is better than the node's own path, which would be withdrawn.
	path := &apiutil.Path{Family: wire.RF_IPv4_UC, Nlri: nlri, Attrs: []wire.PathAttributeInterface{wire.NewPathAttributeOrigin(0), wire.NewPathAttributeLocalPref(math.MaxUint32)}}
	if p.Addr().Is6() {
		path.Family = wire.RF_IPv6_UC
	}
	var hop wire.PathAttributeInterface
	if via.Is4() {
		hop, err = wire.NewPathAttributeNextHop(via)
	} else {
		hop, err = wire.NewPathAttributeMpReachNLRI(path.Family, []wire.PathNLRI{{NLRI: nlri}}, via)
	}
	path.Attrs = append(path.Attrs, hop)
	return path, err
}

func (s *speaker) setPeers() error {
	want := map[netip.Addr]bgp.Peer{}
	for _, p := range s.desired.Peers {
		want[p.Address] = p
	}
	if err := s.guard(want); err != nil {
		return err
	}
	for a, p := range s.peers {
		if p.SameSession(want[a]) {
			p.Node = want[a].Node
			continue
		}
		if !p.removed {
			if err := s.bgp.DeletePeer(context.Background(), &api.DeletePeerRequest{Address: a.String()}); err != nil {
				return fmt.Errorf("remove peer %v: %w", a, err)
			}
		}
		delete(s.peers, a)
		if s.bfd != nil {
			s.bfd.Remove(a)
		}
		s.tries.forget(a)
	}
	for a, p := range want {
		if _, ok := s.peers[a]; ok {
			continue
		}
		if err := s.add(p); err != nil {
			return err
		}
		s.peers[a] = &peer{Peer: p, up: time.Now(), bfd: time.Now()}
	}
	return s.setBFD(want)
}

func (s *speaker) add(p bgp.Peer) error {
	if err := s.bgp.AddPeer(context.Background(), &api.AddPeerRequest{Peer: s.config(p)}); err != nil {
		return fmt.Errorf("add peer %v: %w", p.Address, err)
	}
	return nil
}

// again removes a peer and adds it again, without its routes.
func (s *speaker) again(p *peer) error {
	err := s.bgp.DeletePeer(context.Background(), &api.DeletePeerRequest{Address: p.Address.String()})
	if err == nil {
		next := p.Peer
		next.Passive = p.Passive && !p.dialed
		err = s.add(next)
	}
	if err != nil {
		delete(s.peers, p.Address) // apply adds it again
	}
	return err
}

// config returns the peer as gobgp takes it.
func (s *speaker) config(p bgp.Peer) *api.Peer {
	// A TTL of 1 is what every packet has. gobgp takes 0 for 255.
	least := uint32(1)
	if p.GTSM {
		least = hopLimit
	}
	out := &api.Peer{
		TtlSecurity: &api.TtlSecurity{Enabled: true, TtlMin: least},
		Conf:        &api.PeerConf{NeighborAddress: p.Address.String(), PeerAsn: p.AS, AuthPassword: p.Password},
		Transport:   &api.Transport{PassiveMode: p.Passive},
		Timers: &api.Timers{Config: &api.TimersConfig{
			HoldTime: holdTime, KeepaliveInterval: keepaliveTime, ConnectRetry: connectTime, IdleHoldTimeAfterReset: connectTime,
		}},
		GracefulRestart: &api.GracefulRestart{
			Enabled: true, RestartTime: restartTime, DeferralTime: deferralTime, LocalRestarting: s.restarted && time.Since(s.begun) < deferralTime*time.Second,
		},
	}
	if a := s.local(p.Address.Is6()); a.IsValid() {
		out.Transport.LocalAddress = a.String()
	}
	if p.AS != s.desired.AS {
		// Other nodes of this AS are behind the peer. This node's own blocks are ignored in any case.
		out.Conf.AllowOwnAsn = 1
	}
	for _, f := range families {
		family := &api.Family{Afi: api.Family_Afi(f.Afi()), Safi: api.Family_Safi(f.Safi())}
		out.AfiSafis = append(out.AfiSafis, &api.AfiSafi{
			Config:            &api.AfiSafiConfig{Family: family, Enabled: true},
			MpGracefulRestart: &api.MpGracefulRestart{Config: &api.MpGracefulRestartConfig{Enabled: true}},
			PrefixLimits:      &api.PrefixLimit{Family: family, MaxPrefixes: maxPrefixes},
		})
	}
	return out
}

// state returns what there is.
func (s *speaker) state() bgp.State {
	out := bgp.State{Version: bgp.Version}
	if s.bgp != nil {
		s.endDead()
	}
	if s.err != nil {
		out.Error = s.err.Error()
	}
	if s.bgp == nil {
		return out
	}
	waiting := false
	var exceeded []netip.Addr
	err := s.bgp.ListPeer(context.Background(), &api.ListPeerRequest{}, func(state *api.Peer) {
		address, _ := netip.ParseAddr(state.State.NeighborAddress)
		p := s.peers[address]
		switch {
		case p == nil:
		case state.State.AdminState == api.PeerState_ADMIN_STATE_PFX_CT:
			exceeded = append(exceeded, address)
		default:
			session, complete := s.session(p, state)
			out.Sessions = append(out.Sessions, session)
			waiting = waiting || !complete
		}
	})
	err = errors.Join(err, s.removeExceeded(exceeded))
	for _, p := range s.peers {
		if p.removed {
			out.Sessions = append(out.Sessions, bgp.Session{Address: p.Address, AS: p.AS, Why: tooMany})
		}
	}
	slices.SortFunc(out.Sessions, func(a, b bgp.Session) int { return a.Address.Compare(b.Address) })
	refused := map[netip.Addr]string{}
	for _, f := range families {
		if err == nil {
			err = s.routes(f, &out.Routes, refused)
		}
	}
	s.sayRefused(out.Sessions, refused)
	slices.SortFunc(out.Routes, func(a, b bgp.Route) int { return strings.Compare(a.Prefix.String(), b.Prefix.String()) })
	if err != nil && out.Error == "" {
		out.Error = err.Error()
	}
	s.settled = s.settled || err == nil && (!waiting || time.Since(s.begun) > settleTime)
	out.Settled = s.settled
	return out
}

// routes adds the routes of a family that peers have announced inside the desired subnets. For each
// peer that has announced what isn't its own, refused has an example.
func (s *speaker) routes(f wire.Family, out *[]bgp.Route, refused map[netip.Addr]string) error {
	ofNodes := map[netip.Prefix][]netip.Addr{}
	err := s.bgp.ListPath(apiutil.ListPathRequest{TableType: api.TableType_TABLE_TYPE_GLOBAL, Family: f}, func(nlri wire.NLRI, paths []*apiutil.Path) {
		prefix, err := netip.ParsePrefix(nlri.String())
		if err != nil || !slices.ContainsFunc(s.desired.Inside, func(in netip.Prefix) bool {
			return in.Bits() <= prefix.Bits() && in.Contains(prefix.Addr())
		}) {
			return
		}
		r := bgp.Route{Prefix: prefix}
		_, own := s.prefixes[prefix]
		for _, p := range paths { // the best first
			via, from := nextHop(p), s.peers[p.PeerAddress]
			var blocks []netip.Prefix
			if from != nil && from.Node != nil {
				blocks = from.Node.Announced(prefix, via)
				if example := fmt.Sprintf("%v via %v", prefix, via); len(blocks) == 0 && (refused[from.Address] == "" || example < refused[from.Address]) {
					refused[from.Address] = example
				}
			}
			switch {
			case own || !s.usable(p, prefix):
			case from.Node != nil:
				for _, b := range blocks {
					if !slices.Contains(ofNodes[b], via) {
						ofNodes[b] = append(ofNodes[b], via)
					}
				}
			case (len(r.Via) == 0 || p.Best) && !slices.Contains(r.Via, via):
				r.Via = append(r.Via, via)
			}
		}
		if len(r.Via) > 0 {
			slices.SortFunc(r.Via, netip.Addr.Compare)
			*out = append(*out, r)
		}
	})
	for block, vias := range ofNodes {
		slices.SortFunc(vias, netip.Addr.Compare)
		*out = append(*out, bgp.Route{Prefix: block, Via: vias})
	}
	return err
}

// usable reports whether a path leads somewhere. Those of a peer whose session was closed aren't
// used before it has sent all of them, fewer than too many. Linux has no IPv6 routes by IPv4 next
// hops.
func (s *speaker) usable(p *apiutil.Path, prefix netip.Prefix) bool {
	via := nextHop(p)
	from := s.peers[p.PeerAddress]
	return from != nil && from.closed.IsZero() && !p.IsNexthopInvalid && via.IsGlobalUnicast() && !slices.Contains(s.desired.Local, via) &&
		(via.Is6() || prefix.Addr().Is4())
}

func nextHop(p *apiutil.Path) netip.Addr {
	for _, a := range p.Attrs {
		switch a := a.(type) {
		case *wire.PathAttributeNextHop:
			return a.Value.Unmap()
		case *wire.PathAttributeMpReachNLRI:
			return a.Nexthop.Unmap()
		}
	}
	return netip.Addr{}
}
