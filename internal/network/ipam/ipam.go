// Package ipam allocates addresses to pods. It is pure: the caller passes the time, keeps the
// records, and writes each one before acting on it.
//
// A lease has one address of every family, so dual stack is not a special case. A lease is
// reserved, bound, releasing, and then gone, with its addresses in quarantine. Finding the next
// free address takes the same time however full a range is. The search goes round the range, so
// that an address is reused as late as possible.
//
// A family has one range, or several: the blocks of a cluster's subnet that belong to this node.
// Blocks are filled one after the other, so that the last ones can become empty and be retired.
package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/containerd/errdefs"
)

// Owner is the holder of a lease: one interface of one sandbox.
type Owner struct {
	Sandbox string `json:"sandbox"`
	IfName  string `json:"ifName"`
}

// String returns the owner as it appears in errors.
func (o Owner) String() string { return o.Sandbox + "/" + o.IfName }

// State of a lease.
type State string

// The states of a lease.
const (
	Reserved  State = "reserved"  // allocated, but not in use yet
	Bound     State = "bound"     // in use by the pod
	Releasing State = "releasing" // being removed from the pod
)

// Lease is the addresses that an owner holds.
type Lease struct {
	Owner     Owner        `json:"owner"`
	State     State        `json:"state"`
	Addresses []netip.Addr `json:"addresses"` // one per family, the primary first
}

func (l *Lease) value() Lease {
	v := *l
	v.Addresses = slices.Clone(l.Addresses)
	return v
}

// Quarantined is an address that is unavailable until a time, because conntrack entries and peers
// may still remember its last owner.
type Quarantined struct {
	Addr  netip.Addr `json:"addr"`
	Until time.Time  `json:"until"`
}

// Usage is the number of a range's addresses by state.
type Usage struct {
	Range       netip.Prefix `json:"range"`
	Size        int          `json:"size"` // addresses that pods can have
	Used        int          `json:"used"`
	Quarantined int          `json:"quarantined"`
	Free        int          `json:"free"`
	// Retired ranges give no new addresses.
	Retired bool `json:"retired,omitempty"`
}

// DefaultQuarantine is longer than most conntrack entries and ARP caches live.
const DefaultQuarantine = time.Minute

// QuarantineOf returns the quarantine that a configured one means: 0 is the default, negative none.
func QuarantineOf(configured time.Duration) time.Duration {
	if configured == 0 {
		return DefaultQuarantine
	}
	return max(configured, 0)
}

// Allocator holds the leases of one node. It is not safe for concurrent use.
type Allocator struct {
	quarantine time.Duration
	may        func(block netip.Prefix) error
	families   []*family
	leases     map[Owner]*Lease
	holders    map[netip.Addr]Owner
}

// New returns an allocator without leases over one range, or one of each family. It uses the first
// 2^20 addresses of a range, except for the network, gateway and broadcast address. An address is
// in quarantine for the given time after use.
func New(quarantine time.Duration, ranges ...netip.Prefix) (*Allocator, error) {
	a, err := NewOfBlocks(quarantine, ranges, nil)
	if err != nil {
		return nil, err
	}
	for _, r := range ranges {
		if f := a.family(r.Addr()); len(f.blocks) > 0 {
			return nil, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("ranges %v and %v: at most one of each family", f.blocks[0].prefix, r))
		}
		if err := a.AddBlock(r); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// NewOfBlocks returns an allocator without leases and blocks. A lease will have an address of each
// family that the subnets are of, in their order. See AddBlock, and New about the quarantine.
//
// may returns nil if an address of the block may be given to a pod now, and otherwise the reason
// why not. For the zero Prefix it returns why there is no block. A nil may permits everything.
func NewOfBlocks(quarantine time.Duration, subnets []netip.Prefix, may func(block netip.Prefix) error) (*Allocator, error) {
	if quarantine < 0 {
		return nil, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("quarantine of %v: not a duration to wait", quarantine))
	}
	if len(subnets) == 0 {
		return nil, errdefs.ErrInvalidArgument.WithMessage("no range to allocate from")
	}
	a := &Allocator{quarantine: quarantine, may: may, leases: map[Owner]*Lease{}, holders: map[netip.Addr]Owner{}}
	if may == nil {
		a.may = func(netip.Prefix) error { return nil }
	}
	for _, s := range subnets {
		if err := Check(s); err != nil {
			return nil, err
		}
		if a.family(s.Addr()) == nil {
			a.families = append(a.families, &family{six: s.Addr().Is6()})
		}
	}
	return a, nil
}

// Reserve returns the owner's lease, allocating one if there is none. want asks for certain
// addresses, at most one of each family. If a family has no free address, one whose quarantine is
// over is taken. Otherwise the error is of kind resource exhausted and says how full the range is,
// or of kind unavailable if there is no block or none may be used now.
func (a *Allocator) Reserve(o Owner, now time.Time, want ...netip.Addr) (Lease, error) {
	if l, ok := a.leases[o]; ok {
		if l.State == Releasing {
			return Lease{}, errdefs.ErrUnavailable.WithMessage(fmt.Sprintf("the lease of %v is being released: try again", o))
		}
		for _, w := range want {
			if !slices.Contains(l.Addresses, w) {
				return Lease{}, errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("%v asks for %v and has %v: detach it first", o, w, l.Addresses))
			}
		}
		return l.value(), nil
	}
	wanted, err := a.sort(want)
	if err != nil {
		return Lease{}, err
	}
	l := &Lease{Owner: o, State: Reserved}
	for i, f := range a.families {
		addr, err := a.take(f, wanted[i], now)
		if err != nil {
			for _, taken := range l.Addresses {
				a.pool(taken).putBack(taken)
			}
			return Lease{}, err
		}
		l.Addresses = append(l.Addresses, addr)
	}
	a.add(l)
	return l.value(), nil
}

// take takes an address of a family, a certain one if want is valid.
func (a *Allocator) take(f *family, want netip.Addr, now time.Time) (netip.Addr, error) {
	if !want.IsValid() {
		p, err := a.choose(f, now)
		if err != nil {
			return netip.Addr{}, err
		}
		return p.next(now)
	}
	if o, ok := a.holders[want]; ok {
		return netip.Addr{}, errdefs.ErrAlreadyExists.WithMessage(fmt.Sprintf("address %v is in use by %v", want, o))
	}
	p := a.pool(want)
	if p.retired {
		return netip.Addr{}, errdefs.ErrUnavailable.WithMessage(fmt.Sprintf("address %v is of block %v, which this node no longer gives addresses of", want, p.prefix))
	}
	if err := a.permitted(p); err != nil {
		return netip.Addr{}, err
	}
	return want, p.request(want, now)
}

// sort returns the wanted address of each family, the zero Addr where any will do.
func (a *Allocator) sort(want []netip.Addr) ([]netip.Addr, error) {
	wanted := make([]netip.Addr, len(a.families))
	for _, w := range want {
		p := a.pool(w)
		if p == nil {
			return nil, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("address %v is in no range of this node", w))
		}
		i := slices.Index(a.families, a.family(w))
		if wanted[i].IsValid() {
			return nil, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("addresses %v and %v are of the same range %v", wanted[i], w, p.prefix))
		}
		wanted[i] = w
	}
	return wanted, nil
}

func (a *Allocator) add(l *Lease) {
	a.leases[l.Owner] = l
	for _, addr := range l.Addresses {
		a.holders[addr] = l.Owner
	}
}

// Bind marks the owner's lease as in use by its pod.
func (a *Allocator) Bind(o Owner) (Lease, bool) { return a.move(o, Bound) }

// Release marks the owner's lease as being removed. Its addresses stay allocated until Quarantine
// or Forget.
func (a *Allocator) Release(o Owner) (Lease, bool) { return a.move(o, Releasing) }

func (a *Allocator) move(o Owner, s State) (Lease, bool) {
	l, ok := a.leases[o]
	if !ok {
		return Lease{}, false
	}
	l.State = s
	return l.value(), true
}

// Quarantine ends the owner's lease and puts its addresses into quarantine, or frees them if that
// is 0. The caller knows that the link that had them is gone.
func (a *Allocator) Quarantine(o Owner, now time.Time) []Quarantined {
	if a.quarantine == 0 {
		a.Forget(o)
		return nil
	}
	var out []Quarantined
	for _, addr := range a.remove(o) {
		q := Quarantined{addr, now.Add(a.quarantine)}
		if p := a.pool(addr); p != nil && p.quarantine(q) {
			out = append(out, q)
		}
	}
	return out
}

// Forget ends the owner's lease and frees its addresses. The caller knows that they were never
// used.
func (a *Allocator) Forget(o Owner) {
	for _, addr := range a.remove(o) {
		if p := a.pool(addr); p != nil {
			p.putBack(addr)
			a.dropIfEmpty(p)
		}
	}
}

func (a *Allocator) remove(o Owner) []netip.Addr {
	l, ok := a.leases[o]
	if !ok {
		return nil
	}
	delete(a.leases, o)
	for _, addr := range l.Addresses {
		delete(a.holders, addr)
	}
	return l.Addresses
}

// Expire frees at most limit addresses whose quarantine has ended, and returns them.
func (a *Allocator) Expire(now time.Time, limit int) []netip.Addr {
	var out []netip.Addr
	for _, p := range a.pools() {
		for len(out) < limit {
			addr, ok := p.expire(now)
			if !ok {
				break
			}
			out = append(out, addr)
		}
		a.dropIfEmpty(p)
	}
	return out
}

// Restore adds a recorded lease. Its addresses need not be in the ranges: the configuration may
// have changed since, and the pod keeps its addresses.
func (a *Allocator) Restore(l Lease) error {
	if l.Owner.Sandbox == "" || l.Owner.IfName == "" || len(l.Addresses) == 0 {
		return fmt.Errorf("lease of %q with addresses %v: incomplete", l.Owner, l.Addresses)
	}
	if l.State != Reserved && l.State != Bound && l.State != Releasing {
		return fmt.Errorf("lease of %v is in state %q: unknown", l.Owner, l.State)
	}
	if _, ok := a.leases[l.Owner]; ok {
		return fmt.Errorf("a second lease of %v", l.Owner)
	}
	for i, addr := range l.Addresses {
		if !addr.IsValid() || slices.Contains(l.Addresses[:i], addr) {
			return fmt.Errorf("lease of %v with addresses %v: not distinct addresses", l.Owner, l.Addresses)
		}
		if o, ok := a.holders[addr]; ok {
			return fmt.Errorf("address %v of %v is also in the lease of %v", addr, l.Owner, o)
		}
	}
	for _, addr := range l.Addresses {
		if p := a.pool(addr); p != nil {
			p.hold(addr)
		}
	}
	v := l.value()
	a.add(&v)
	return nil
}

// RestoreQuarantine adds recorded quarantines, in any order, after the leases. It returns the
// addresses whose records are stale: leased, or of no range. No quarantine gets longer if the clock
// was set back.
func (a *Allocator) RestoreQuarantine(now time.Time, qs []Quarantined) (stale []netip.Addr) {
	qs = slices.Clone(qs)
	for i := range qs {
		// Counted from now, it doesn't change when the clock is set.
		qs[i].Until = now.Add(min(qs[i].Until.Sub(now), a.quarantine))
	}
	slices.SortStableFunc(qs, func(x, y Quarantined) int { return x.Until.Compare(y.Until) })
	for _, q := range qs {
		p := a.pool(q.Addr)
		_, leased := a.holders[q.Addr]
		if p == nil || leased {
			stale = append(stale, q.Addr)
			continue
		}
		p.hold(q.Addr)
		if !p.quarantine(q) {
			stale = append(stale, q.Addr)
		}
	}
	return stale
}

// Usage returns the counts of each range, by family.
func (a *Allocator) Usage() []Usage {
	var out []Usage
	for _, p := range a.pools() {
		out = append(out, p.usage())
	}
	return out
}

// Exhausted returns the error that Reserve would return if a family has no address left, and nil
// otherwise.
func (a *Allocator) Exhausted(now time.Time) error {
	var errs []error
	for _, f := range a.families {
		_, err := a.choose(f, now)
		if err != nil && (len(errs) == 0 || errs[0].Error() != err.Error()) { // both may lack a block
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
