package declared

import (
	"net/netip"

	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/network/service/endpoints"
)

// pods returns the pods of the node that have addresses and have not ended.
func (s *Services) pods() (out []endpoints.Pod) {
	for _, p := range s.cfg.Pods() {
		_, ok := p.Sandbox()
		ended := p.Status.Phase != podplan.PhaseRunning && p.Status.Phase != podplan.PhasePending || p.Finished
		if ok && !ended && len(p.Status.IPs) > 0 {
			out = append(out, podOf(p))
		}
	}
	return out
}

func podOf(p agent.Pod) endpoints.Pod {
	out := endpoints.Pod{Pod: p.Manifest, Ready: p.Status.Ready, Serving: p.Status.Serving, Terminating: p.Want != podplan.Run}
	for _, text := range p.Status.IPs {
		if a, err := netip.ParseAddr(text); err == nil {
			out.Addresses = append(out.Addresses, a.Unmap())
		}
	}
	return out
}
