// Package connlimit keeps pods from using up the connection tracking table of their node, which all
// pods and the node share. When pods together hold half of it, those that hold the most begin no
// further connections; when it is nearly full nevertheless, they lose those above their share. See
// docs/decisions/0052.
//
// Only entries that stay in a full table count: the kernel itself makes room by dropping those
// without an answer and those of closing connections.
package connlimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/network/conntrack"
	"github.com/huskd/husk/internal/network/nftable"
	"github.com/huskd/husk/internal/network/nlsock"
	"github.com/huskd/husk/internal/pod"
)

// Config configures a Limiter.
type Config struct {
	Netns    string // path of the node's network namespace; empty is the process's
	Instance pod.Instance
	// Pods returns the addresses of this node's pods, with their names as namespace/name.
	Pods func() map[netip.Addr]string
	// Cluster are the subnets of the pods of all nodes, if there are others, and Own returns this
	// node's. Connections that other nodes' pods began count by their addresses.
	Cluster []netip.Prefix
	Own     func() []netip.Prefix
	// Refused is called when a pod of this node can't begin connections any more.
	Refused func(pod, message string)
	Log     *slog.Logger
}

// Limiter limits what pods hold of the table. Its methods may be called concurrently.
type Limiter struct {
	cfg   Config
	flows *nlsock.Conn

	mu      sync.Mutex // Invariant: guards what follows.
	shares  shares
	table   nftable.Table
	size    conntrack.Size
	loaded  time.Time // when the kernel's table was made
	has     bool      // the kernel may have a table
	dropped uint64    // by former tables
}

// Open returns a Limiter. Nothing in the kernel changes.
func Open(cfg Config) (*Limiter, error) {
	l := &Limiter{cfg: cfg, shares: shares{map[owner]*refusal{}}, table: nftable.Table{Name: cfg.Instance.ConnlimitTable()}, has: true}
	open := func() (err error) {
		if l.flows, err = nlsock.Dial(unix.NETLINK_NETFILTER); err != nil {
			return err
		}
		return l.table.Open()
	}
	inNode := open
	if cfg.Netns != "" {
		inNode = func() error { return netns.Do(cfg.Netns, open) }
	}
	if err := inNode(); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Close closes the sockets. The table stays, until its elements expire.
func (l *Limiter) Close() error {
	err := l.table.Close()
	if l.flows != nil {
		err = errors.Join(err, l.flows.Close())
	}
	return err
}

// Teardown removes the table.
func (l *Limiter) Teardown() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.shares.refused)
	return load(&l.table, nil, nil)
}

const (
	// watchFrom is the share of the table from which on its entries are counted.
	watchFrom = podsPart
	// lookTime is how often the table's size is read.
	lookTime = time.Second
	// Counting takes at most one part in countPart of a processor while the table doesn't grow, and
	// one in growPart while it does.
	countPart, growPart = 50, 10
)

// Run limits pods until ctx ends.
func (l *Limiter) Run(ctx context.Context) error {
	tick := time.NewTicker(lookTime)
	defer tick.Stop()
	var c counting
	failed := ""
	for {
		err := l.look(&c)
		if err != nil && err.Error() != failed {
			l.cfg.Log.Error("network: the connections of pods can't be limited; trying again", "error", err)
		}
		failed = ""
		if err != nil {
			failed = err.Error()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// counting says when the entries are counted next.
type counting struct {
	last    time.Time
	took    time.Duration
	entries int // at the last count
	lasting int // of pods, then
}

// due reports whether the entries are to be counted now.
func (c *counting) due(now time.Time, s conntrack.Size) bool {
	part := countPart
	if c.lasting+max(0, s.Entries-c.entries) > int(podsPart*float64(s.Max)) || float64(s.Entries) >= fullPart*float64(s.Max) {
		part = growPart
	}
	return now.Sub(c.last) >= time.Duration(part)*c.took
}

// look reads the table's size, and if it is large, counts whose entries it has.
func (l *Limiter) look(c *counting) error {
	size, err := conntrack.SizeOf(l.flows)
	if err != nil {
		return err
	}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.size = size
	large := size.Max > 0 && float64(size.Entries) >= watchFrom*float64(size.Max)
	switch {
	case large || len(l.shares.refused) > 0:
		if !c.due(now, size) {
			return l.renew(now)
		}
		err = l.count(now, c)
		*c = counting{last: time.Now(), took: time.Since(now), entries: size.Entries, lasting: c.lasting}
		return err
	case l.has:
		return l.reload(now) // a former process has left it
	}
	return nil
}

// count counts whose entries the table has, and acts on it.
func (l *Limiter) count(now time.Time, c *counting) error {
	byAddr, err := conntrack.Lasting(l.flows)
	if err != nil {
		return err
	}
	pods := l.cfg.Pods()
	held := map[owner]int{}
	c.lasting = 0
	for a, n := range byAddr {
		if o, ok := l.ownerOf(a, pods); ok {
			held[o] += n
			c.lasting += n
		}
	}
	v := l.shares.judge(now, held, l.size.Entries, l.size.Max)
	for _, o := range v.refused {
		r := l.shares.refused[o]
		message := fmt.Sprintf("begins no further connections: it holds %d entries of this node's connection tracking table, and %d are its share while pods hold half of all %d: see net.netfilter.nf_conntrack_max", held[o], r.limit, l.size.Max)
		l.cfg.Log.Warn("network: "+o.String()+" "+message, "entries", l.size.Entries)
		if o.Pod != "" && l.cfg.Refused != nil {
			l.cfg.Refused(o.Pod, message)
		}
	}
	for _, o := range v.admitted {
		l.cfg.Log.Info("network: "+o.String()+" begins connections again", "held", held[o])
	}
	if len(v.refused)+len(v.admitted) > 0 || v.surplus != nil {
		err = l.reload(now)
	} else {
		err = l.renew(now)
	}
	if err != nil || v.surplus == nil {
		return err
	}
	// New ones can't come any more: what is deleted now stays away.
	surplus := map[netip.Addr]int{}
	for o, n := range v.surplus {
		for a, has := range byAddr {
			if of, _ := l.ownerOf(a, pods); of == o && n > 0 {
				surplus[a] = min(n, has)
				n -= surplus[a]
			}
		}
	}
	n, err := conntrack.Surplus(l.flows, surplus)
	l.cfg.Log.Warn("network: the connection tracking table was full: pods have lost the connections above their shares", "pods", len(v.surplus), "connections", n, "entries", l.size.Entries)
	return err
}

// ownerOf returns who began a connection that came from an address; false if it isn't a pod.
func (l *Limiter) ownerOf(a netip.Addr, pods map[netip.Addr]string) (owner, bool) {
	if name, ok := pods[a]; ok {
		return owner{Pod: name}, true
	}
	contains := func(s netip.Prefix) bool { return s.Contains(a) }
	return owner{Addr: a}, slices.ContainsFunc(l.cfg.Cluster, contains) && !slices.ContainsFunc(l.cfg.Own(), contains)
}

// renew makes the table anew before its elements expire, and for pods that have gone.
func (l *Limiter) renew(now time.Time) error {
	if len(l.shares.refused) == 0 || now.Sub(l.loaded) < renewal {
		return nil
	}
	return l.reload(now)
}

// reload makes the kernel's table as the shares say.
func (l *Limiter) reload(now time.Time) error {
	n, err := dropped(&l.table)
	if err != nil {
		return err
	}
	var full, cut []netip.Addr
	addresses := map[owner][]netip.Addr{}
	for a, name := range l.cfg.Pods() {
		addresses[owner{Pod: name}] = append(addresses[owner{Pod: name}], a)
	}
	for o, r := range l.shares.refused {
		all := addresses[o]
		if o.Pod == "" {
			all = []netip.Addr{o.Addr}
		}
		full = append(full, all...)
		if r.cut {
			cut = append(cut, all...)
		}
	}
	l.has = true
	if err := load(&l.table, full, cut); err != nil {
		return err
	}
	l.dropped += n
	l.loaded, l.has = now, len(full) > 0
	return nil
}

// Refusal is of a pod that can't begin connections.
type Refusal struct {
	Pod  string     // as namespace/name; empty is another node's
	Addr netip.Addr // of another node's pod
	Held int        // entries that stay in a full table, at the last count
	// Limit was its share when it was exceeded last.
	Limit int
	Cut   bool // it has lost connections
}

// String says who is refused and why.
func (r Refusal) String() string {
	return fmt.Sprintf("%v begins no connections: it holds %d entries of the connection tracking table, and its share was %d", owner{r.Pod, r.Addr}, r.Held, r.Limit)
}

// Usage says how full the table is.
type Usage struct {
	conntrack.Size
	Refused []Refusal
	Dropped uint64 // packets of pods that are or were refused
}

// Usage returns how full the table is.
func (l *Limiter) Usage() (Usage, error) {
	size, err := conntrack.SizeOf(l.flows)
	if err != nil {
		return Usage{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	u := Usage{Size: size, Dropped: l.dropped}
	for o, r := range maps.All(l.shares.refused) {
		u.Refused = append(u.Refused, Refusal{Pod: o.Pod, Addr: o.Addr, Held: r.held, Limit: r.limit, Cut: r.cut})
	}
	slices.SortFunc(u.Refused, func(a, b Refusal) int { return cmp.Or(cmp.Compare(a.Pod, b.Pod), a.Addr.Compare(b.Addr)) })
	if len(u.Refused) > 0 {
		n, err := dropped(&l.table)
		if err != nil {
			return u, err
		}
		u.Dropped += n
	}
	return u, nil
}
