package declared

import (
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
	place, err := s.place(key)
	if err != nil {
		return assignment{}, err
	}
	if a.NodePorts, err = place.nodePorts(o, old); err == nil {
		err = place.externalIPs(o)
	}
	if err != nil || accept.Headless(&o.Spec) {
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
			addr, err = want, place.take(want)
		case !has.IsValid():
			addr, err = place.choose(six)
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
