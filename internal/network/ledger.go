package network

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/crashpoint"
	"github.com/huskd/husk/internal/journal"
	"github.com/huskd/husk/internal/network/ipam"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/pod"
)

// record is a lease as it is in the journal: everything needed to make or remove the attachment,
// whatever the configuration has become.
type record struct {
	Attachment pod.Attachment `json:"attachment"`
	State      ipam.State     `json:"state"`     // Invariant: guarded by ledger.mu.
	Since      time.Time      `json:"since"`     // start of State; Invariant: guarded by ledger.mu.
	Addresses  []netip.Prefix `json:"addresses"` // with their subnets' prefix length
	Mode       plan.Mode      `json:"mode"`
	MTU        int            `json:"mtu"`                // Invariant: guarded by ledger.mu.
	Source     netip.Addr     `json:"source,omitzero"`    // the node's, see plan.Node
	External   bool           `json:"external,omitempty"` // another runtime's, see External
	// RuntimeManaged is that of the attachment. Invariant: it doesn't change after Reconcile.
	RuntimeManaged bool `json:"runtimeManaged,omitempty"`
}

func ownerOf(a pod.Attachment) ipam.Owner { return ipam.Owner{Sandbox: a.Sandbox, IfName: a.IfName} }

func (r *record) owner() ipam.Owner { return ownerOf(r.Attachment) }

func (r *record) addrs() (out []netip.Addr) {
	for _, p := range r.Addresses {
		out = append(out, p.Addr())
	}
	return out
}

// ledger records which sandbox has which addresses, link and ports, in memory and in the journal.
// It doesn't touch the kernel.
type ledger struct {
	instance    pod.Instance
	portTaken   func(pod.PortMapping) error // may be nil
	log         *slog.Logger
	journal     *journal.Journal
	leases      journal.Table[record]
	quarantined journal.Table[ipam.Quarantined]
	sysctls     journal.Table[string] // former values
	shares      journal.Table[share]  // one record, see shareID

	mu      sync.Mutex // Invariant: guards the fields below, and State and Since of records.
	alloc   *ipam.Allocator
	records map[ipam.Owner]*record
	links   map[string]ipam.Owner // by the name of the host's end
	ports   map[uint16][]*record  // by hostPort, until the traffic is cut
}

// openLedger opens the journal. Records from before a reboot are void: no namespace, link,
// conntrack entry or sysctl of then is left. Only the node's share of its cluster is still valid.
func openLedger(cfg Config, boot string) (*ledger, error) {
	j, damage, err := journal.Open(cfg.Dir)
	if err != nil {
		return nil, err
	}
	for _, d := range damage {
		cfg.Log.Error("network: part of the journal is damaged; pods whose leases were there lose their network", "saved", d.Saved, "bytes", d.Length)
	}
	l := &ledger{
		instance:    cfg.Instance,
		portTaken:   cfg.PortTaken,
		log:         cfg.Log,
		journal:     j,
		leases:      journal.NewTable[record](j, "lease"),
		quarantined: journal.NewTable[ipam.Quarantined](j, "quarantine"),
		sysctls:     journal.NewTable[string](j, "sysctl"),
		shares:      journal.NewTable[share](j, "cluster"),
		records:     map[ipam.Owner]*record{},
		links:       map[string]ipam.Owner{},
		ports:       map[uint16][]*record{},
	}
	if was, ok := j.Get("boot"); ok && string(was) == boot {
		return l, nil
	}
	for key := range j.All("") {
		if key == shareKey {
			continue
		}
		if err := j.Delete(key); err != nil {
			return nil, errors.Join(err, j.Close())
		}
	}
	if err := j.Put("boot", []byte(boot)); err != nil {
		return nil, errors.Join(err, j.Close())
	}
	return l, nil
}

// restore puts the recorded leases and quarantines into a fresh allocator, which the ledger uses
// from then on.
func (l *ledger) restore(alloc *ipam.Allocator, now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.alloc = alloc
	bad := l.leases.Load(func(id string, r record) error {
		if id != r.owner().String() {
			return fmt.Errorf("belongs to %v", r.owner())
		}
		if err := plan.Check(r.Attachment); err != nil {
			return err
		}
		if err := alloc.Restore(ipam.Lease{Owner: r.owner(), State: r.State, Addresses: r.addrs()}); err != nil {
			return err
		}
		l.index(&r)
		return nil
	})
	var quarantined []ipam.Quarantined
	bad = append(bad, l.quarantined.Load(func(_ string, q ipam.Quarantined) error {
		quarantined = append(quarantined, q)
		return nil
	})...)
	for _, err := range bad {
		l.log.Error("network: a record is unusable; if it was a pod's lease, that pod loses its network", "error", err)
	}
	for _, addr := range alloc.RestoreQuarantine(now, quarantined) {
		if err := l.quarantined.Delete(addr.String()); err != nil {
			return err
		}
	}
	return nil
}

// loadShare returns the recorded share of the cluster's subnets. What of it isn't valid is left
// out.
func (l *ledger) loadShare(cluster []netip.Prefix) (s share) {
	bad := l.shares.Load(func(_ string, recorded share) error {
		var err error
		if s, err = recorded.valid(cluster); err != nil {
			l.log.Warn("network: some recorded blocks of this node aren't used", "error", err)
		}
		return nil
	})
	for _, err := range bad {
		l.log.Error("network: the record of this node's blocks is unusable", "error", err)
	}
	return s
}

// forgetShare deletes the share of a node that is no longer in a cluster.
func (l *ledger) forgetShare() error {
	if _, ok := l.journal.Get(shareKey); !ok {
		return nil
	}
	return l.shares.Delete(shareID)
}

// index adds a record to the maps. The caller holds l.mu.
func (l *ledger) index(r *record) {
	l.records[r.owner()] = r
	l.links[l.instance.HostLink(r.Attachment.Sandbox)] = r.owner()
	for _, m := range plan.Mappings(r.Attachment) {
		l.ports[m.HostPort] = append(l.ports[m.HostPort], r)
	}
}

// unindex removes a record from the maps. The caller holds l.mu.
func (l *ledger) unindex(r *record) {
	l.unindexPorts(r)
	delete(l.records, r.owner())
	delete(l.links, l.instance.HostLink(r.Attachment.Sandbox))
}

func (l *ledger) unindexPorts(r *record) {
	for _, m := range plan.Mappings(r.Attachment) {
		left := slices.DeleteFunc(l.ports[m.HostPort], func(other *record) bool { return other == r })
		if l.ports[m.HostPort] = left; len(left) == 0 {
			delete(l.ports, m.HostPort)
		}
	}
}

// freePorts makes the record's hostPorts available.
func (l *ledger) freePorts(r *record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unindexPorts(r)
}

// find returns the owner's record, nil if there is none.
func (l *ledger) find(o ipam.Owner) *record {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.records[o]
}

// ofSandbox returns the sandbox's record, nil if there is none.
func (l *ledger) ofSandbox(id string) *record {
	l.mu.Lock()
	defer l.mu.Unlock()
	if owner, ok := l.links[l.instance.HostLink(id)]; ok && owner.Sandbox == id {
		return l.records[owner]
	}
	return nil
}

// all returns all records, in no order.
func (l *ledger) all() []*record {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Values(l.records))
}

// state returns the state of a record.
func (l *ledger) state(r *record) ipam.State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return r.State
}

// reserve allocates a new record's addresses, host link and ports, and journals it. On error
// nothing is allocated.
func (l *ledger) reserve(r *record) error {
	if err := l.allocate(r); err != nil {
		return err
	}
	err := l.leases.Put(r.owner().String(), *r)
	for _, addr := range r.addrs() {
		if err == nil { // its quarantine is over
			err = l.quarantined.Delete(addr.String())
		}
	}
	if err != nil {
		return errors.Join(err, l.forget(r))
	}
	crashpoint.Hit("network.reserved")
	return nil
}

func (l *ledger) allocate(r *record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	link := l.instance.HostLink(r.Attachment.Sandbox)
	if other, ok := l.links[link]; ok {
		return errdefs.ErrAlreadyExists.WithMessage(fmt.Sprintf("link %s belongs to %v: detach it first", link, other))
	}
	for _, port := range plan.Mappings(r.Attachment) {
		if err := l.checkPort(port); err != nil {
			return err
		}
	}
	r.State, r.Since = ipam.Reserved, time.Now()
	lease, err := l.alloc.Reserve(r.owner(), r.Since, r.Attachment.IPs...)
	if err != nil {
		return err
	}
	for _, addr := range lease.Addresses {
		block, _ := l.alloc.BlockOf(addr)
		r.Addresses = append(r.Addresses, netip.PrefixFrom(addr, block.Bits()))
	}
	l.index(r)
	return nil
}

// checkPort returns an error if another pod, or something else, has the port.
func (l *ledger) checkPort(port pod.PortMapping) error {
	if l.portTaken != nil {
		if err := l.portTaken(port); err != nil {
			return err
		}
	}
	for _, other := range l.ports[port.HostPort] {
		for _, theirs := range plan.Mappings(other.Attachment) {
			if plan.Clash(port, theirs) {
				return &pod.PortInUseError{Port: port, By: fmt.Sprintf("pod %v has it; stop that pod or use another hostPort", other.Attachment.Pod)}
			}
		}
	}
	return nil
}

// bind journals that the record's pod is attached. It fails if its addresses may no longer be given
// to a pod.
func (l *ledger) bind(r *record) error {
	err := l.setState(r, ipam.Bound, l.leases.Put)
	crashpoint.Hit("network.bound")
	return err
}

// release journals that the record's attachment is being removed.
func (l *ledger) release(r *record) error {
	err := l.setState(r, ipam.Releasing, l.leases.PutUsingReserve)
	crashpoint.Hit("network.releasing")
	return err
}

func (l *ledger) setState(r *record, s ipam.State, put func(string, record) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.State == s {
		return nil
	}
	if s == ipam.Bound {
		if err := l.alloc.MayBind(r.owner()); err != nil {
			return err
		}
	}
	next := *r
	next.State, next.Since = s, time.Now()
	if err := put(r.owner().String(), next); err != nil {
		return err
	}
	r.State, r.Since = next.State, next.Since
	if s == ipam.Bound {
		l.alloc.Bind(r.owner())
	} else {
		l.alloc.Release(r.owner())
	}
	return nil
}

// mtu returns the MTU of a record's link.
func (l *ledger) mtu(r *record) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return r.MTU
}

// setMTU journals another MTU of a record's link.
func (l *ledger) setMTU(r *record, mtu int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := *r
	next.MTU = mtu
	if err := l.leases.PutUsingReserve(r.owner().String(), next); err != nil {
		return err
	}
	r.MTU = mtu
	return nil
}

// forget ends a lease whose addresses were never used.
func (l *ledger) forget(r *record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	// Delete the record first: once freed, the addresses may be in another one.
	err := l.leases.Delete(r.owner().String())
	l.alloc.Forget(r.owner())
	l.unindex(r)
	return err
}

// quarantineLease ends a lease whose link is gone, and puts its addresses into quarantine.
func (l *ledger) quarantineLease(r *record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for _, q := range l.alloc.Quarantine(r.owner(), time.Now()) {
		errs = append(errs, l.quarantined.PutUsingReserve(q.Addr.String(), q))
	}
	crashpoint.Hit("network.quarantined")
	errs = append(errs, l.leases.Delete(r.owner().String()))
	crashpoint.Hit("network.gone")
	l.unindex(r)
	if err := errors.Join(errs...); err != nil {
		// The next start repeats this.
		l.log.Error("network: the end of a lease isn't in the journal", "sandbox", pod.Short(r.Attachment.Sandbox), "error", err)
	}
}

// expire ends the quarantines whose time is up, some at a time so that callers don't wait for long.
func (l *ledger) expire() {
	const limit = 256
	for some := limit; some == limit; {
		l.mu.Lock()
		expired := l.alloc.Expire(time.Now(), limit)
		for _, addr := range expired {
			if err := l.quarantined.Delete(addr.String()); err != nil {
				l.log.Error("network: the end of a quarantine isn't in the journal", "address", addr, "error", err)
			}
		}
		l.mu.Unlock()
		some = len(expired)
	}
}

// exhausted returns the error that reserve would return if no address is left, and nil otherwise.
func (l *ledger) exhausted() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.alloc.Exhausted(time.Now())
}

// retire ends the allocation of addresses of blocks.
func (l *ledger) retire(blocks []netip.Prefix) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range blocks {
		l.alloc.RetireBlock(b)
	}
}

// add begins the allocation of addresses of blocks.
func (l *ledger) add(blocks []netip.Prefix) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for _, b := range blocks {
		errs = append(errs, l.alloc.AddBlock(b))
	}
	return errors.Join(errs...)
}

func (l *ledger) usage() (ranges []ipam.Usage, attached int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.records {
		if r.State == ipam.Bound {
			attached++
		}
	}
	return l.alloc.Usage(), attached
}

// strays returns the addresses of pods that are in no range: those from before this node had other
// nodes.
func (l *ledger) strays() (out []netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ranges := l.alloc.Usage()
	for _, r := range l.records {
		for _, addr := range r.addrs() {
			if !slices.ContainsFunc(ranges, func(u ipam.Usage) bool { return u.Range.Contains(addr) }) {
				out = append(out, addr)
			}
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}
