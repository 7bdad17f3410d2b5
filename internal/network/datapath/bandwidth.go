package datapath

import (
	"errors"
	"fmt"
	"math"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/nlsock"
	"github.com/huskd/husk/internal/network/plan"
)

// queueTime is how long a packet may be queued, in seconds. Packets that would have to wait longer
// are dropped.
const queueTime = 0.025

// setBandwidth limits the rates of an existing veth.
func setBandwidth(h *netlink.Handle, s plan.Bandwidth) error {
	host, err := h.LinkByName(s.Link)
	if err != nil {
		return fmt.Errorf("bandwidth of %s: %w", s.Link, err)
	}
	if s.ToPod.Bits > 0 {
		if err := h.QdiscReplace(tokenBucket(host, s.ToPod)); err != nil {
			return unsupported(err, "bandwidth of %s: token bucket", s.Link)
		}
	}
	if s.FromPod.Bits == 0 {
		return nil
	}
	ifb, err := ensureIFB(h, s.IFB, host.Attrs().MTU)
	if err != nil {
		return err
	}
	if err := h.QdiscReplace(tokenBucket(ifb, s.FromPod)); err != nil {
		return unsupported(err, "bandwidth of %s: token bucket", s.IFB)
	}
	entry := &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: host.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_INGRESS}}
	if err := h.QdiscAdd(entry); err != nil && !errors.Is(err, unix.EEXIST) {
		return unsupported(err, "bandwidth of %s: ingress", s.Link)
	}
	// FilterReplace, so that a repetition doesn't redirect packets twice.
	err = h.FilterReplace(&netlink.U32{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: host.Attrs().Index, Parent: entry.Handle, Priority: 1, Handle: u32Handle, Protocol: unix.ETH_P_ALL},
		ClassId:     netlink.MakeHandle(1, 1),
		Actions:     []netlink.Action{netlink.NewMirredAction(ifb.Attrs().Index)},
	})
	if err != nil {
		return unsupported(err, "bandwidth of %s: redirection to %s", s.Link, s.IFB)
	}
	return nil
}

// u32Handle is the handle of the first filter in the kernel's default hash table.
const u32Handle = 0x800<<20 | 0x800

// ensureIFB makes an IFB, or uses the existing one.
func ensureIFB(h *netlink.Handle, name string, mtu int) (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.Flags = name, mtu, unix.IFF_UP
	if err := h.LinkAdd(&netlink.Ifb{LinkAttrs: attrs}); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, unsupported(err, "link %s of kind ifb", name)
	}
	link, err := h.LinkByName(name)
	if err == nil {
		err = h.LinkSetUp(link)
	}
	if err != nil {
		return nil, fmt.Errorf("link %s: %w", name, err)
	}
	return link, nil
}

// unsupported adds to an error what the kernel may lack.
func unsupported(err error, format string, args ...any) error {
	what := fmt.Sprintf(format, args...)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%s: %w: the kernel has no support for it (IFB, NET_SCH_TBF, NET_SCH_INGRESS, NET_CLS_U32, NET_ACT_MIRRED)", what, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// tokenBucket returns the discipline that limits a link to a rate.
func tokenBucket(link netlink.Link, r plan.Rate) *netlink.Tbf {
	bytes := max(1, r.Bits/8)
	burst := min(r.Burst/8, math.MaxUint32)
	// In ticks, the burst must fit 32 bits.
	for burst > 1 && float64(burst)/float64(bytes)*netlink.TIME_UNITS_PER_SEC*netlink.TickInUsec() > math.MaxInt32 {
		burst /= 2
	}
	limit := min(float64(bytes)*queueTime+float64(burst), math.MaxUint32)
	return &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       bytes,
		Limit:      uint32(limit),
		Buffer:     netlink.Xmittime(bytes, uint32(burst)),
	}
}

// compareBandwidth returns what is missing of the limits of an existing veth.
func compareBandwidth(h *netlink.Handle, s plan.Bandwidth) (diffs []Difference, err error) {
	check := func(name string, r plan.Rate) error {
		if r.Bits == 0 {
			return nil
		}
		link, err := h.LinkByName(name)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			diffs = append(diffs, Difference{Object: "link " + name, Problem: missing})
			return nil
		}
		if err != nil {
			return fmt.Errorf("link %s: %w", name, err)
		}
		disciplines, err := nlsock.Complete(func() ([]netlink.Qdisc, error) { return h.QdiscList(link) })
		if err != nil {
			return fmt.Errorf("list queueing disciplines of %s: %w", name, err)
		}
		for _, q := range disciplines {
			if t, ok := q.(*netlink.Tbf); ok && t.Rate == tokenBucket(link, r).Rate {
				return nil
			}
		}
		diffs = append(diffs, Difference{Object: fmt.Sprintf("rate of %d bits per second on %s", r.Bits, name), Problem: missing})
		return nil
	}
	err = errors.Join(check(s.Link, s.ToPod), check(s.IFB, s.FromPod))
	if err != nil || s.FromPod.Bits == 0 || len(diffs) > 0 {
		return diffs, err
	}
	host, err := h.LinkByName(s.Link)
	if err != nil {
		return diffs, nil // its absence is reported elsewhere
	}
	filters, err := nlsock.Complete(func() ([]netlink.Filter, error) {
		return h.FilterList(host, netlink.MakeHandle(0xffff, 0))
	})
	if err != nil || len(filters) == 0 {
		diffs = append(diffs, Difference{Object: "redirection of " + s.Link + " to " + s.IFB, Problem: missing})
	}
	return diffs, nil
}
