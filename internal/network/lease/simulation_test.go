package lease_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/huskd/husk/internal/network/lease"
	"github.com/huskd/husk/internal/network/lease/claim"
	"github.com/huskd/husk/internal/network/lease/leasetest"
	"github.com/huskd/husk/internal/network/peer"
)

var (
	seed  = flag.Uint64("seed", 0, "simulate only this seed, and print what happens")
	steps = flag.Int("steps", 0, "simulate that many steps; 0 is for some seconds")
)

// The simulated cluster has as many blocks as nodes, so that every block is wanted.
var simPool = claim.Pool{Subnets: []netip.Prefix{netip.MustParsePrefix("10.201.0.0/21")}}

const (
	simNodes = 8
	simTTL   = time.Minute
	simTime  = 10 * time.Minute
)

// bug is a mistake that the simulation must find.
type bug struct {
	blind bool
	fence func(sent, answered, ttl time.Duration) time.Duration
}

// simulation is a cluster of Keepers in virtual time, with one store and a link to it from each.
type simulation struct {
	t       *testing.T
	bug     bug
	store   *leasetest.Fake
	began   time.Time
	tracing bool
	steps   atomic.Int64
	names   *rand.Rand // which nodes get another name; nil if none does

	mu    sync.Mutex // Invariant: guards the fields below.
	nodes []*simNode
	wrong string // the first violation
	able  int    // sum over the steps of the nodes that had a block to use
	trace []string
}

// simNode is a node. Its fields but link don't change while it runs.
type simNode struct {
	sim     *simulation
	name    string
	boot    string
	address netip.Addr
	rate    float64 // of its clock
	journal *leasetest.Journal
	link    *link
	keeper  *lease.Keeper
	cancel  context.CancelFunc
	ended   chan struct{}

	mu    sync.Mutex
	views int
	last  peer.View // Invariant: guarded by mu.
}

// link is the way between a node and the store.
type link struct {
	*leasetest.Fake
	sim  *simulation
	mu   sync.Mutex
	rng  *rand.Rand
	slow time.Duration // the longest delay of a message
	loss float64
	cut  bool
	// loseMove means that the answer to the next Move is lost.
	loseMove bool
}

// transit delays a message, or holds it until ctx ends if it gets lost.
func (l *link) transit(ctx context.Context) error {
	l.mu.Lock()
	lost := l.cut || l.rng.Float64() < l.loss
	delay := time.Duration(l.rng.Int64N(int64(l.slow) + 1))
	l.mu.Unlock()
	if lost {
		<-ctx.Done()
		return errors.New("no answer")
	}
	select {
	case <-time.After(delay):
		return nil
	case <-ctx.Done():
		return errors.New("no answer in time")
	}
}

// over runs a call over the link. It may take effect though its answer is late or lost.
func over[T any](ctx context.Context, l *link, call func() (T, error)) (result T, err error) {
	if err := l.transit(ctx); err != nil {
		return result, err
	}
	result, err = call()
	l.sim.check()
	if err := l.transit(ctx); err != nil {
		return *new(T), err
	}
	return result, err
}

func (l *link) Keep(ctx context.Context, s claim.Session, blocks []netip.Prefix) (claim.Kept, error) {
	return over(ctx, l, func() (claim.Kept, error) { return l.Fake.Keep(ctx, s, blocks) })
}

func (l *link) Write(ctx context.Context, s claim.Session, r peer.Node, revision int64) (int64, error) {
	return over(ctx, l, func() (int64, error) { return l.Fake.Write(ctx, s, r, revision) })
}

func (l *link) Bind(ctx context.Context, c claim.Claim, again bool) error {
	_, err := over(ctx, l, func() (int, error) { return 0, l.Fake.Bind(ctx, c, again) })
	return err
}

func (l *link) Free(ctx context.Context, s claim.Session, b netip.Prefix) error {
	_, err := over(ctx, l, func() (int, error) { return 0, l.Fake.Free(ctx, s, b) })
	return err
}

func (l *link) Prolonged(ctx context.Context, s claim.Session) (time.Duration, error) {
	return over(ctx, l, func() (time.Duration, error) { return l.Fake.Prolonged(ctx, s) })
}

func (l *link) Revive(ctx context.Context, s claim.Session) error {
	_, err := over(ctx, l, func() (int, error) { return 0, l.Fake.Revive(ctx, s) })
	return err
}

func (l *link) Move(ctx context.Context, s claim.Session, r peer.Node, revision int64, from claim.From) (int64, error) {
	return over(ctx, l, func() (int64, error) {
		now, err := l.Fake.Move(ctx, s, r, revision, from)
		l.mu.Lock()
		lose := l.loseMove
		l.loseMove = false
		l.mu.Unlock()
		if lose {
			<-ctx.Done()
		}
		return now, err
	})
}

func (l *link) Follow(ctx context.Context, update func(claim.Snapshot)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return l.Fake.Follow(ctx, func(s claim.Snapshot) {
		within, done := context.WithTimeout(ctx, 20*time.Second)
		defer done()
		if l.transit(within) != nil {
			cancel() // the connection breaks
			return
		}
		update(s)
	})
}

func (n *simNode) Now() claim.Instant {
	since := time.Since(n.sim.began)
	return claim.Instant{Boot: time.Hour + time.Duration(float64(since)*n.rate), Wall: time.Now()}
}

// start starts the node's Keeper.
func (n *simNode) start() {
	k, err := lease.New(lease.Config{
		Config: claim.Config{Node: n.name, Boot: n.boot, Pool: simPool, Store: "the store"},
		Store:  n.link, Journal: n.journal, Clock: n, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		n.sim.t.Fatal(err)
	}
	if n.sim.bug.fence != nil {
		k.SetFence(n.sim.bug.fence)
	}
	k.Announce(peer.Node{Addresses: []netip.Addr{n.address}})
	ctx, cancel := context.WithCancel(context.Background())
	n.keeper, n.cancel, n.ended = k, cancel, make(chan struct{})
	ended := n.ended
	go func() {
		defer close(ended)
		if err := k.Run(ctx, n.update); err != nil {
			n.sim.t.Error(err)
		}
	}()
}

func (n *simNode) update(v peer.View) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.views, n.last = n.views+1, v
}

func (n *simNode) view() peer.View {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.last
}

// stop stops the node's Keeper, as when its huskd is killed.
func (n *simNode) stop() {
	if n.cancel != nil {
		n.cancel()
		<-n.ended
		n.cancel = nil
	}
}

// newSimulation returns a cluster of nodes that haven't started.
func newSimulation(t *testing.T, rng *rand.Rand, b bug, nodes int) *simulation {
	s := &simulation{t: t, bug: b, began: time.Now(), store: &leasetest.Fake{TTL: simTTL, Rate: 0.99 + 0.02*rng.Float64(), Settle: 30 * time.Second, BlindRenew: b.blind}}
	for i := range nodes {
		s.nodes = append(s.nodes, s.newNode(rng, i))
	}
	return s
}

func (s *simulation) newNode(rng *rand.Rand, i int) *simNode {
	return &simNode{
		sim: s, name: fmt.Sprintf("n%d", i), boot: fmt.Sprintf("boot-%d-1", i), address: netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}),
		rate: 0.99 + 0.02*rng.Float64(), journal: new(leasetest.Journal),
		link: &link{Fake: s.store, sim: s, rng: rand.New(rand.NewPCG(rng.Uint64(), 0)), slow: 10 * time.Millisecond},
	}
}

func (s *simulation) note(format string, args ...any) {
	if s.tracing {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.trace = append(s.trace, fmt.Sprintf("%8.3fs ", time.Since(s.began).Seconds())+fmt.Sprintf(format, args...))
	}
}

// check is the oracle: no address block is allocatable by two nodes at once.
func (s *simulation) check() {
	s.steps.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	users := map[netip.Prefix]*simNode{}
	for _, n := range s.nodes {
		if n.keeper == nil {
			continue
		}
		usable := n.keeper.Usable()
		if len(usable) > 0 {
			s.able++
		}
		for _, b := range usable {
			if other := users[b]; other != nil && s.wrong == "" {
				s.wrong = fmt.Sprintf("after %.3f s, %s and %s may give out addresses of %v; the store gave it to %+v", time.Since(s.began).Seconds(), other.name, n.name, b, s.store.Holder(b))
			}
			users[b] = n
		}
	}
}

// schedule does what may go wrong to the cluster, for simTime.
func (s *simulation) schedule(rng *rand.Rand) {
	for _, n := range s.nodes {
		n.link.loss = 0.05
		n.link.slow = time.Duration(rng.Int64N(int64(4400 * time.Millisecond)))
		n.start()
	}
	for time.Since(s.began) < simTime && s.violation() == "" {
		time.Sleep(time.Duration(rng.Int64N(int64(3 * time.Second))))
		s.check()
		n := s.nodes[rng.IntN(len(s.nodes))]
		switch rng.IntN(10) {
		case 0, 1, 2:
			s.setLink(n, rng, rng.IntN(2) == 0)
		case 3, 4, 5, 6:
			s.use(n, rng)
		case 7:
			s.note("%s: its huskd is killed and starts again", n.name)
			s.replace(n, s.rename)
		case 8:
			s.note("%s: reboots", n.name)
			s.replace(n, func(next *simNode) { next.boot += "+"; s.rename(next) })
		case 9:
			s.note("%s: is replaced by a new machine with its name", n.name)
			s.replace(n, func(next *simNode) {
				next.boot, next.journal = next.boot+"x", new(leasetest.Journal)
				next.address = netip.AddrFrom4([4]byte{192, 0, byte(3 + rng.IntN(2)), next.address.As4()[3]})
			})
		}
		s.check()
	}
}

// rename gives a node another name, sometimes.
func (s *simulation) rename(next *simNode) {
	if s.names != nil && s.names.IntN(3) == 0 {
		next.name += "r"
		s.note("it has the name %s now", next.name)
	}
}

// heal mends all links, and checks that the cluster recovers: each node can use all of its blocks,
// no claim is left that nobody uses, and no node is without a block while one is free.
func (s *simulation) heal() {
	for _, n := range s.nodes {
		n.link.mu.Lock()
		n.link.cut, n.link.loss, n.link.slow = false, 0, 10*time.Millisecond
		n.link.mu.Unlock()
	}
	time.Sleep(5 * simTTL) // sessions of machines that are gone end
	s.check()
	s.mu.Lock()
	defer s.mu.Unlock()
	wrong := func(format string, args ...any) {
		if s.wrong == "" {
			s.wrong = fmt.Sprintf("after the links were mended: "+format, args...)
		}
	}
	claims := s.store.Claims()
	used := 0
	for _, n := range s.nodes {
		usable, view := n.keeper.Usable(), n.view()
		used += len(usable)
		if len(usable) != len(view.Blocks) {
			wrong("%s may use %v of its blocks %v: %v", n.name, usable, view.Blocks, view.Notes)
		}
		if len(usable) == 0 && len(claims) < simNodes {
			wrong("%s has no block, though only %v are claimed: %v", n.name, claims, view.Notes)
		}
		if len(view.Peers) != len(s.nodes)-1 {
			wrong("%s sees %d peers: %v", n.name, len(view.Peers), view.Notes)
		}
	}
	if used != len(claims) {
		wrong("%d blocks are used, and claimed are %v", used, claims)
	}
}

func (s *simulation) setLink(n *simNode, rng *rand.Rand, cut bool) {
	n.link.mu.Lock()
	defer n.link.mu.Unlock()
	n.link.cut = cut
	n.link.slow = time.Duration(rng.Int64N(int64(4400 * time.Millisecond)))
	s.note("%s: link cut %v, delay up to %v", n.name, cut, n.link.slow)
}

// use tells a node that its blocks are full or empty.
func (s *simulation) use(n *simNode, rng *rand.Rand) {
	used := []int{0, 1, 250}[rng.IntN(3)]
	var usage []peer.Usage
	for _, b := range n.view().Blocks {
		usage = append(usage, peer.Usage{Block: b, Size: 254, Used: used})
	}
	if n.keeper != nil {
		n.keeper.Used(usage)
	}
	s.note("%s: uses %d addresses in each of %v", n.name, used, n.view().Blocks)
}

// replace stops a node and starts the one that comes after it.
func (s *simulation) replace(n *simNode, change func(next *simNode)) {
	n.stop()
	next := &simNode{sim: s, name: n.name, boot: n.boot, address: n.address, rate: n.rate, journal: n.journal, link: n.link}
	change(next)
	s.mu.Lock()
	s.nodes[slices.Index(s.nodes, n)] = next
	s.mu.Unlock()
	next.start()
}

func (s *simulation) violation() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wrong
}

func (s *simulation) stop() {
	for _, n := range s.nodes {
		n.stop()
	}
}

// simulate runs one seed, and returns how many steps it took, how many nodes could start pods on
// average, and what went wrong.
func simulate(t *testing.T, seed uint64, b bug, tracing bool) (steps int, able float64, wrong string) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(seed, 12))
		s := newSimulation(t, rng, b, simNodes)
		if s.tracing = tracing; !b.blind && b.fence == nil {
			s.names = rand.New(rand.NewPCG(seed, 13))
		}
		s.schedule(rng)
		if s.violation() == "" {
			s.heal()
		}
		s.stop()
		for _, line := range s.trace {
			t.Log(line)
		}
		steps, wrong = int(s.steps.Load()), s.violation()
		able = float64(s.able) / float64(steps)
	})
	return steps, able, wrong
}

// TestSimulation: whatever happens to nodes, links and clocks, no block is allocatable by two.
func TestSimulation(t *testing.T) {
	if *seed != 0 {
		if _, _, wrong := simulate(t, *seed, bug{}, true); wrong != "" {
			t.Error(wrong)
		}
		return
	}
	const length = 5 * time.Second
	began, done, seeds, able := time.Now(), 0, uint64(0), 0.0
	for *steps == 0 && time.Since(began) < length || done < *steps {
		seeds++
		n, a, wrong := simulate(t, seeds, bug{}, false)
		able += a
		if done += n; wrong != "" {
			t.Fatalf("seed %d: %s\nAgain: go test ./internal/network/lease -run TestSimulation -seed %d", seeds, wrong, seeds)
		}
	}
	if able /= float64(seeds); able < 2 {
		t.Errorf("only %.1f of %d nodes could start pods on average", able, simNodes)
	}
	t.Logf("%d steps of %d seeds with %.1f of %d nodes able to start pods, %v of virtual time, in %v: %.1f million steps a minute", done, seeds, able, simNodes,
		time.Duration(seeds)*simTime, time.Since(began).Round(time.Second), float64(done)/1e6/time.Since(began).Minutes())
}

// TestPlantedBugs: the simulation finds the mistakes that such a protocol is known for.
func TestPlantedBugs(t *testing.T) {
	for name, b := range map[string]bug{
		"BlindRenew": {blind: true},
		"AnswerTime": {fence: func(_, answered, ttl time.Duration) time.Duration { return claim.Until(answered, ttl) }},
		"NoMargin":   {fence: func(sent, _, ttl time.Duration) time.Duration { return sent + ttl }},
		"NoFence":    {fence: func(_, answered, _ time.Duration) time.Duration { return answered + 1000*time.Hour }},
		"AnswerTimeAndNoMargin": {fence: func(_, answered, ttl time.Duration) time.Duration {
			return answered + ttl
		}},
	} {
		t.Run(name, func(t *testing.T) {
			began, done := time.Now(), 0
			for seed := uint64(1); seed <= 2000; seed++ {
				n, _, wrong := simulate(t, seed, b, false)
				if done += n; wrong != "" {
					t.Logf("seed %d, after %d steps and %v: %s", seed, done, time.Since(began).Round(time.Millisecond), wrong)
					return
				}
			}
			t.Errorf("not found in %d steps", done)
		})
	}
}
