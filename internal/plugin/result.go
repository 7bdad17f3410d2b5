package plugin

import (
	"encoding/json"
	"net"
	"net/netip"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/huskd/husk/internal/network/plan"
)

// previous returns the result of the previous plugins; an empty one if there is none.
func previous(raw json.RawMessage, cniVersion string) (*current.Result, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return &current.Result{}, nil
	}
	c := &types.PluginConf{CNIVersion: cniVersion}
	err := json.Unmarshal(raw, &c.RawPrevResult)
	if err == nil {
		// A result without a version has the configuration's.
		c.RawPrevResult["cniVersion"] = cniVersion
		err = version.ParsePrevResult(c)
	}
	var r *current.Result
	if err == nil {
		r, err = current.NewResultFromResult(c.PrevResult)
	}
	if err != nil {
		return nil, fault(types.ErrDecodingFailure, "prevResult: %v", err)
	}
	for _, ip := range r.IPs {
		if ip == nil || ip.Interface != nil && (*ip.Interface < 0 || *ip.Interface >= len(r.Interfaces)) {
			return nil, fault(types.ErrDecodingFailure, "prevResult: an address belongs to an interface that isn't listed")
		}
	}
	return r, nil
}

// answer adds the attachment to the result of the previous plugins.
func answer(prev *current.Result, made plan.Plan, dns types.DNS) *current.Result {
	r := prev
	add := func(name, mac, sandbox string) {
		r.Interfaces = append(r.Interfaces, &current.Interface{Name: name, Mac: mac, Mtu: made.Veth.MTU, Sandbox: sandbox})
	}
	if made.Veth.Bridge != "" {
		add(made.Veth.Bridge, "", "")
		r.Interfaces[len(r.Interfaces)-1].Mtu = 0
	}
	add(made.Veth.Host, made.Veth.HostMAC.String(), "")
	add(made.Veth.Pod, made.Veth.PodMAC.String(), made.Netns)
	eth := len(r.Interfaces) - 1
	for _, a := range addresses(made) {
		r.IPs = append(r.IPs, &current.IPConfig{Interface: current.Int(eth), Address: ipNet(a), Gateway: gateway(made, a.Addr())})
	}
	for _, route := range made.Pod.Routes {
		if route.Kind != plan.Unicast || !route.Via.IsValid() {
			continue // internal to the pod
		}
		r.Routes = append(r.Routes, &types.Route{Dst: ipNet(route.Dst), GW: route.Via.AsSlice()})
	}
	if !dns.IsEmpty() {
		r.DNS = dns
	}
	return r
}

// addresses returns the pod's addresses without the link-local ones.
func addresses(made plan.Plan) (out []netip.Prefix) {
	for _, a := range made.Pod.Addresses {
		if !a.Prefix.Addr().IsLinkLocalUnicast() {
			out = append(out, a.Prefix)
		}
	}
	return out
}

func gateway(made plan.Plan, a netip.Addr) net.IP {
	for _, n := range made.Pod.Neighbours {
		if n.Addr.Is4() == a.Is4() {
			return n.Addr.AsSlice()
		}
	}
	return nil
}

func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// render returns a result as JSON of a version of the specification.
func render(r *current.Result, cniVersion string) ([]byte, error) {
	r.CNIVersion = current.ImplementedSpecVersion
	converted, err := r.GetAsVersion(cniVersion)
	if err != nil {
		return nil, fault(types.ErrIncompatibleCNIVersion, "result: %v", err)
	}
	return json.MarshalIndent(converted, "", "    ")
}

// compare returns an error if prevResult doesn't match the attachment.
func compare(raw json.RawMessage, cniVersion string, made plan.Plan) error {
	prev, err := previous(raw, cniVersion)
	if err != nil || len(prev.Interfaces) == 0 {
		return err
	}
	eth := slices.IndexFunc(prev.Interfaces, func(i *current.Interface) bool {
		return i != nil && i.Name == made.Veth.Pod && i.Sandbox != ""
	})
	if eth < 0 {
		return errdefs.ErrFailedPrecondition.WithMessage("prevResult has no interface " + made.Veth.Pod)
	}
	for _, a := range addresses(made) {
		want := ipNet(a)
		listed := slices.ContainsFunc(prev.IPs, func(ip *current.IPConfig) bool {
			return ip.Interface != nil && *ip.Interface == eth && ip.Address.String() == want.String()
		})
		if !listed {
			return errdefs.ErrFailedPrecondition.WithMessage("prevResult doesn't have address " + a.String() + " of " + made.Veth.Pod)
		}
	}
	return nil
}
