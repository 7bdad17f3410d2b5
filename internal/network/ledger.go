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

// record is a lease as the journal has it: all that is needed to make or remove
// the attachment, whatever the configuration has become.
type record struct {
	Attachment pod.Attachment `json:"attachment"`
	State      ipam.State     `json:"state"`     // guarded by ledger.mu
	Since      time.Time      `json:"since"`     // of the state, guarded likewise
	Addresses  []netip.Prefix `json:"addresses"` // with their subnets' length
	Mode       plan.Mode      `json:"mode"`
	MTU        int            `json:"mtu"`
	Source     netip.Addr     `json:"source,omitzero"` // the node's, see plan.Node
}

func ownerOf(a pod.Attachment) ipam.Owner { return ipam.Owner{Sandbox: a.Sandbox, IfName: a.IfName} }

func (r *record) owner() ipam.Owner { return ownerOf(r.Attachment) }

func (r *record) addrs() (out []netip.Addr) {
	for _, p := range r.Addresses {
		out = append(out, p.Addr())
	}
	return out
}

// ledger knows who has which addresses, links and ports, in memory and in the
// journal. It does nothing to the kernel.
type ledger struct {
	instance    pod.Instance
	quarantine  time.Duration
	log         *slog.Logger
	journal     *journal.Journal
	leases      journal.Table[record]
	quarantined journal.Table[ipam.Quarantined]
	sysctls     journal.Table[string] // former values
	subnets     []netip.Prefix

	mu      sync.Mutex // guards what follows
	alloc   *ipam.Allocator
	records map[ipam.Owner]*record
	links   map[string]ipam.Owner // by name of the host's end
	ports   map[uint16][]*record  // by hostPort, until the traffic is cut
}

// openLedger opens the journal. What is in it from before a boot is void: no
// namespace, no link, no conntrack entry and no sysctl of then is left.
func openLedger(cfg Config, boot string) (*ledger, error) {
	j, damage, err := journal.Open(cfg.Dir)
	if err != nil {
		return nil, err
	}
	for _, d := range damage {
		cfg.Log.Error("network: part of the journal is damaged; a pod whose lease was there loses its network", "saved", d.Saved, "bytes", d.Length)
	}
	l := &ledger{
		instance:    cfg.Instance,
		quarantine:  cfg.Quarantine,
		log:         cfg.Log,
		journal:     j,
		leases:      journal.NewTable[record](j, "lease"),
		quarantined: journal.NewTable[ipam.Quarantined](j, "quarantine"),
		sysctls:     journal.NewTable[string](j, "sysctl"),
		records:     map[ipam.Owner]*record{},
		links:       map[string]ipam.Owner{},
		ports:       map[uint16][]*record{},
	}
	if was, ok := j.Get("boot"); ok && string(was) == boot {
		return l, nil
	}
	for key := range j.All("") {
		if err := j.Delete(key); err != nil {
			return nil, errors.Join(err, j.Close())
		}
	}
	if err := j.Put("boot", []byte(boot)); err != nil {
		return nil, errors.Join(err, j.Close())
	}
	return l, nil
}

// restore puts the recorded leases and quarantines into a fresh allocator.
func (l *ledger) restore(subnets []netip.Prefix, now time.Time) error {
	alloc, err := ipam.New(l.quarantine, subnets...)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.subnets, l.alloc = subnets, alloc
	bad := l.leases.Load(func(id string, r record) error {
		if id != r.owner().String() {
			return fmt.Errorf("is of %v", r.owner())
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
		l.log.Error("network: a record is unusable; if it was a pod's, that loses its network", "error", err)
	}
	for _, addr := range alloc.RestoreQuarantine(now, quarantined) {
		if err := l.quarantined.Delete(addr.String()); err != nil {
			return err
		}
	}
	return nil
}

// keep puts a record into memory.
func (l *ledger) index(r *record) {
	l.records[r.owner()] = r
	l.links[l.instance.HostLink(r.Attachment.Sandbox)] = r.owner()
	for _, m := range plan.Mappings(r.Attachment) {
		l.ports[m.HostPort] = append(l.ports[m.HostPort], r)
	}
}

// drop takes a record out of memory.
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

// freePorts lets others have the record's hostPorts.
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

// reserve gives a new record its addresses, host link and ports, and journals
// it. On error it has nothing.
func (l *ledger) reserve(r *record) error {
	if err := l.allocate(r); err != nil {
		return err
	}
	err := l.leases.Put(r.owner().String(), *r)
	for _, addr := range r.addrs() {
		if err == nil { // one that rested until now doesn't any more
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
		return errdefs.ErrAlreadyExists.WithMessage(fmt.Sprintf("link %s is that of %v: detach it first", link, other))
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
	for i, addr := range lease.Addresses {
		r.Addresses = append(r.Addresses, netip.PrefixFrom(addr, l.subnets[i].Bits()))
	}
	l.index(r)
	return nil
}

// clash returns an error if another pod has the port.
func (l *ledger) checkPort(port pod.PortMapping) error {
	for _, other := range l.ports[port.HostPort] {
		for _, theirs := range plan.Mappings(other.Attachment) {
			if plan.Clash(port, theirs) {
				return errdefs.ErrUnavailable.WithMessage(fmt.Sprintf("host port %d/%s is in use on this node: pod %v has it; stop that pod or use another hostPort", port.HostPort, port.Protocol, other.Attachment.Pod))
			}
		}
	}
	return nil
}

// bind journals that the record's pod is attached.
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

// forget ends a lease whose addresses nobody used.
func (l *ledger) forget(r *record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	// The record goes first: the next moment, the addresses may be in another.
	err := l.leases.Delete(r.owner().String())
	l.alloc.Forget(r.owner())
	l.unindex(r)
	return err
}

// end ends a lease whose link is gone. Its addresses rest.
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
		// The next start goes through this again, to the same end.
		l.log.Error("network: a lease ended and the journal doesn't know", "sandbox", pod.Short(r.Attachment.Sandbox), "error", err)
	}
}

// expire ends the quarantines whose time is up, some at a time so that nobody
// waits for long.
func (l *ledger) expire() {
	const limit = 256
	for some := limit; some == limit; {
		l.mu.Lock()
		expired := l.alloc.Expire(time.Now(), limit)
		for _, addr := range expired {
			if err := l.quarantined.Delete(addr.String()); err != nil {
				l.log.Error("network: the end of a quarantine isn't recorded", "address", addr, "error", err)
			}
		}
		l.mu.Unlock()
		some = len(expired)
	}
}

// exhausted returns the error that reserve would, if no address is left.
func (l *ledger) exhausted() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.alloc.Exhausted(time.Now())
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
