package network

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/pod"
)

// TestRequestedSettings checks that a pod gets the addresses, the MAC and the bandwidth that it
// asks for, and that nothing is left of the bandwidth limits afterwards.
func TestRequestedSettings(t *testing.T) {
	l := newLab(t)
	n := l.open(l.config())
	a := l.attachment()
	a.IPs = []netip.Addr{netip.MustParseAddr("10.88.0.77"), netip.MustParseAddr("fd88::77")}
	a.MAC = "02:00:00:00:00:77"
	a.Bandwidth = pod.Bandwidth{IngressRate: 8_000_000, EgressRate: 4_000_000}
	for range 2 {
		got, err := n.Attach(t.Context(), a)
		must(t, err)
		if got.MAC != a.MAC || got.Addresses[0].Addr() != a.IPs[0] || got.Addresses[1].Addr() != a.IPs[1] {
			t.Errorf("got %+v", got)
		}
	}
	disciplines := func() string { return l.run(l.node, "tc", "qdisc") }
	if out := disciplines(); !strings.Contains(out, "rate 8Mbit") || !strings.Contains(out, "rate 4Mbit") {
		t.Errorf("disciplines:\n%s", out)
	}
	l.run(a.Netns, "ping", "-c1", "-W5", "-n", other4)
	must(t, n.Reconcile(t.Context(), []pod.Attachment{a}))
	if out := disciplines(); !strings.Contains(out, "rate 4Mbit") {
		t.Errorf("after a restart:\n%s", out)
	}
	b := l.attachment()
	b.IPs = a.IPs[:1]
	if _, err := n.Attach(t.Context(), b); !errdefs.IsAlreadyExists(err) {
		t.Errorf("the same address again: %v", err)
	}
	b.IPs, b.MAC = nil, "03:00:00:00:00:01"
	if _, err := n.Attach(t.Context(), b); !errdefs.IsInvalidArgument(err) {
		t.Errorf("the MAC of a group: %v", err)
	}
	must(t, n.Detach(t.Context(), a))
	must(t, n.Reconcile(t.Context(), nil))
	if out := disciplines(); strings.Contains(out, "tbf") || strings.Contains(out, "hf") {
		t.Errorf("left:\n%s", out)
	}
}
