package agent

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/agent/event"
	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/pod"
)

// fullNetwork has no address for pods until some attachments have failed.
type fullNetwork struct{ left atomic.Int32 }

func (n *fullNetwork) Attach(context.Context, pod.Attachment) ([]pod.Attached, error) {
	if n.left.Add(-1) >= 0 {
		return nil, errdefs.ErrUnavailable.WithMessage("this node has no block of pod addresses yet")
	}
	return []pod.Attached{{Network: "full", IfName: "eth0", Addresses: []netip.Prefix{netip.MustParsePrefix("10.201.1.2/24")}}}, nil
}

func (*fullNetwork) Detach(context.Context, pod.Attachment) error { return nil }

// TestAttachable: a pod that the network couldn't take doesn't wait any longer once that may have
// changed, however often it failed. By itself, it would wait for two minutes in all.
func TestAttachable(t *testing.T) {
	t.Parallel()
	hosttest.Root(t)
	const failures = 7
	n := &fullNetwork{}
	n.left.Store(failures)
	h := &harness{t: t, dir: t.TempDir(), network: n}
	h.start()
	t.Cleanup(h.close)
	web := podFrom(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {hostIPC: true, containers: [{name: c, image: 'reg.test/none:1', imagePullPolicy: Never}]}\n")
	uid := string(web.UID)
	h.apply(web)
	for range failures {
		select {
		case <-h.Unattached:
		case <-time.After(patience):
			t.Fatalf("the pod wasn't tried again: %d of %d failures are left", n.left.Load(), failures)
		}
		h.waitFor(uid, "waiting for the network", func(p Pod) bool { return strings.Contains(p.Status.Message, "no block") })
		h.Attachable()
	}
	h.waitFor(uid, "waiting for its image", imageMissing)
}

// TestDisplaced: a pod whose address isn't the node's any more is marked, also after a restart, and
// gets another sandbox once that must be replaced.
func TestDisplaced(t *testing.T) {
	t.Parallel()
	hosttest.Root(t)
	h := &harness{t: t, dir: t.TempDir(), network: &fullNetwork{}}
	h.start()
	t.Cleanup(h.close)
	web := podFrom(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {hostIPC: true, containers: [{name: c, image: 'reg.test/none:1', imagePullPolicy: Never}]}\n")
	uid := string(web.UID)
	h.apply(web)
	before, _ := h.waitFor(uid, "waiting for its image", imageMissing).Sandbox()
	displace := func(d pod.Displacement) {
		t.Helper()
		for end := time.Now().Add(patience); !h.cfg.Sandboxes.Displace(before.ID, d); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("the sandbox is always busy")
			}
		}
	}
	marked := func(p Pod) bool {
		st, _ := p.Sandbox()
		return st.ID == before.ID && st.Displaced == pod.Displacement{Message: "its address is another's"}
	}
	displace(pod.Displacement{Message: "its address is another's"})
	h.waitFor(uid, "marked", marked)
	h.restart()
	h.waitFor(uid, "marked after a restart", marked)
	displace(pod.Displacement{})
	h.waitFor(uid, "no longer marked", func(p Pod) bool { st, _ := p.Sandbox(); return st.Displaced == pod.Displacement{} })
	displace(pod.Displacement{Message: "its address is another's", Replace: true})
	h.waitFor(uid, "in another sandbox", func(p Pod) bool {
		st, _ := p.Sandbox()
		return st.ID != before.ID && imageMissing(p) && st.Displaced == pod.Displacement{}
	})
	events, _, _ := h.Events.After(0)
	if !slices.ContainsFunc(events, func(e event.Event) bool { return e.Pod == "default/web" && e.Reason == "SandboxChanged" }) {
		t.Errorf("no event of the new sandbox: %+v", events)
	}
}
