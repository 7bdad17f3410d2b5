package agent

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/pod"
)

// TestCountsUserNamespaces: starts of sandboxes with a user namespace are counted, and those of
// them that fail.
func TestCountsUserNamespaces(t *testing.T) {
	h := newHarness(t)
	h.cfg.PortTaken = func(pod.PortMapping) error { return errors.New("taken") }
	for _, own := range []bool{false, true} {
		name := map[bool]string{false: "shared", true: "own"}[own]
		p := parse(t, name, "")
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80}}
		if own {
			p.Spec.HostUsers = new(false)
		}
		h.apply(p)
		h.waitFor(string(p.UID), "refused", func(p Pod) bool { return p.Status.Message == "taken" })
		started, failed := h.UserNamespaced.Count()
		if own != (failed > 0) || failed > started || !own && started > 0 {
			t.Errorf("pod %s: %d starts with a user namespace, %d failed", name, started, failed)
		}
	}
}
