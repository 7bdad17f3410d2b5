package controller

import (
	"fmt"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/agent/event"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/manifest/claim"
	"github.com/huskd/husk/internal/workload"
)

// objectsOf returns the objects of a new pod. Those of a StatefulSet's pod include its claims, with
// the volumes that they get. The caller holds c.mu.
func (c *Controller) objectsOf(e *entry, pod *corev1.Pod) manifest.Objects {
	w := e.Workload
	if len(w.Claims) == 0 {
		return e.Objects
	}
	// All claims of the set, because each volume has one claim.
	all := c.shared.With(nil)
	last := max(workload.OrdinalOf(pod), w.Rollout.Start+w.Replicas-1)
	for ordinal := int(w.Rollout.Start); ordinal <= int(last); ordinal++ {
		for i := range w.Claims {
			all[manifest.ObjectKey(manifest.KindClaim, w.Namespace, workload.ClaimName(w, w.Claims[i].Name, ordinal))] = claim.Encode(w.Claims[i].Claim)
		}
	}
	return e.Objects.With(all.Of(pod))
}

// removeClaims removes the claims of a StatefulSet, except for those of its pods and of the
// ordinals that it keeps. The caller holds c.mu.
func (c *Controller) removeClaims(e *entry, pods []workload.Pod, keep int32) {
	used := map[int]bool{}
	for i := range pods {
		used[int(pods[i].Ordinal)] = true
	}
	claims, err := c.cfg.Claims.Claims()
	if err != nil {
		c.cfg.Log.Error("workload: the claims can't be listed", "workload", e.Workload.Ref, "error", err)
		return
	}
	w := e.Workload
	for _, has := range claims {
		ordinal, ok := workload.ClaimOrdinal(w, has.Name)
		if !ok || has.Namespace != w.Namespace || used[ordinal] || ordinal >= int(w.Rollout.Start) && ordinal < int(w.Rollout.Start+keep) {
			continue
		}
		switch err := c.cfg.Claims.RemoveClaim(has.Namespace, has.Name); {
		case errdefs.IsFailedPrecondition(err):
			c.report(e, event.Event{Warning: true, Reason: "ClaimKept", Message: err.Error()})
		case err != nil:
			c.cfg.Log.Error("workload: removing a claim failed", "workload", w.Ref, "error", err)
		default:
			c.report(e, event.Event{Reason: "ClaimRemoved", Message: fmt.Sprintf("claim %s/%s was removed, as persistentVolumeClaimRetentionPolicy says", has.Namespace, has.Name)})
		}
	}
}
