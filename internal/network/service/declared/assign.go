package declared

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/network/ipam"
	"github.com/huskd/husk/internal/network/service/accept"
	"github.com/huskd/husk/internal/pod"
)

// effective returns a Service with what it got.
func (a assignment) effective(s *corev1.Service) *corev1.Service {
	out := s.DeepCopy()
	spec := &out.Spec
	if spec.Type == corev1.ServiceTypeExternalName {
		spec.ClusterIP, spec.ClusterIPs, spec.IPFamilies = "", nil, nil
		return out
	}
	spec.IPFamilies = a.Families
	if !accept.Headless(spec) {
		spec.ClusterIPs = nil
		for _, addr := range a.Addresses {
			spec.ClusterIPs = append(spec.ClusterIPs, addr.String())
		}
		spec.ClusterIP = strings.Join(spec.ClusterIPs[:min(1, len(spec.ClusterIPs))], "")
	}
	for i := range min(len(spec.Ports), len(a.NodePorts)) {
		spec.Ports[i].NodePort = a.NodePorts[i]
	}
	return out
}

func familyOf(six bool) corev1.IPFamily {
	if six {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

// families returns the address families of a Service, as whether they are IPv6.
func (s *Services) families(spec *corev1.ServiceSpec) (out []bool, err error) {
	add := func(six bool) {
		if !slices.Contains(out, six) {
			out = append(out, six)
		}
	}
	for _, text := range spec.ClusterIPs {
		if addr, err := netip.ParseAddr(text); err == nil {
			add(addr.Is6())
		}
	}
	if addr, err := netip.ParseAddr(spec.ClusterIP); err == nil {
		add(addr.Is6())
	}
	for _, f := range spec.IPFamilies {
		add(f == corev1.IPv6Protocol)
	}
	policy := corev1.IPFamilyPolicySingleStack
	if spec.IPFamilyPolicy != nil {
		policy = *spec.IPFamilyPolicy
	} else if len(out) > 1 {
		policy = corev1.IPFamilyPolicyRequireDualStack
	}
	for _, subnet := range s.cfg.Subnets {
		if six := subnet.Addr().Is6(); len(out) == 0 || policy != corev1.IPFamilyPolicySingleStack {
			add(six)
		}
	}
	if policy == corev1.IPFamilyPolicySingleStack {
		out = out[:min(1, len(out))]
	}
	for _, six := range out {
		if s.addresses[six] == nil && policy != corev1.IPFamilyPolicyPreferDualStack {
			return nil, errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("Services have no %s addresses on this node: service-subnets and pod-subnets say which families there are", familyOf(six)))
		}
	}
	if policy == corev1.IPFamilyPolicyRequireDualStack && len(out) < 2 {
		return nil, errdefs.ErrFailedPrecondition.WithMessage("ipFamilyPolicy is RequireDualStack, but Services have addresses of one family only on this node: use PreferDualStack")
	}
	return slices.DeleteFunc(out, func(six bool) bool { return s.addresses[six] == nil }), nil
}

// assign gives a Service its addresses and node ports: those that it asks for, or else those that
// it has, or else new ones. If there is an error, nothing has changed. The caller holds s.mu.
func (s *Services) assign(o *corev1.Service, old assignment) (a assignment, err error) {
	if o.Spec.Type == corev1.ServiceTypeExternalName {
		s.release(Object{Service: o}.key(), false)
		return assignment{}, nil
	}
	families, err := s.families(&o.Spec)
	if err != nil {
		return a, err
	}
	for _, six := range families {
		a.Families = append(a.Families, familyOf(six))
	}
	key := Object{Service: o}.key()
	if a.NodePorts, err = s.nodePorts(key, o, old); err != nil || accept.Headless(&o.Spec) {
		if err == nil {
			s.release(key, false)
		}
		return a, err
	}
	for _, six := range families {
		is := func(addr netip.Addr) bool { return addr.Is6() == six }
		var want, has netip.Addr
		for _, text := range append([]string{o.Spec.ClusterIP}, o.Spec.ClusterIPs...) {
			if addr, err := netip.ParseAddr(text); err == nil && is(addr.Unmap()) {
				want = addr.Unmap()
			}
		}
		if i := slices.IndexFunc(old.Addresses, is); i >= 0 {
			has = old.Addresses[i]
		}
		addr := has
		switch {
		case want.IsValid() && want != has:
			addr, err = want, s.take(key, want)
		case !has.IsValid():
			addr, err = s.choose(key, six)
		}
		if err != nil {
			s.restore(key, old)
			return assignment{}, err
		}
		a.Addresses = append(a.Addresses, addr)
	}
	for six, alloc := range s.addresses {
		if !slices.Contains(families, six) {
			alloc.Forget(owner(key))
		}
	}
	return a, nil
}

func owner(key string) ipam.Owner { return ipam.Owner{Sandbox: key, IfName: "service"} }

// adopt makes addresses those of a Service again.
func (s *Services) adopt(key string, addresses []netip.Addr) error {
	for _, addr := range addresses {
		if a := s.addresses[addr.Is6()]; a != nil {
			if err := a.Restore(ipam.Lease{Owner: owner(key), State: ipam.Bound, Addresses: []netip.Addr{addr}}); err != nil {
				return err
			}
		}
	}
	return nil
}

// release takes the addresses of a Service from it. If they were used, others don't get them soon.
func (s *Services) release(key string, used bool) {
	for _, a := range s.addresses {
		if used {
			a.Quarantine(owner(key), time.Now())
		} else {
			a.Forget(owner(key))
		}
	}
}

// restore undoes a change of a Service's addresses.
func (s *Services) restore(key string, old assignment) {
	s.release(key, false)
	if err := s.adopt(key, old.Addresses); err != nil {
		s.cfg.Log.Error("services: addresses can't be kept", "service", key, "error", err)
	}
}

// take gives a Service an address that it asks for. It may be outside of the subnets.
func (s *Services) take(key string, addr netip.Addr) error {
	for _, e := range s.entries {
		if e.Service != nil && e.key() != key && slices.Contains(e.Addresses, addr) {
			return errdefs.ErrAlreadyExists.WithMessage(fmt.Sprintf("clusterIP %v is that of %v: use another, or leave it out", addr, e.Object))
		}
	}
	for _, subnet := range s.cfg.PodSubnets {
		if subnet.Contains(addr) {
			return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("clusterIP %v is in the subnet of pods, %v: use another, or leave it out", addr, subnet))
		}
	}
	s.addresses[addr.Is6()].Forget(owner(key))
	return s.adopt(key, []netip.Addr{addr})
}

// choose gives a Service an address.
func (s *Services) choose(key string, six bool) (netip.Addr, error) {
	lease, err := s.addresses[six].Reserve(owner(key), time.Now())
	if err != nil {
		return netip.Addr{}, errdefs.ErrResourceExhausted.WithMessage(fmt.Sprintf("no address is left in service-subnets, which have %d Services: remove some, or configure larger ones", len(s.entries)))
	}
	return lease.Addresses[0], nil
}

// nodePorts returns the ports of the node that lead to a Service, one of each of its ports.
func (s *Services) nodePorts(key string, o *corev1.Service, old assignment) ([]int32, error) {
	spec := &o.Spec
	has := spec.Type == corev1.ServiceTypeNodePort ||
		spec.Type == corev1.ServiceTypeLoadBalancer && (spec.AllocateLoadBalancerNodePorts == nil || *spec.AllocateLoadBalancerNodePorts)
	out := make([]int32, len(spec.Ports))
	var before []corev1.ServicePort
	if e := s.entries[key]; e != nil {
		before = e.Service.Spec.Ports
	}
	taken := s.takenPorts(key)
	for i, p := range spec.Ports {
		if out[i] = p.NodePort; p.NodePort == 0 {
			continue
		}
		if by := taken[nodePort{p.Protocol, p.NodePort}]; by != "" {
			return nil, errdefs.ErrAlreadyExists.WithMessage(fmt.Sprintf("node port %d/%s is that of %s: use another, or leave nodePort out", p.NodePort, p.Protocol, by))
		}
		taken[nodePort{p.Protocol, p.NodePort}] = "itself"
	}
	for i, p := range spec.Ports {
		if out[i] != 0 || !has {
			continue
		}
		for j, q := range before {
			if p.Protocol == q.Protocol && p.Port == q.Port && j < len(old.NodePorts) && old.NodePorts[j] != 0 && taken[nodePort{p.Protocol, old.NodePorts[j]}] == "" {
				out[i] = old.NodePorts[j]
			}
		}
		if out[i] == 0 {
			out[i] = freePort(fmt.Sprint(key, p.Port, p.Protocol), func(n int32) bool { return taken[nodePort{p.Protocol, n}] == "" })
		}
		if out[i] == 0 {
			return nil, errdefs.ErrResourceExhausted.WithMessage(fmt.Sprintf("no node port is left: %d…%d are all taken", accept.FirstNodePort, accept.LastNodePort))
		}
		taken[nodePort{p.Protocol, out[i]}] = "itself"
	}
	return out, nil
}

type nodePort struct {
	protocol corev1.Protocol
	port     int32
}

// freePort returns a port for a purpose. It is mostly the same one for the same purpose.
func freePort(purpose string, free func(int32) bool) int32 {
	const size = accept.LastNodePort - accept.FirstNodePort + 1
	h := fnv.New32a()
	_, _ = h.Write([]byte(purpose))
	for i := range uint32(size) {
		if n := accept.FirstNodePort + int32((h.Sum32()%size+i)%size); free(n) {
			return n
		}
	}
	return 0
}

// takenPorts returns who has ports of the node, among pods and the Services but for one.
func (s *Services) takenPorts(except string) map[nodePort]string {
	out := map[nodePort]string{}
	for _, p := range s.cfg.Pods() {
		if p.Finished {
			continue
		}
		for _, containers := range [][]corev1.Container{p.Manifest.Spec.InitContainers, p.Manifest.Spec.Containers} {
			for i := range containers {
				for _, port := range containers[i].Ports {
					out[nodePort{cmp.Or(port.Protocol, corev1.ProtocolTCP), port.HostPort}] = "pod " + p.Name() + ", as its hostPort"
				}
			}
		}
	}
	if e := s.entries[except]; e != nil {
		// A pod that asks for a port that the Service has waits for it.
		for _, port := range e.effective.Spec.Ports {
			delete(out, nodePort{port.Protocol, port.NodePort})
		}
	}
	for key, e := range s.entries {
		if e.Service == nil || key == except {
			continue
		}
		for _, port := range e.effective.Spec.Ports {
			out[nodePort{port.Protocol, port.NodePort}] = e.Object.String()
		}
	}
	return out
}

// Taken returns an error if a Service has a port of the node that a pod asks for.
func (s *Services) Taken(m pod.PortMapping) error {
	for _, o := range s.Effective() {
		for _, p := range o.Spec.Ports {
			if p.NodePort == int32(m.HostPort) && strings.EqualFold(string(p.Protocol), string(m.Protocol)) {
				return &pod.PortInUseError{Port: m, By: fmt.Sprintf("%v has it as its node port; use another hostPort", Object{Service: o})}
			}
		}
	}
	return nil
}

// Name returns the namespace and name in service/[NAMESPACE/]NAME, and whether text is of that
// form.
func Name(text string) (namespace, name string, ok bool) {
	kind, name, _ := strings.Cut(text, "/")
	namespace = manifest.DefaultNamespace
	if before, after, has := strings.Cut(name, "/"); has {
		namespace, name = before, after
	}
	return namespace, name, slices.Contains([]string{"service", "services", "svc"}, strings.ToLower(kind)) && name != ""
}
