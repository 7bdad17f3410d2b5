package main

import (
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	wire "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/huskd/husk/internal/network/bgp"
)

// up returns the state of a session that is up, with what the peer is capable of.
func up(t *testing.T, at netip.Addr, capabilities ...wire.ParameterCapabilityInterface) *api.Peer {
	t.Helper()
	remote, err := apiutil.MarshalCapabilities(capabilities)
	if err != nil {
		t.Fatal(err)
	}
	return &api.Peer{
		State:  &api.PeerState{NeighborAddress: at.String(), SessionState: api.PeerState_SESSION_STATE_ESTABLISHED, RemoteCap: remote},
		Timers: &api.Timers{State: &api.TimersState{Uptime: timestamppb.Now()}},
	}
}

var (
	four     = wire.NewCapMultiProtocol(wire.RF_IPv4_UC)
	six      = wire.NewCapMultiProtocol(wire.RF_IPv6_UC)
	graceful = wire.NewCapGracefulRestart(true, false, 120, nil) // it has restarted, and keeps no routes
)

// TestSentAll checks when a peer has sent all its routes.
func TestSentAll(t *testing.T) {
	at := netip.MustParseAddr("192.0.2.1")
	s := newSentFamilies()
	session := up(t, at, four, six, graceful)
	if s.all(session) {
		t.Error("before the first family")
	}
	s.add(at, wire.RF_IPv4_UC)
	if s.all(session) {
		t.Error("after one of two families")
	}
	if !s.all(up(t, at, four, graceful)) {
		t.Error("after the only family")
	}
	s.add(at, wire.RF_IPv6_UC)
	if !s.all(session) {
		t.Error("after both families")
	}
	s.reset(at)
	if s.all(session) {
		t.Error("in another session")
	}
	silent := up(t, at, four)
	if s.all(silent) {
		t.Error("of a peer that doesn't say it, at once")
	}
	silent.Timers.State.Uptime = timestamppb.New(time.Now().Add(-2 * quietTime))
	if !s.all(silent) {
		t.Error("of a peer that doesn't say it, later")
	}
}

// TestProbation checks that the routes of a peer that has announced too many aren't used before it
// has sent all of them in another session, and that its line stays until then.
func TestProbation(t *testing.T) {
	at := netip.MustParseAddr("192.0.2.1")
	now := time.Now()
	p := &peer{Peer: bgp.Peer{Address: at, AS: 65000}, up: now, bfd: now, closed: now, removed: true}
	s := newSpeaker(false)
	s.peers, s.sent = map[netip.Addr]*peer{at: p}, newSentFamilies()
	hop, err := wire.NewPathAttributeNextHop(at)
	if err != nil {
		t.Fatal(err)
	}
	path := &apiutil.Path{PeerAddress: at, Attrs: []wire.PathAttributeInterface{hop}}
	if p.reopen(now.Add(reopenTime - 1)) {
		t.Error("it is tried again too early")
	}
	if !p.reopen(now.Add(reopenTime)) {
		t.Error("it isn't tried again")
	}
	p.removed = false
	session := up(t, at, four, graceful)
	if got, complete := s.session(p, session); got.Up || got.Why != tooMany || !complete || s.usable(path, netip.MustParsePrefix("10.201.1.0/24")) {
		t.Errorf("before it has sent all: %+v, complete: %t, usable: %t", got, complete, s.usable(path, netip.MustParsePrefix("10.201.1.0/24")))
	}
	s.sent.add(at, wire.RF_IPv4_UC)
	if got, complete := s.session(p, session); !got.Up || got.Why != "" || !complete || !s.usable(path, netip.MustParsePrefix("10.201.1.0/24")) {
		t.Errorf("when it has sent all: %+v, complete: %t, usable: %t", got, complete, s.usable(path, netip.MustParsePrefix("10.201.1.0/24")))
	}
}

// TestLacks checks what is said about a session that is up.
func TestLacks(t *testing.T) {
	at := netip.MustParseAddr("2001:db8::1")
	s := newSpeaker(false)
	s.prefixes = map[netip.Prefix]netip.Addr{netip.MustParsePrefix("10.201.1.0/24"): netip.MustParseAddr("2001:db8::2")}
	p := &peer{Peer: bgp.Peer{Address: at, AS: 65000, BFD: true}, bfd: time.Now()}
	if s.lacks(p, up(t, at, four)) == "" {
		t.Error("nothing is said about a peer that takes no IPv6 next hops")
	}
	able := up(t, at, four, wire.NewCapExtendedNexthop([]*wire.CapExtendedNexthopTuple{wire.NewCapExtendedNexthopTuple(wire.RF_IPv4_UC, wire.AFI_IP6)}))
	if why := s.lacks(p, able); why != "" {
		t.Errorf("BFD may not be up yet: %s", why)
	}
	p.bfd = p.bfd.Add(-2 * graceTime)
	if s.lacks(p, able) == "" {
		t.Error("nothing is said about a peer without BFD")
	}
}

// TestDown checks what is said about a peer without a session.
func TestDown(t *testing.T) {
	refused, silent := "dial tcp 192.0.2.2:0->192.0.2.1:179: connect: connection refused", "dial tcp 192.0.2.2:0->192.0.2.1:179: i/o timeout"
	for _, c := range []struct {
		known              bool
		why, failure, want string
	}{
		{false, "", "", "it doesn't answer: is a speaker there, does it know this node, and has it the same password?"},
		{false, "", silent, "it doesn't answer: is a speaker there, does it know this node, and has it the same password?"},
		{false, "", refused, "it refuses connections: does a BGP speaker run there?"},
		{false, "notification-received", "", "notification-received"},
		{true, "", "", "it doesn't connect"},
		{true, "", silent, "it doesn't answer"},
		{true, "BFD has ended the session", refused, "BFD has ended the session; it refuses connections: does a BGP speaker run there?"},
		{true, "BFD has ended the session", silent, "BFD has ended the session; it doesn't answer"},
		{true, "hold-timer-expired", "", "hold-timer-expired"},
	} {
		tries := newTries()
		at := netip.MustParseAddr("192.0.2.1")
		if c.failure != "" {
			slog.New(triesHandler{tries: tries}).With(peerAttribute, at.String()).Debug(connectFailed, errAttribute, c.failure)
		}
		if got := (&peer{known: c.known, why: c.why}).down(tries.failure(at)); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
		if tries.reached(at, wire.BGP_FSM_OPENSENT, time.Now()); tries.failure(at) != "" {
			t.Errorf("a connection hasn't made %q forgotten", c.failure)
		}
	}
}

// TestClosesEarly connects to a peer that takes connections and closes them.
func TestClosesEarly(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 1)) // it has been greeted
			_ = conn.Close()
		}
	}()
	tries, at := newTries(), netip.MustParseAddr("127.0.0.1")
	b := server.NewBgpServer(server.LoggerOption(slog.New(triesHandler{tries: tries}), nil))
	go b.Serve()
	defer b.Stop()
	if err := b.StartBgp(t.Context(), &api.StartBgpRequest{Global: &api.Global{Asn: 64512, RouterId: "192.0.2.1", ListenPort: -1}}); err != nil {
		t.Fatal(err)
	}
	if err := b.AddPeer(t.Context(), &api.AddPeerRequest{Peer: &api.Peer{
		Conf:      &api.PeerConf{NeighborAddress: at.String(), PeerAsn: 65000},
		Transport: &api.Transport{RemotePort: uint32(l.Addr().(*net.TCPAddr).Port)},
		Timers:    &api.Timers{Config: &api.TimersConfig{ConnectRetry: 1, IdleHoldTimeAfterReset: 1}},
	}}); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); tries.failure(at) != closesEarly; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the attempt has failed because %q", tries.failure(at))
		}
	}
	for want, p := range map[string]*peer{
		closesEarly: {},
		"BFD has ended the session; " + closesEarly: {known: true, why: "BFD has ended the session"},
	} {
		if got := p.down(tries.failure(at)); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestTries checks until when it is known that a peer had a session.
func TestTries(t *testing.T) {
	tries, at, now := newTries(), netip.MustParseAddr("192.0.2.1"), time.Now()
	if tries.reached(at, wire.BGP_FSM_OPENCONFIRM, now); !tries.established(at).IsZero() {
		t.Error("before the session is up")
	}
	tries.reached(at, wire.BGP_FSM_ESTABLISHED, now)
	if tries.reached(at, wire.BGP_FSM_IDLE, now.Add(time.Second)); !tries.established(at).Equal(now) {
		t.Error("after its end, when its routes may be kept")
	}
	if tries.forget(at); !tries.established(at).IsZero() {
		t.Error("when its routes are gone")
	}
}

// TestMustDial checks when a passive peer is connected to.
func TestMustDial(t *testing.T) {
	now := time.Now()
	late := now.Add(patience)
	p := &peer{Peer: bgp.Peer{Passive: true}}
	if p.mustDial(late) {
		t.Error("before it was waited for")
	}
	p.await(api.PeerState_SESSION_STATE_ACTIVE, now)
	p.await(api.PeerState_SESSION_STATE_ACTIVE, late)
	if p.mustDial(late.Add(-1)) || !p.mustDial(late) {
		t.Error("it isn't connected to after its time")
	}
	p.await(api.PeerState_SESSION_STATE_OPENSENT, late)
	if p.mustDial(late.Add(time.Hour)) {
		t.Error("while it connects")
	}
	p.await(api.PeerState_SESSION_STATE_ESTABLISHED, late)
	p.await(api.PeerState_SESSION_STATE_IDLE, now)
	if p.mustDial(late) || !p.mustDial(now.Add(restartTime*time.Second)) {
		t.Error("after a session, its routes aren't kept for the time of a restart")
	}
	p.dialed = true
	if p.mustDial(now.Add(time.Hour)) {
		t.Error("twice")
	}
	if active := (&peer{waiting: now}); active.mustDial(now.Add(time.Hour)) {
		t.Error("one that is connected to in any case")
	}
}
