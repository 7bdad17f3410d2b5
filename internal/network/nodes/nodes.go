// Package nodes joins this node's pod network with those of other nodes. It tells them this node's
// record through a registry, follows their records, and keeps the kernel's routes, neighbours and
// tunnels to their pods as network/backend plans them.
//
// The kernel's objects outlive huskd. Nothing is removed before the registry has given a complete
// view, and while the registry is away the last view stays in force.
package nodes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/heartbeat"
	"github.com/huskd/husk/internal/network/peer"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/pod"
)

// Kernel changes this node's links and routes to other nodes. See network/overlay.
type Kernel interface {
	// Underlay returns the addresses by which other nodes reach this one.
	Underlay() ([]backend.Underlay, error)
	// Apply makes the kernel agree with the plan. The notes name what of others is in the way.
	Apply(backend.Plan) (notes []string, err error)
	// Watch calls changed when something of ours was removed or the underlay changed, until ctx ends.
	Watch(ctx context.Context, changed func()) error
	// TxChecksum switches the checksum offloading of a link on or off, and Unsummed returns the links
	// for which it is off.
	TxChecksum(link string, on bool) error
	Unsummed() []string
	// Sessions returns what the WireGuard links know of their peers.
	Sessions() (map[backend.TunnelID]backend.Session, error)
}

// Keys are this node's keys of WireGuard. See network/wireguard.
type Keys interface {
	// Public returns the keys of the first and the second link. The second one is zero unless the key
	// is being changed.
	Public() (first, second peer.Key)
	// Begin makes a key for the second link, Switch gives it to the first link too, and End ends the
	// change. Each can be repeated.
	Begin() error
	Switch() error
	End() error
}

// Prober finds the ways that carry no packets. See network/heartbeat.
type Prober interface {
	// Watch replaces the peers to probe, in the order of their names, from an address of this node.
	Watch(from netip.Addr, peers []heartbeat.Peer)
	Health() map[string]heartbeat.Health
	// Impaired returns the part of Health that asks for something to be done. See Health.Impaired.
	Impaired() map[string]heartbeat.Health
	// Run probes until ctx ends. It calls changed when Impaired has changed.
	Run(ctx context.Context, changed func()) error
}

// Speaker exchanges routes by BGP. See network/bgp.
type Speaker interface {
	// Set sets what this node announces, and to which nodes.
	Set(self peer.Node, peers []*peer.Node)
	// Learned returns the next hops of prefixes. It isn't known before the peers had the time to
	// send all of them: until then a missing route isn't a withdrawn one.
	Learned() (routes map[netip.Prefix][]netip.Addr, known bool)
	Notes() []string
	// Run calls changed when Learned or Notes have changed, until ctx ends.
	Run(ctx context.Context, changed func()) error
}

// Pods is this node's own pod network. See network.Network.
type Pods interface {
	// SetBlocks sets the subnets of which pods get addresses from now on.
	SetBlocks(ctx context.Context, blocks []netip.Prefix) error
	// SetNodes sets by which addresses nodes know each other.
	SetNodes(plan.Nodes) error
	// SetMTU sets the MTU of pods from now on.
	SetMTU(mtu int)
	// Blocks returns how many addresses are in use, by block.
	Blocks() []peer.Usage
}

// Config of a Controller.
type Config struct {
	Instance pod.Instance
	Name     string // of this node
	Boot     string // the ID of this boot
	Machine  string // see peer.Node
	Cluster  []netip.Prefix
	Backend  backend.Backend
	Ways     Ways

	Store    string // the kind of registry, for people
	Registry peer.Registry
	Kernel   Kernel
	Prober   Prober
	Speaker  Speaker // nil unless Backend is OnlyBGP
	Keys     Keys    // nil without WireGuard
	Pods     Pods
	Event    func(Event) // nil if nobody is told
	// Lost, if set, is told which blocks this node has lost while pods have addresses of them, once
	// the registry is known. It doesn't wait, nor modify them.
	Lost func([]peer.Lost)
	Log  *slog.Logger
}

// Ways are how this node can receive packets, as in its record.
type Ways struct {
	VXLAN *peer.VXLAN
	IPIP  bool
	AS    uint32 // 0 if the node doesn't speak BGP
	// Rotation is how the node changes its key of WireGuard; nil if people write the keys into the
	// registry.
	Rotation *peer.Rotation
}

// Controller keeps the ways to other nodes.
type Controller struct {
	cfg   Config
	dirty chan struct{} // has an item when there is something to do

	// Invariant: only used by pass.
	planner   backend.Planner
	announced *peer.Node
	logged    map[string]bool // notes that have been logged and still apply
	acceptor  peer.Acceptor
	// What Pods.SetNodes was last called for.
	admitted []*peer.Node
	underlay []backend.Underlay
	blocks   []netip.Prefix
	told     []netip.Addr
	// Addresses that were in calls of Pods.SetNodes before.
	formerSelf, formerOthers former
	rotation                 rotation
	cure                     cure

	requests chan rotationRequest
	mu       sync.Mutex // Invariant: guards the fields below.
	view     *peer.View // nil until the registry has answered
	loss     string     // the last view's Loss that no event has told
	state    state
}

// New returns a controller. It does nothing before Run.
func New(cfg Config) *Controller {
	return &Controller{cfg: cfg, dirty: make(chan struct{}, 1), logged: map[string]bool{}, requests: make(chan rotationRequest)}
}

// The times that Run waits.
const (
	settle    = 10 * time.Millisecond // for further changes, to apply them together
	interval  = time.Minute           // between passes without a change
	retry     = time.Second           // after a failed pass
	usageTime = 10 * time.Second      // between reports to the registry
)

// Run keeps the ways to the other nodes until ctx ends. They stay in the kernel after that.
func (c *Controller) Run(ctx context.Context) error {
	var running errgroup.Group
	running.Go(func() error { return c.cfg.Registry.Run(ctx, c.update) })
	running.Go(func() error { return c.cfg.Kernel.Watch(ctx, c.nudge) })
	running.Go(func() error { return c.cfg.Prober.Run(ctx, c.nudge) })
	running.Go(func() error { return c.reportUsage(ctx) })
	running.Go(func() error { return c.reportEvents(ctx) })
	if c.cfg.Speaker != nil {
		running.Go(func() error { return c.cfg.Speaker.Run(ctx, c.nudge) })
	}
	running.Go(func() error {
		c.nudge()
		for c.wait(ctx, c.pass(ctx)) {
		}
		return nil
	})
	return running.Wait()
}

// wait returns true when there is something to do, and false when ctx has ended.
func (c *Controller) wait(ctx context.Context, failed error) bool {
	limit := interval
	if failed != nil {
		limit = retry
	}
	timer, look := time.NewTimer(limit), time.NewTicker(lookTime)
	defer timer.Stop()
	defer look.Stop()
	for waiting := true; waiting; {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		case now := <-look.C:
			if c.rotate(now) {
				return true
			}
		case r := <-c.requests:
			r.answer <- c.changeKey(r.now)
			waiting = false
		case <-c.dirty:
			waiting = false
		}
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(settle):
	}
	select {
	case <-c.dirty:
	default:
	}
	return true
}

// nudge makes Run look at everything soon.
func (c *Controller) nudge() {
	select {
	case c.dirty <- struct{}{}:
	default:
	}
}

func (c *Controller) update(v peer.View) {
	c.mu.Lock()
	if c.view == nil || c.view.Loss != v.Loss {
		c.loss = cmp.Or(v.Loss, c.loss)
	}
	c.view = &v
	c.mu.Unlock()
	c.nudge()
}

func (c *Controller) reportUsage(ctx context.Context) error {
	tick := time.NewTicker(usageTime)
	defer tick.Stop()
	for {
		c.cfg.Registry.Used(c.cfg.Pods.Blocks())
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// pass compares everything once, and changes what differs.
func (c *Controller) pass(ctx context.Context) error {
	underlay, err := c.cfg.Kernel.Underlay()
	if err == nil && len(underlay) == 0 {
		err = errors.New("no default route shows which address other nodes reach this one by: set node-ip")
	}
	if err != nil {
		return c.failed(fmt.Errorf("underlay: %w", err))
	}
	record := c.record(underlay)
	c.announce(record)
	view := c.known()
	if view == nil {
		return nil
	}
	record.Blocks = view.Blocks
	notes := slices.Clone(view.Notes)
	if err := c.cfg.Pods.SetBlocks(ctx, view.Blocks); err != nil {
		notes = append(notes, fmt.Sprintf("blocks of this node: %v", err)) // others are in use all the same
	}
	usage := c.cfg.Pods.Blocks()
	c.cfg.Registry.Used(usage)
	lost := lostBlocks(usage, view)
	if c.cfg.Lost != nil {
		c.cfg.Lost(lost)
	}
	notes = append(append(notes, strays(usage)...), lostNotes(usage, lost, view.Notes)...)
	peers, refused := c.acceptor.Accept(c.cfg.Cluster, record, view.Peers)
	notes = append(append(notes, refused...), copies(record, peers)...)
	now := time.Now()
	told := !slices.Equal(c.told, view.Addresses) || c.formerSelf.due(now) || c.formerOthers.due(now)
	if told || !slices.Equal(c.admitted, peers) || !slices.Equal(c.underlay, underlay) || !slices.Equal(c.blocks, record.Blocks) {
		addresses := addressesOf(record, view.Addresses, peers, underlay)
		addresses.Self = c.formerSelf.with(now, addresses.Self, formerSelfTime)
		addresses.Others = c.formerOthers.with(now, addresses.Others, formerTime)
		if err := c.cfg.Pods.SetNodes(addresses); err != nil {
			return c.failed(err)
		}
		c.admitted, c.underlay, c.blocks, c.told = peers, underlay, record.Blocks, view.Addresses
	}
	self := c.self(record, underlay)
	if c.cfg.Speaker != nil {
		c.cfg.Speaker.Set(record, peers)
		notes = append(notes, c.cfg.Speaker.Notes()...)
		var known bool
		if self.Learned, known = c.cfg.Speaker.Learned(); !known {
			c.log(notes)
			c.mu.Lock()
			defer c.mu.Unlock()
			c.state.notes = append(notes, "bgp: no peer has sent its routes yet: those in the kernel stay")
			return nil
		}
		var tooMany []string
		peers, tooMany = withLearned(c.cfg.Cluster, record, peers, self.Learned)
		notes = append(notes, tooMany...)
	}
	if err := c.chooseLinks(&self, peers); err != nil {
		return c.failed(err)
	}
	next := c.planner.Plan(self, peers)
	inTheWay, err := c.cfg.Kernel.Apply(next)
	notes = append(notes, inTheWay...)
	if err != nil {
		return c.failed(err)
	}
	c.rotation.follow(self, peers)
	notes = append(notes, c.rotation.notes()...)
	if err := c.cureChecksums(next.Links); err != nil {
		notes = append(notes, err.Error())
	}
	unsummed := c.cfg.Kernel.Unsummed()
	notes = append(notes, unsummedNotes(unsummed)...)
	c.cfg.Pods.SetMTU(next.MTU)
	c.cfg.Prober.Watch(probes(record, next, peers))
	c.log(notes)
	if view.Loss != "" { // which the event has logged
		notes = append(notes, view.Loss)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state = c.state.next(record, next, peers, notes, time.Now())
	c.state.unsummed = unsummed
	return nil
}

// addressesOf returns the addresses by which this node and its peers know each other: those of
// their records, those that the registry tells of this node, and those in their blocks, between
// which they send probes. They are sorted.
func addressesOf(self peer.Node, told []netip.Addr, peers []*peer.Node, underlay []backend.Underlay) plan.Nodes {
	addresses := func(n *peer.Node) []netip.Addr {
		out := slices.Clone(n.Addresses)
		for _, b := range n.Blocks {
			out = append(out, plan.First(b))
		}
		return out
	}
	out := plan.Nodes{Self: append(addresses(&self), told...)}
	for _, p := range peers {
		out.Others = append(out.Others, addresses(p)...)
	}
	for _, u := range underlay {
		if u.Links == "" {
			out.Links = nil
			break
		}
		out.Links = append(out.Links, strings.Split(u.Links, " ")...)
	}
	out.Sort()
	return out
}

// copies returns a note for each peer whose operating system is a copy of this node's.
func copies(self peer.Node, peers []*peer.Node) (notes []string) {
	for _, p := range peers {
		if p.Machine != "" && p.Machine == self.Machine && p.Boot != self.Boot {
			notes = append(notes, fmt.Sprintf("node %s has the machine ID of node %s, so links of both may get the same MACs and addresses: on one of them, run 'rm -f /etc/machine-id /var/lib/dbus/machine-id; systemd-machine-id-setup' and reboot", p.Name, self.Name))
		}
	}
	return notes
}

// strays returns a note if pods have addresses from before this node had blocks.
func strays(usage []peer.Usage) []string {
	own := slices.DeleteFunc(slices.Clone(usage), func(u peer.Usage) bool { return !u.Block.IsSingleIP() || u.Used == 0 })
	if len(own) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("pods of this node have %d addresses from before it had blocks, such as %v: other nodes don't reach these; remove the pods and run them again", len(own), own[0].Block.Addr())}
}

// lostBlocks returns the blocks that the registry has taken away from pods: of each, the parts that
// other nodes have now, or else the whole.
func lostBlocks(usage []peer.Usage, view *peer.View) (lost []peer.Lost) {
	for _, u := range usage {
		if u.Used == 0 || u.Block.IsSingleIP() || slices.Contains(view.Blocks, u.Block) {
			continue
		}
		before := len(lost)
		for _, p := range view.Peers {
			for _, b := range p.Blocks {
				if !b.Overlaps(u.Block) {
					continue
				}
				if b.Bits() < u.Block.Bits() {
					b = u.Block
				}
				lost = append(lost, peer.Lost{Block: b, Node: p.Name})
			}
		}
		if len(lost) == before {
			lost = append(lost, peer.Lost{Block: u.Block})
		}
	}
	return lost
}

// lostNotes returns a note for each block of usage that is lost, unless said has one.
func lostNotes(usage []peer.Usage, lost []peer.Lost, said []string) (notes []string) {
	for _, u := range usage {
		i := slices.IndexFunc(lost, func(l peer.Lost) bool { return u.Block.Overlaps(l.Block) })
		if i < 0 || slices.ContainsFunc(said, func(note string) bool { return strings.Contains(note, fmt.Sprintf("block %v ", u.Block)) }) {
			continue
		}
		whose := "isn't this node's any more"
		if lost[i].Node != "" {
			whose = fmt.Sprintf("is node %s's now, so others may get the same addresses", lost[i].Node)
		}
		notes = append(notes, fmt.Sprintf("pods of this node have %d addresses of block %v, which %s: other nodes don't reach these pods, which need other ones", u.Used, u.Block, whose))
	}
	return notes
}

// known returns the last view of the registry. If there is none, Status says what the registry
// waits for. That is no failure if pods get addresses of blocks that the node has from before.
func (c *Controller) known() *peer.View {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.view == nil {
		usable := func(u peer.Usage) bool { return c.cfg.Registry.May(u.Block) == nil }
		if why := c.cfg.Registry.May(netip.Prefix{}); slices.ContainsFunc(c.cfg.Pods.Blocks(), usable) {
			c.state.notes, c.state.failure = []string{fmt.Sprintf("the ways to other nodes stay as they are: %v", why)}, ""
		} else if why != nil {
			c.state.failure = why.Error()
		}
	}
	return c.view
}

// self returns what the plan depends on besides the peers.
func (c *Controller) self(record peer.Node, underlay []backend.Underlay) backend.Self {
	s := backend.Self{
		Instance: c.cfg.Instance, Backend: c.cfg.Backend, Record: record, Underlay: underlay, Cluster: c.cfg.Cluster,
		Broken: map[string][]backend.Way{}, Limits: map[string]int{},
	}
	for name, h := range c.cfg.Prober.Impaired() {
		s.Broken[name], s.Limits[name] = h.Broken, h.Limit
	}
	return s
}

// probes returns which peers to probe and from where: those with a block of the same family as this
// node's first one. peers are in the order of p.Peers.
func probes(self peer.Node, p backend.Plan, peers []*peer.Node) (from netip.Addr, out []heartbeat.Peer) {
	if len(self.Blocks) == 0 {
		return from, nil
	}
	from = plan.First(self.Blocks[0])
	out = make([]heartbeat.Peer, 0, len(peers))
	for i, n := range peers {
		same := slices.IndexFunc(n.Blocks, func(b netip.Prefix) bool { return b.Addr().Is4() == from.Is4() })
		if same < 0 || p.Peers[i].Way == "" {
			continue
		}
		// Of several blocks, the node may take another one for its first.
		senders := make([]netip.Addr, 0, len(n.Blocks))
		for _, b := range n.Blocks {
			senders = append(senders, plan.First(b))
		}
		out = append(out, heartbeat.Peer{Name: n.Name, To: plan.First(n.Blocks[same]), From: senders, Way: p.Peers[i].Way, MTU: p.MTU, Paths: p.Peers[i].Paths})
	}
	return from, out
}

// record returns what this node tells the others. The registry fills in its name and blocks.
func (c *Controller) record(underlay []backend.Underlay) peer.Node {
	n := peer.Node{
		Version: peer.Version, Name: c.cfg.Name, Boot: c.cfg.Boot, Machine: c.cfg.Machine,
		VXLAN: c.cfg.Ways.VXLAN, IPIP: c.cfg.Ways.IPIP, AS: c.cfg.Ways.AS, Encrypted: c.cfg.Backend == backend.OnlyWireGuard,
	}
	if c.cfg.Keys != nil {
		first, second := c.cfg.Keys.Public()
		n.WireGuard = []peer.WireGuard{{Key: first, Port: peer.WireGuardPort}}
		if r := c.cfg.Ways.Rotation; r != nil {
			n.Rotation = &peer.Rotation{Port: r.Port, Key: second}
		}
	}
	for _, u := range underlay {
		n.Addresses = append(n.Addresses, u.Address.Addr())
		if n.MTU == 0 || u.MTU < n.MTU {
			n.MTU = u.MTU
		}
	}
	return n
}

// announce tells the registry the record if it has changed.
func (c *Controller) announce(record peer.Node) {
	if c.announced != nil && c.announced.Equal(record) {
		return
	}
	c.announced = &record
	c.cfg.Registry.Announce(record)
}

// failed remembers why a pass failed, for Status and the log.
func (c *Controller) failed(err error) error {
	c.mu.Lock()
	c.state.failure = err.Error()
	c.mu.Unlock()
	c.log([]string{err.Error()})
	return err
}

// log logs each note once, until it no longer applies.
func (c *Controller) log(notes []string) {
	logged := map[string]bool{}
	for _, note := range notes {
		if !c.logged[note] {
			c.cfg.Log.Warn("pod network of other nodes: " + note)
		}
		logged[note] = true
	}
	c.logged = logged
}
