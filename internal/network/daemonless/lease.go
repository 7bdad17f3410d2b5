package daemonless

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"go.etcd.io/bbolt"

	"github.com/huskd/husk/internal/network/ipam"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/pod"
)

// addressKey returns the key of an address. It has 16 bytes, so that both families sort in one
// order.
func addressKey(a netip.Addr) []byte {
	b := a.As16()
	return b[:]
}

func keyAddress(b []byte) netip.Addr {
	if len(b) != 16 {
		return netip.Addr{}
	}
	return netip.AddrFrom16([16]byte(b)).Unmap()
}

// inQuarantine is the value of an address in quarantine. (bbolt returns nil for an empty value
// until the transaction ends.)
var inQuarantine = []byte{0}

func isQuarantined(holder []byte) bool { return bytes.Equal(holder, inQuarantine) }

// runs implements ipam.Runs with a bucket.
type runs struct{ *bbolt.Bucket }

func (r runs) Floor(a netip.Addr) (first, last netip.Addr, ok bool) {
	c := r.Cursor()
	key := addressKey(a)
	k, v := c.Seek(key)
	if !bytes.Equal(k, key) {
		k, v = c.Prev()
		if k == nil {
			return first, last, false
		}
	}
	first, last = keyAddress(k), keyAddress(v)
	return first, last, first.Is4() == a.Is4()
}

func (r runs) Put(first, last netip.Addr) error {
	return r.Bucket.Put(addressKey(first), addressKey(last))
}

func (r runs) Delete(first netip.Addr) error { return r.Bucket.Delete(addressKey(first)) }

// reserve records a new lease with an address of each set, and takes the name of its link and its
// ports.
func (t *tx) reserve(r *record, sets []ipam.Ranges, now time.Time) error {
	if err := t.expire(now, 16); err != nil {
		return err
	}
	if err := t.checkConflicts(r); err != nil {
		return err
	}
	wanted, err := matchRanges(r.Attachment.IPs, sets)
	if err != nil {
		return err
	}
	for i, set := range sets {
		a, err := t.pickAddress(set, wanted[i], now)
		if err != nil {
			return err
		}
		of, _ := set.Contains(a)
		r.Addresses = append(r.Addresses, netip.PrefixFrom(a, of.Subnet.Bits()))
		if err := t.take(a, r.Attachment.Sandbox); err != nil {
			return err
		}
	}
	for _, m := range plan.Mappings(r.Attachment) {
		value, err := json.Marshal(m)
		if err == nil {
			err = t.ports.Put(portKey(m, r.Attachment.Sandbox), value)
		}
		if err != nil {
			return err
		}
	}
	return t.put(r)
}

// matchRanges returns the wanted address of each set, the zero Addr where any will do.
func matchRanges(want []netip.Addr, sets []ipam.Ranges) ([]netip.Addr, error) {
	out := make([]netip.Addr, len(sets))
next:
	for _, w := range want {
		for i, set := range sets {
			if _, ok := set.Contains(w); !ok {
				continue
			}
			if out[i].IsValid() {
				return nil, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("addresses %v and %v are of the same range: ask for one of them", out[i], w))
			}
			out[i] = w
			continue next
		}
		return nil, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("address %v is in no range of this network", w))
	}
	return out, nil
}

func (t *tx) pickAddress(set ipam.Ranges, want netip.Addr, now time.Time) (netip.Addr, error) {
	if want.IsValid() {
		return want, t.request(want, now)
	}
	key := cursorKey(set)
	a, ok := set.Next(runs{t.runs}, keyAddress(t.meta.Get(key)))
	if !ok {
		return a, t.exhaustedError(set, now)
	}
	return a, t.meta.Put(key, addressKey(a))
}

// cursorKey returns the key of the last allocated address.
func cursorKey(set ipam.Ranges) []byte { return []byte("cursor/" + set[0].Subnet.String()) }

// request makes a certain address available to take, or returns why it isn't.
func (t *tx) request(a netip.Addr, now time.Time) error {
	holder := t.addresses.Get(addressKey(a))
	if holder != nil && !isQuarantined(holder) {
		return errdefs.ErrAlreadyExists.WithMessage(fmt.Sprintf("address %v is in use: %s has it", a, t.nameOf(string(holder))))
	}
	if holder == nil {
		return nil
	}
	c := t.quarantined.Cursor()
	for k, _ := c.First(); k != nil; k, _ = c.Next() {
		until, addr := parseQuarantine(k)
		if addr != a {
			continue
		}
		if until.After(now) {
			return errdefs.ErrUnavailable.WithMessage(fmt.Sprintf("address %v was in use a moment ago: free again in %v", a, until.Sub(now).Round(time.Second)))
		}
		return t.endQuarantine(k)
	}
	return t.free(a)
}

// nameOf names the holder of a lease in errors.
func (t *tx) nameOf(sandbox string) string {
	if r := t.find(sandbox); r != nil && !r.reconstructed {
		return "pod " + r.Attachment.Pod.String()
	}
	return "sandbox " + pod.Short(sandbox)
}

// exhaustedError returns the error for a set without free addresses.
func (t *tx) exhaustedError(set ipam.Ranges, now time.Time) error {
	quarantined, next := 0, time.Time{}
	_ = t.quarantined.ForEach(func(k, _ []byte) error {
		until, a := parseQuarantine(k)
		if _, ok := set.Contains(a); ok {
			if quarantined++; next.IsZero() {
				next = until
			}
		}
		return nil
	})
	msg := fmt.Sprintf("no address is left in %v", set[0].Subnet)
	if len(set) > 1 {
		msg += fmt.Sprintf(" and %d more", len(set)-1)
	}
	if quarantined > 0 {
		msg += fmt.Sprintf(": %d in quarantine, the next is free in %v", quarantined, next.Sub(now).Round(time.Second))
	}
	return errdefs.ErrResourceExhausted.WithMessage(msg + ": remove pods or configure a larger subnet")
}

// exhausted returns the error that reserve would return if a set has no address left, and nil
// otherwise.
func (t *tx) exhausted(sets []ipam.Ranges, now time.Time) error {
	if k, _ := t.quarantined.Cursor().First(); k != nil {
		if until, _ := parseQuarantine(k); !until.After(now) {
			return nil
		}
	}
	for _, set := range sets {
		if _, ok := set.Next(runs{t.runs}, keyAddress(t.meta.Get(cursorKey(set)))); !ok {
			return t.exhaustedError(set, now)
		}
	}
	return nil
}

// checkConflicts returns an error if another sandbox has the link's name or one of the ports.
func (t *tx) checkConflicts(r *record) error {
	prefix := r.Attachment.Sandbox[:linkDigits]
	if k, _ := t.leases.Cursor().Seek([]byte(prefix)); k != nil && pod.Clash(string(k), r.Attachment.Sandbox) {
		return errdefs.ErrAlreadyExists.WithMessage(fmt.Sprintf("its link's name is taken by %s: detach that first", t.nameOf(string(k))))
	}
	for _, m := range plan.Mappings(r.Attachment) {
		prefix := portKey(m, "")
		c := t.ports.Cursor()
		for k, v := c.Seek(prefix); k != nil && bytes.HasPrefix(k, prefix); k, v = c.Next() {
			if theirs, holder := parsePort(k, v); plan.Clash(m, theirs) {
				return &pod.PortInUseError{Port: m, By: fmt.Sprintf("%s has it; stop that pod or use another hostPort", t.nameOf(holder))}
			}
		}
	}
	return nil
}

// linkDigits is how many digits of the sandbox ID are in the link's name, see pod.Clash.
const linkDigits = 9

func portKey(m pod.PortMapping, sandbox string) []byte {
	key := binary.BigEndian.AppendUint16(nil, m.HostPort)
	return append(append(key, (m.Protocol+"/")...), sandbox...)
}

// parsePort parses an entry of the ports. If the value is unreadable, the port counts as taken on
// all addresses.
func parsePort(key, value []byte) (m pod.PortMapping, sandbox string) {
	if len(key) < 2 {
		return m, ""
	}
	protocol, sandbox, _ := strings.Cut(string(key[2:]), "/")
	if json.Unmarshal(value, &m) != nil {
		m = pod.PortMapping{}
	}
	m.HostPort, m.Protocol = binary.BigEndian.Uint16(key), pod.Protocol(protocol)
	return m, sandbox
}

// take assigns an address to a sandbox.
func (t *tx) take(a netip.Addr, sandbox string) error {
	if ipam.Taken(runs{t.runs}, a) || t.addresses.Get(addressKey(a)) != nil {
		return errdefs.ErrDataLoss.WithMessage(fmt.Sprintf("address %v is recorded as free and as in use", a))
	}
	return errors.Join(t.addresses.Put(addressKey(a), []byte(sandbox)), ipam.Take(runs{t.runs}, a))
}

// free makes an address available.
func (t *tx) free(a netip.Addr) error {
	return errors.Join(t.addresses.Delete(addressKey(a)), ipam.Free(runs{t.runs}, a))
}

// release records that an attachment is being detached.
func (t *tx) release(r *record) error {
	if r.Releasing > 0 {
		return nil
	}
	r.Releasing = bootTime().UnixNano()
	return errors.Join(t.put(r), t.releasing.Put(releasingKey(r), []byte{1}))
}

func releasingKey(r *record) []byte {
	return append(binary.BigEndian.AppendUint64(nil, uint64(r.Releasing)), r.Attachment.Sandbox...)
}

// unfinished returns the sandboxes whose detachment began before a time and hasn't ended, because
// the process doing it died.
func (t *tx) unfinished(before time.Time, limit int) (out []string) {
	c := t.releasing.Cursor()
	for k, _ := c.First(); k != nil && len(out) < limit; k, _ = c.Next() {
		since, sandbox := parseReleasing(k)
		if since >= before.UnixNano() {
			break
		}
		out = append(out, sandbox)
	}
	return out
}

func parseReleasing(key []byte) (since int64, sandbox string) {
	if len(key) <= 8 {
		return 0, ""
	}
	return int64(binary.BigEndian.Uint64(key)), string(key[8:])
}

// end forgets a lease. Its addresses are in quarantine until the given time. The zero Time means
// that they were never used, and frees them at once.
func (t *tx) end(r *record, until time.Time) error {
	var errs []error
	for _, a := range r.addrs() {
		if holder := t.addresses.Get(addressKey(a)); string(holder) != r.Attachment.Sandbox {
			continue
		}
		if until.IsZero() {
			errs = append(errs, t.free(a))
			continue
		}
		errs = append(errs, t.addresses.Put(addressKey(a), inQuarantine), t.quarantined.Put(quarantineKey(until, a), nil))
	}
	if r.Releasing > 0 {
		errs = append(errs, t.releasing.Delete(releasingKey(r)))
	}
	return errors.Join(append(errs, t.freePorts(r), t.leases.Delete([]byte(r.Attachment.Sandbox)))...)
}

// freePorts makes the ports of an attachment that is cut off available. The record forgets them:
// cutting it off again must not affect the next owner's.
func (t *tx) freePorts(r *record) error {
	var errs []error
	for _, m := range plan.Mappings(r.Attachment) {
		errs = append(errs, t.ports.Delete(portKey(m, r.Attachment.Sandbox)))
	}
	r.Attachment.Ports = nil
	return errors.Join(append(errs, t.put(r))...)
}

func quarantineKey(until time.Time, a netip.Addr) []byte {
	return append(binary.BigEndian.AppendUint64(nil, uint64(until.UnixNano())), addressKey(a)...)
}

func parseQuarantine(key []byte) (until time.Time, a netip.Addr) {
	if len(key) != 24 {
		return until, a
	}
	return time.Unix(0, int64(binary.BigEndian.Uint64(key))), keyAddress(key[8:])
}

// expire frees addresses whose quarantine is over, at most limit of them.
func (t *tx) expire(now time.Time, limit int) error {
	for range limit {
		k, _ := t.quarantined.Cursor().First()
		if k == nil {
			return nil
		}
		if until, _ := parseQuarantine(k); until.After(now) {
			return nil
		}
		if err := t.endQuarantine(bytes.Clone(k)); err != nil {
			return err
		}
	}
	return nil
}

// endQuarantine frees the address of a quarantine key.
func (t *tx) endQuarantine(key []byte) error {
	_, a := parseQuarantine(key)
	err := t.quarantined.Delete(key)
	if isQuarantined(t.addresses.Get(addressKey(a))) {
		err = errors.Join(err, t.free(a))
	}
	return err
}
