package network

import (
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/ipam"
	"github.com/huskd/husk/internal/pod"
)

// externally attaches a pod of another runtime.
func (l *lab) externally(n *Network) guest {
	l.t.Helper()
	a := l.attachment()
	p, err := n.External().Attach(l.t.Context(), a)
	must(l.t, err)
	return guest{a, p.Attached(Name)}
}

// sandboxesOf returns which of the pods are attached.
func sandboxesOf(n *Network) map[string]bool {
	out := map[string]bool{}
	for _, a := range n.External().List() {
		out[a.Sandbox] = true
	}
	return out
}

// TestExternal checks that the pods of another runtime keep their network over huskd's restart for
// as long as their namespaces exist, and that nobody but that runtime detaches them.
func TestExternal(t *testing.T) {
	l := newLab(t)
	ctx := t.Context()
	n := l.open(l.config())
	own := l.attach(n)
	stays, ends, dies := l.externally(n), l.externally(n), l.externally(n)
	l.run(stays.Netns, "ping", "-c1", "-W5", "-n", other4)
	if again, err := n.External().Attach(ctx, stays.Attachment); err != nil || again.Attached(Name).Addresses[0] != stays.Addresses[0] {
		t.Errorf("the same again: %v, %v", again, err)
	}
	must(t, n.Close())

	must(t, unix.Unmount(dies.Netns, unix.MNT_DETACH))
	n = l.open(l.config())
	must(t, n.Reconcile(ctx, []pod.Attachment{own.Attachment}))
	if got := sandboxesOf(n); len(got) != 2 || !got[stays.Sandbox] || !got[ends.Sandbox] {
		t.Errorf("after a restart: %v", got)
	}
	l.run(stays.Netns, "ping", "-c1", "-W5", "-n", other4)
	if _, err := n.External().Verify(ctx, stays.Sandbox); err != nil {
		t.Error(err)
	}
	l.ip(stays.Netns, "link set eth0 down")
	if _, err := n.External().Verify(ctx, stays.Sandbox); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a link that is down: %v", err)
	}
	if _, err := n.External().Verify(ctx, own.Sandbox); !errdefs.IsNotFound(err) {
		t.Errorf("a pod of huskd: %v", err)
	}

	must(t, unix.Unmount(ends.Netns, unix.MNT_DETACH))
	must(t, n.External().ReleaseGone(ctx))
	if got := sandboxesOf(n); len(got) != 1 || !got[stays.Sandbox] {
		t.Errorf("after a namespace has gone: %v", got)
	}
	must(t, n.External().Collect(ctx, nil))
	must(t, n.External().Detach(ctx, own.Sandbox))
	if got := sandboxesOf(n); len(got) != 0 {
		t.Errorf("after Collect: %v", got)
	}
	l.run(own.Netns, "ping", "-c1", "-W5", "-n", other4)
	must(t, n.Detach(ctx, own.Attachment))
	eventually(t, "all links are deleted", func() bool { return len(n.Usage().Debts) == 0 })
	must(t, n.Teardown())
}

// TestExternalUnanswered checks that an address isn't kept for a runtime that has had no answer.
func TestExternalUnanswered(t *testing.T) {
	l := newLab(t)
	n := l.open(l.config())
	a := l.attachment()
	r, err := n.reserve(a, true)
	must(t, err)
	must(t, n.Close())
	n = l.open(l.config())
	must(t, n.Reconcile(t.Context(), nil))
	if again := n.ledger.find(ipam.Owner{Sandbox: a.Sandbox, IfName: "eth0"}); again != nil {
		t.Errorf("%v is still there", r.Addresses)
	}
}
