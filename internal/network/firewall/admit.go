package firewall

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/containerd/errdefs"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/huskd/husk/internal/crashpoint"
	"github.com/huskd/husk/internal/network/policy"
	"github.com/huskd/husk/internal/pod"
)

const (
	// sourceLimit is how long Admit waits for a source that can't be reached.
	sourceLimit = 10 * time.Second
	// restoredLimit is that if the policies of a former huskd are known.
	restoredLimit = 2 * time.Second
	// objectLimit is how long Admit waits for the object of a pod of which it has no labels.
	objectLimit = 5 * time.Second
)

// Admit puts the policies of a pod in force that is about to be attached. It implements
// network.Policy.
func (f *Firewall) Admit(ctx context.Context, a pod.Attachment, addresses []netip.Prefix) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	limit := sourceLimit
	if f.restored && !f.awaited {
		limit = restoredLimit
	}
	if err := f.await(ctx, limit, func() bool { return f.synced && !f.awaited || f.without() }); err != nil {
		if !f.restored || f.awaited {
			return errdefs.ErrUnavailable.WithMessage(fmt.Sprintf("network policy is not known yet: %v", f.why))
		}
		f.synced = true
	}
	f.add(a, addresses)
	known := func() bool { return len(f.world.policies) == 0 || f.known(keyOf(a)) != nil }
	if err := f.await(ctx, objectLimit, known); err != nil {
		f.remove(a)
		return errdefs.ErrUnavailable.WithMessage("network policy: the labels of the pod are not known yet: the API server has not sent the pod")
	}
	if err := f.commitLocked(); err != nil {
		f.remove(a)
		notify(f.changed)
		return err
	}
	crashpoint.Hit("policy.admitted")
	return nil
}

// without reports whether pods run without policy. If a former huskd has left rules, they don't:
// its policies are still in force. The caller holds mu.
func (f *Firewall) without() bool {
	if f.synced || f.restored || f.cfg.Required || !errdefs.IsPermissionDenied(f.why) {
		return false
	}
	left, err := f.cfg.Kernel.Exists()
	return err == nil && !left
}

// await waits until ok, without holding mu meanwhile. The caller holds mu.
func (f *Firewall) await(ctx context.Context, limit time.Duration, ok func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for !ok() {
		progress := f.progress
		f.mu.Unlock()
		select {
		case <-progress:
		case <-ctx.Done():
		}
		f.mu.Lock()
		if ctx.Err() != nil && !ok() {
			return ctx.Err()
		}
	}
	return nil
}

// Adopt is Admit for a pod that is attached already. It doesn't wait: the rules of a former huskd
// are in force until the source has answered.
func (f *Firewall) Adopt(a pod.Attachment, addresses []netip.Prefix) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.add(a, addresses)
	notify(f.changed)
}

// Forget removes a pod whose packets are cut off.
func (f *Firewall) Forget(a pod.Attachment) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.local[keyOf(a)].owner == ownerOf(a) {
		f.remove(a)
		crashpoint.Hit("policy.forgotten")
		notify(f.changed)
	}
}

func keyOf(a pod.Attachment) string { return a.Pod.Namespace + "/" + a.Pod.Name }

func ownerOf(a pod.Attachment) string { return a.Sandbox + "/" + a.IfName }

// add makes a pod a local one. The caller holds mu.
func (f *Firewall) add(a pod.Attachment, addresses []netip.Prefix) {
	l := local{owner: ownerOf(a), since: time.Now(), labels: labels.Set(a.Labels)}
	for _, p := range addresses {
		l.addresses = append(l.addresses, p.Addr())
	}
	f.local[keyOf(a)] = l
	f.localChanged(keyOf(a))
}

// remove is the reverse of add. The caller holds mu.
func (f *Firewall) remove(a pod.Attachment) {
	delete(f.local, keyOf(a))
	f.localChanged(keyOf(a))
}

// localChanged tells the compiler that a pod is local now, or no longer. The caller holds mu.
func (f *Firewall) localChanged(key string) {
	f.compiler.Change(policy.Changes{Pods: map[string]*policy.Pod{key: f.known(key)}})
	var addresses []netip.Addr
	for _, l := range f.local {
		addresses = append(addresses, l.addresses...)
	}
	f.compiler.SetLocal(addresses)
	f.cfg.LocalChanged()
}
