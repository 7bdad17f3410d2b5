package plan

import "github.com/huskd/husk/internal/pod"

// Bandwidth limits the rates of a pod's veth. Packets to the pod queue on the host's end. Packets
// from the pod are redirected to an IFB and queue there, as Linux can't queue on ingress.
type Bandwidth struct {
	Link    string
	ToPod   Rate
	IFB     string
	FromPod Rate
}

// Rate is bits per second with a burst of bits. The zero Rate is unlimited.
type Rate struct{ Bits, Burst uint64 }

// IFBPrefix returns the prefix of the names of an instance's IFBs.
func IFBPrefix(i pod.Instance) string { return "hf" + string(i) }

// The default burst is what the rate lets through in this part of a second, but at least enough for
// one packet of the largest kind.
const (
	burstPart     = 20
	smallestBurst = 8 * 64 << 10
)

func rate(bits, burst uint64) Rate {
	if bits == 0 {
		return Rate{}
	}
	if burst == 0 {
		burst = bits / burstPart
	}
	return Rate{bits, max(burst, smallestBurst)}
}

func bandwidthOf(i pod.Instance, a pod.Attachment) Bandwidth {
	b := a.Bandwidth
	s := Bandwidth{ToPod: rate(b.IngressRate, b.IngressBurst), FromPod: rate(b.EgressRate, b.EgressBurst)}
	link := i.HostLink(a.Sandbox)
	if s != (Bandwidth{}) {
		s.Link = link
	}
	if s.FromPod.Bits > 0 {
		s.IFB = IFBPrefix(i) + link[len(i.HostLinkPrefix()):]
	}
	return s
}
