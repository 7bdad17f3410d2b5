package daemonless

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/huskd/husk/internal/hosttest"
)

// TestAbandonedDetach checks that without a GC, a later detachment of another sandbox also finishes
// one that was abandoned. It leaves alone one that a call is working on, a recent one, and a
// sandbox that has been attached again.
func TestAbandonedDetach(t *testing.T) {
	hosttest.Root(t)
	s := newBench(t)
	n := newNetwork(t, "10.244.0.0/24")
	n.cfg.Netns = s.node
	attach := func(name, ifName string) *record {
		r := fresh(name)
		r.Attachment.Netns, r.Attachment.IfName = s.pod, ifName
		_, err := n.Attach(t.Context(), r.Attachment)
		must(t, err)
		return r
	}
	// age moves the start of a detachment into the past.
	age := func(r *record) {
		must(t, n.change(func(b *tx) error {
			found := b.find(r.Attachment.Sandbox)
			must(t, b.releasing.Delete(releasingKey(found)))
			found.Releasing -= int64(2 * resumeAfter)
			must(t, b.put(found))
			return b.releasing.Put(releasingKey(found), []byte{1})
		}))
	}
	leases := func(want int) {
		t.Helper()
		if got, _ := contents(t, n); len(got) != want {
			t.Errorf("%d leases, want %d", len(got), want)
		}
	}
	left, young, busy, again := attach("left", "eth0"), attach("young", "eth1"), attach("busy", "eth2"), attach("again", "eth3")
	for _, r := range []*record{left, young, busy, again} {
		_, err := n.BeginDetach(t.Context(), r.Attachment.Sandbox)
		must(t, err)
		if r != young {
			age(r)
		}
	}
	work, err := n.lock(t.Context(), scope(busy.Attachment.Sandbox))
	must(t, err)
	r, err := n.BeginDetach(t.Context(), attach("other", "eth4").Attachment.Sandbox)
	must(t, err)
	if len(r.others) != 3 {
		t.Errorf("%d abandoned sandboxes, want 3", len(r.others))
	}
	attach("again", "eth3")
	must(t, n.FinishDetach(t.Context(), r))
	leases(3) // young, busy and again
	if _, err := n.Verify(t.Context(), again.Attachment.Sandbox); err != nil {
		t.Errorf("the sandbox attached again is damaged: %v", err)
	}
	work.release()
	must(t, n.Detach(t.Context(), attach("more", "eth5").Attachment.Sandbox))
	leases(2)
	must(t, n.Collect(t.Context(), nil))
	leases(0)
	must(t, n.look(func(b *tx) error {
		if k, _ := b.releasing.Cursor().First(); k != nil {
			t.Errorf("%s is still in the releasing bucket, since %v", k[8:], time.Duration(binary.BigEndian.Uint64(k)))
		}
		return nil
	}))
}
