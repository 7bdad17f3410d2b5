package agent

import (
	"context"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"

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
		case <-h.Unattached():
		case <-time.After(patience):
			t.Fatalf("the pod wasn't tried again: %d of %d failures are left", n.left.Load(), failures)
		}
		h.waitFor(uid, "waiting for the network", func(p Pod) bool { return strings.Contains(p.Status.Message, "no block") })
		h.Attachable()
	}
	h.waitFor(uid, "waiting for its image", imageMissing)
}
