package declared

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/manifest/podspec"
	"github.com/huskd/husk/internal/network/service"
	"github.com/huskd/husk/internal/network/service/accept"
	"github.com/huskd/husk/internal/network/service/placement"
	"github.com/huskd/husk/internal/pod"
)

// place is where a Service is to be: which addresses and ports of the node are free for it.
type place struct {
	among *Services
	key   string // of the Service
	placement.Surroundings
	taken map[nodePort]string // who has ports of the node
}

// place looks at the node and its Services. The caller holds s.mu until it is done with the result.
func (s *Services) place(key string) (*place, error) {
	now, err := s.surroundings()
	if err != nil {
		return nil, err
	}
	p := &place{among: s, key: key, Surroundings: now}
	p.taken = p.takenPorts()
	return p, nil
}

// surroundings returns what the node has beside Services, now.
func (s *Services) surroundings() (placement.Surroundings, error) {
	places, err := s.cfg.Places()
	if err != nil {
		return placement.Surroundings{}, fmt.Errorf("find out which addresses the node has: %w", err)
	}
	now := placement.Surroundings{Services: s.cfg.Subnets, Pods: s.cfg.PodSubnets, Places: places}
	for _, p := range s.cfg.Others() {
		// Of a DNS server on the node, its port is what counts.
		if p.Kind != placement.Resolver || !now.Local(p.Prefix.Addr()) {
			now.Places = append(now.Places, p)
		}
	}
	return now, nil
}

// take gives the Service an address that it asks for.
func (p *place) take(addr netip.Addr) error {
	for _, e := range p.among.entries {
		if e.Service != nil && e.key() != p.key && slices.Contains(e.Addresses, addr) {
			return errdefs.ErrAlreadyExists.WithMessage(fmt.Sprintf("clusterIP %v is that of %v: use another, or leave it out", addr, e.Object))
		}
	}
	if why := p.ClusterIP(addr); why != "" {
		return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("clusterIP %v %s: use another, or leave it out", addr, why))
	}
	p.among.addresses[addr.Is6()].Forget(owner(p.key))
	return p.among.adopt(p.key, []netip.Addr{addr})
}

// choose gives the Service an address.
func (p *place) choose(six bool) (netip.Addr, error) {
	lease, err := p.among.addresses[six].Reserve(owner(p.key), time.Now())
	if err != nil {
		return netip.Addr{}, errdefs.ErrResourceExhausted.WithMessage(fmt.Sprintf("no address is left in service-subnets, which have %d Services: remove some, or configure larger ones", len(p.among.entries)))
	}
	addr := lease.Addresses[0]
	if why := p.ClusterIP(addr); why != "" {
		return netip.Addr{}, errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("the next address of service-subnets, %v, %s: configure other service-subnets", addr, why))
	}
	return addr, nil
}

// itself is who has a port that was just given to the Service.
const itself = "itself"

// nodePorts returns the ports of the node that lead to the Service, one of each of its ports.
func (p *place) nodePorts(o *corev1.Service, old assignment) ([]int32, error) {
	spec := &o.Spec
	has := spec.Type == corev1.ServiceTypeNodePort ||
		spec.Type == corev1.ServiceTypeLoadBalancer && (spec.AllocateLoadBalancerNodePorts == nil || *spec.AllocateLoadBalancerNodePorts)
	out := make([]int32, len(spec.Ports))
	var before []corev1.ServicePort // with the node ports that the Service has
	if e := p.among.entries[p.key]; e != nil {
		before = e.effective.Spec.Ports
	}
	had := func(n nodePort) bool {
		return slices.ContainsFunc(before, func(b corev1.ServicePort) bool { return b.Protocol == n.protocol && b.NodePort == n.port })
	}
	for i, port := range spec.Ports {
		n := nodePort{port.Protocol, port.NodePort}
		if out[i] = port.NodePort; port.NodePort == 0 {
			continue
		}
		if by := p.taken[n]; by != "" {
			return nil, errdefs.ErrAlreadyExists.WithMessage(fmt.Sprintf("node port %v is that of %s: use another, or leave nodePort out", n, by))
		}
		if !had(n) {
			if by, err := p.listener(netip.Addr{}, n); err != nil || by != "" {
				return nil, cmp.Or(err, errdefs.ErrUnavailable.WithMessage(fmt.Sprintf("node port %v is in use: %s; stop it, use another, or leave nodePort out", n, by)))
			}
		}
		p.taken[n] = itself
	}
	for i, port := range spec.Ports {
		if out[i] != 0 || !has {
			continue
		}
		for j, q := range before {
			if port.Protocol == q.Protocol && port.Port == q.Port && j < len(old.NodePorts) && old.NodePorts[j] != 0 && p.taken[nodePort{port.Protocol, old.NodePorts[j]}] == "" {
				out[i] = old.NodePorts[j]
			}
		}
		if out[i] == 0 {
			out[i] = freePort(fmt.Sprint(p.key, port.Port, port.Protocol), func(n int32) bool {
				if p.taken[nodePort{port.Protocol, n}] != "" {
					return false
				}
				by, err := p.listener(netip.Addr{}, nodePort{port.Protocol, n})
				return err == nil && by == ""
			})
		}
		if out[i] == 0 {
			return nil, errdefs.ErrResourceExhausted.WithMessage(fmt.Sprintf("no node port is left: %d…%d are all taken", accept.FirstNodePort, accept.LastNodePort))
		}
		p.taken[nodePort{port.Protocol, out[i]}] = itself
	}
	return out, nil
}

// listener says which process has a port of the node, of one address or of all. It returns nothing
// if none has.
func (p *place) listener(at netip.Addr, n nodePort) (string, error) {
	where, listens, err := p.among.cfg.Listener(n.mapping(at))
	switch {
	case err != nil:
		return "", fmt.Errorf("port %v of the node: check whether it is free: %w", n, err)
	case listens:
		return fmt.Sprintf("a process listens on %v", where), nil
	}
	return "", nil
}

// externalIPs returns an error unless the Service can have its external IPs. At those of this node
// it takes ports as a hostPort does: none that anything else has.
func (p *place) externalIPs(o *corev1.Service) error {
	words, _ := accept.Service(o) // package manifest has reported the problems
	had := map[front]bool{}
	if e := p.among.entries[p.key]; e != nil {
		for _, f := range frontsOf(e.words) {
			had[f] = true
		}
	}
	for i, addr := range words.ExternalIPs {
		field := fmt.Sprintf("externalIPs[%d] %v", i, addr)
		if why := p.ExternalIP(addr); why != "" {
			return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("%s %s: use another, or leave it out", field, why))
		}
	}
	others := map[front]string{}
	for key, e := range p.among.entries {
		if e.words != nil && key != p.key {
			for _, f := range frontsOf(e.words) {
				others[f] = e.Object.String()
			}
		}
	}
	for _, f := range frontsOf(&words) {
		by := others[f]
		if by == "" && p.Local(f.addr) {
			if by = strings.TrimPrefix(p.taken[f.nodePort], itself); by == "" && !had[f] {
				process, err := p.listener(f.addr, f.nodePort)
				if err != nil {
					return err
				}
				if process != "" {
					return errdefs.ErrUnavailable.WithMessage(fmt.Sprintf("port %v of externalIP %v is in use on this node: %s; stop it, or use another port or address", f.nodePort, f.addr, process))
				}
			}
		}
		if by != "" {
			return errdefs.ErrAlreadyExists.WithMessage(fmt.Sprintf("port %v of externalIP %v is that of %s: use another port or address", f.nodePort, f.addr, by))
		}
	}
	return nil
}

// front is a port of an external IP.
type front struct {
	addr netip.Addr
	nodePort
}

func frontsOf(s *service.Service) (out []front) {
	for _, a := range s.ExternalIPs {
		for _, p := range s.Ports {
			out = append(out, front{a, nodePort{corev1.Protocol(p.Protocol.String()), int32(p.Port)}})
		}
	}
	return out
}

type nodePort struct {
	protocol corev1.Protocol
	port     int32
}

// String returns it as in 30080/TCP.
func (n nodePort) String() string { return fmt.Sprintf("%d/%s", n.port, n.protocol) }

func (n nodePort) mapping(at netip.Addr) pod.PortMapping {
	return pod.PortMapping{Protocol: pod.Protocol(strings.ToLower(string(n.protocol))), HostIP: at, HostPort: uint16(n.port)}
}

// takenPorts returns who has ports of the node, among pods and the other Services.
func (p *place) takenPorts() map[nodePort]string {
	out := map[nodePort]string{}
	for _, of := range p.among.cfg.Pods() {
		if of.Finished {
			continue
		}
		for c := range podspec.Containers(&of.Manifest.Spec) {
			for _, port := range c.Ports {
				if port.HostPort != 0 {
					out[nodePort{podspec.Protocol(port.Protocol), port.HostPort}] = "pod " + of.Name() + ", as its hostPort"
				}
			}
		}
	}
	if e := p.among.entries[p.key]; e != nil && e.words != nil {
		// A pod that asks for a port that the Service has waits for it.
		for _, port := range e.effective.Spec.Ports {
			delete(out, nodePort{port.Protocol, port.NodePort})
		}
		for _, f := range p.localFronts(e.words) {
			delete(out, f.nodePort)
		}
	}
	for key, e := range p.among.entries {
		if e.Service == nil || key == p.key {
			continue
		}
		for _, port := range e.effective.Spec.Ports {
			if port.NodePort != 0 {
				out[nodePort{port.Protocol, port.NodePort}] = e.Object.String()
			}
		}
		for _, f := range p.localFronts(e.words) {
			out[f.nodePort] = cmp.Or(out[f.nodePort], e.Object.String())
		}
	}
	return out
}

// localFronts are the ports of a Service's external IPs that are addresses of this node.
func (p *place) localFronts(s *service.Service) []front {
	return slices.DeleteFunc(frontsOf(s), func(f front) bool { return !p.Local(f.addr) })
}

// Taken returns an error if a Service has a port of the node that a pod asks for.
func (s *Services) Taken(m pod.PortMapping) error {
	for _, o := range s.Effective() {
		for _, p := range o.Spec.Ports {
			if !strings.EqualFold(string(p.Protocol), string(m.Protocol)) {
				continue
			}
			by := func(as string) error {
				return &pod.PortInUseError{Port: m, By: fmt.Sprintf("%v has it as %s; use another hostPort", Object{Service: o}, as)}
			}
			if p.NodePort == int32(m.HostPort) {
				return by("its node port")
			}
			if p.Port != int32(m.HostPort) || len(o.Spec.ExternalIPs) == 0 {
				continue
			}
			words, _ := accept.Service(o)
			for _, a := range words.ExternalIPs {
				if m.HostIP == a || (!m.HostIP.IsValid() || m.HostIP.IsUnspecified()) && s.local(a) {
					return by(fmt.Sprintf("the port of its externalIP %v", a))
				}
			}
		}
	}
	return nil
}

// local reports whether an address is one of this node. It asks the kernel only, as the network and
// the agent call Taken with their own locks held.
func (s *Services) local(a netip.Addr) bool {
	places, err := s.cfg.Places()
	now := placement.Surroundings{Places: places}
	return err == nil && now.Local(a)
}

// Problems says which Services have addresses that something else has, too, as one may have got it
// since, and which of their subnets do.
func (s *Services) Problems() (out []string) {
	now, err := s.surroundings()
	if err != nil {
		return []string{"services: " + err.Error()}
	}
	for _, overlap := range now.Overlaps() {
		out = append(out, overlap+": configure other service-subnets")
	}
	for _, o := range s.Effective() {
		words, _ := accept.Service(o)
		report := func(field string, addr netip.Addr, why string) {
			if why != "" {
				out = append(out, fmt.Sprintf("%v: %s %v %s, whose packets it takes: give it another address", Object{Service: o}, field, addr, why))
			}
		}
		for _, a := range words.ClusterIPs {
			report("clusterIP", a, now.ClusterIP(a))
		}
		for _, a := range words.ExternalIPs {
			report("externalIP", a, now.ExternalIP(a))
		}
	}
	return out
}
