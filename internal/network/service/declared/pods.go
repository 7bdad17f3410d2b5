package declared

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/network/service/endpoints"
)

// pods are those of the node, as endpoints need them.
type pods struct {
	all []endpoints.Pod
	// sandboxes are those of pods with probes that are ready now, by the pods' UIDs.
	sandboxes map[string]string
}

// pods returns the pods that have addresses and have not ended. After a restart of huskd, one that
// was ready before stays so until its probes have answered.
func (s *Services) pods() pods {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := pods{sandboxes: map[string]string{}}
	for _, p := range s.cfg.Pods() {
		uid := string(p.Manifest.UID)
		sandbox, ok := p.Sandbox()
		ended := p.Status.Phase != podplan.PhaseRunning && p.Status.Phase != podplan.PhasePending || p.Finished
		if !ok || ended || len(p.Status.IPs) == 0 {
			delete(s.held, uid)
			continue
		}
		ready, known := p.Status.Ready, probed(p)
		if s.held[uid] && !known && s.ready[uid] == sandbox.ID {
			ready = p.Want == podplan.Run
		} else {
			delete(s.held, uid)
		}
		out.all = append(out.all, podOf(p, ready))
		if ready && hasProbes(p.Manifest) {
			out.sandboxes[uid] = sandbox.ID
		}
	}
	return out
}

func podOf(p agent.Pod, ready bool) endpoints.Pod {
	out := endpoints.Pod{Pod: p.Manifest, Ready: ready, Serving: ready || p.Status.Serving, Terminating: p.Want != podplan.Run}
	for _, text := range p.Status.IPs {
		if a, err := netip.ParseAddr(text); err == nil {
			out.Addresses = append(out.Addresses, a.Unmap())
		}
	}
	return out
}

func hasProbes(pod *corev1.Pod) bool {
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			if containers[i].ReadinessProbe != nil || containers[i].StartupProbe != nil {
				return true
			}
		}
	}
	return false
}

// probed reports whether it is known if a pod is ready: no container runs whose probes have yet to
// answer.
func probed(p agent.Pod) bool {
	probes := map[string]*corev1.Container{}
	for _, containers := range [][]corev1.Container{p.Manifest.Spec.InitContainers, p.Manifest.Spec.Containers} {
		for i := range containers {
			probes[containers[i].Name] = &containers[i]
		}
	}
	unknown := false
	for i := range p.Status.Containers {
		status := &p.Status.Containers[i]
		c := probes[status.Name]
		if status.State != podplan.Running {
			if !status.Init {
				return true // it isn't ready
			}
			continue
		}
		unknown = unknown || c != nil && (c.StartupProbe != nil && status.Health.Startup == podplan.Unknown ||
			c.ReadinessProbe != nil && status.Health.Readiness == podplan.Unknown)
	}
	return !unknown
}

// remember keeps in the journal which pods are ready, of those that Services select. The caller
// holds s.mu.
func (s *Services) remember(now pods, selected map[string]bool) {
	for uid, sandbox := range now.sandboxes {
		if !selected[uid] || s.ready[uid] == sandbox {
			continue
		}
		if err := s.served.Put(uid, sandbox); err != nil {
			s.cfg.Log.Warn("services: a restart of huskd may interrupt a pod's service", "pod", uid, "error", err)
		}
		s.ready[uid] = sandbox
	}
	for uid := range s.ready {
		if now.sandboxes[uid] != "" && selected[uid] {
			continue
		}
		if err := s.served.Delete(uid); err == nil {
			delete(s.ready, uid)
			delete(s.held, uid)
		}
	}
}
