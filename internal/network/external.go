package network

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/ipam"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/pod"
)

// External is the network as other runtimes on the node use it for their pods. huskd has no record
// of these pods' sandboxes. So an attachment lasts until Detach or Collect, or until its network
// namespace is gone, and Reconcile keeps it without being told that it is live.
type External struct{ n *Network }

// External returns the network for the pods of other runtimes.
func (n *Network) External() External { return External{n} }

// Attach is like Network.Attach.
func (e External) Attach(ctx context.Context, a pod.Attachment) (plan.Plan, error) {
	return e.n.attach(ctx, a, true)
}

// Detach is like Network.Detach. It leaves the pods of huskd alone.
func (e External) Detach(ctx context.Context, sandbox string) error {
	if r := e.find(sandbox); r != nil {
		return e.n.Detach(ctx, r.Attachment)
	}
	return nil
}

// Verify returns an error of kind not found if the sandbox isn't attached, and of kind failed
// precondition if the kernel differs from the plan, naming each difference.
func (e External) Verify(ctx context.Context, sandbox string) (plan.Plan, error) {
	unlock, err := e.n.sandboxes.Lock(ctx, sandbox)
	if err != nil {
		return plan.Plan{}, err
	}
	defer unlock()
	r := e.find(sandbox)
	if r == nil || e.n.ledger.state(r) != ipam.Bound {
		return plan.Plan{}, errdefs.ErrNotFound.WithMessage("it isn't attached to this node's network")
	}
	p := e.n.plan(r)
	e.n.kernelMu.RLock()
	diffs, err := e.n.dp.Verify(p)
	e.n.kernelMu.RUnlock()
	var texts []string
	for _, d := range diffs[sandbox] {
		texts = append(texts, d.String())
	}
	if err == nil && len(texts) > 0 {
		err = errdefs.ErrFailedPrecondition.WithMessage(strings.Join(texts, "; "))
	}
	return p, err
}

// Status is like Network.Status.
func (e External) Status(context.Context) error { return e.n.Status() }

// Collect detaches the sandboxes that aren't in live.
func (e External) Collect(ctx context.Context, live map[string]bool) error {
	return e.release(ctx, func(a pod.Attachment) bool { return !live[a.Sandbox] })
}

// ReleaseGone detaches the pods whose network namespaces are gone.
func (e External) ReleaseGone(ctx context.Context) error {
	return e.release(ctx, func(a pod.Attachment) bool { return gone(a.Netns) })
}

func (e External) release(ctx context.Context, ended func(pod.Attachment) bool) error {
	var errs []error
	for _, r := range e.records() {
		if e.n.ledger.state(r) == ipam.Bound && ended(r.Attachment) {
			e.n.log.Info("network: releasing the lease of another runtime's pod that is gone", "pod", r.Attachment.Pod, "addresses", r.Addresses)
			errs = append(errs, e.n.Detach(ctx, r.Attachment))
		}
	}
	return errors.Join(errs...)
}

// ExternalAttachment is an attachment of another runtime's pod.
type ExternalAttachment struct {
	pod.Attachment
	Attached pod.Attached
}

// List returns the attachments, in the order of pods.
func (e External) List() (list []ExternalAttachment) {
	for _, r := range e.records() {
		if e.n.ledger.state(r) == ipam.Bound {
			list = append(list, ExternalAttachment{r.Attachment, *e.n.plan(r).Attached(Name)})
		}
	}
	slices.SortFunc(list, func(a, b ExternalAttachment) int {
		return strings.Compare(fmt.Sprint(a.Pod, a.Sandbox), fmt.Sprint(b.Pod, b.Sandbox))
	})
	return list
}

func (e External) find(sandbox string) *record {
	if r := e.n.ledger.ofSandbox(sandbox); r != nil && r.External {
		return r
	}
	return nil
}

func (e External) records() []*record {
	return slices.DeleteFunc(e.n.ledger.all(), func(r *record) bool { return !r.External })
}

// lives reports whether an external record's attachment continues when huskd starts. The runtime
// has had no answer for one that isn't bound, and doesn't use it.
func (e External) lives(r *record) bool {
	return r.External && e.n.ledger.state(r) == ipam.Bound && !gone(r.Attachment.Netns)
}

// gone reports whether path is no longer a network namespace. If it can't be told, it isn't gone.
func gone(path string) bool {
	var st unix.Statfs_t
	switch err := unix.Statfs(path, &st); {
	case err == nil:
		return st.Type != unix.NSFS_MAGIC && st.Type != unix.PROC_SUPER_MAGIC
	default:
		return err == unix.ENOENT || err == unix.ENOTDIR
	}
}
