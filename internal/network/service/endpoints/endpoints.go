// Package endpoints says which pods of a node serve a Service, as the controllers of a cluster do.
// It is pure.
package endpoints

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/huskd/husk/internal/manifest/podspec"
	"github.com/huskd/husk/internal/network/service"
	"github.com/huskd/husk/internal/network/service/accept"
)

// Pod is what endpoints depend on of a pod.
type Pod struct {
	*corev1.Pod
	Addresses []netip.Addr
	// Ready pods serve requests. Serving ones would, but for that they are Terminating.
	Ready, Serving, Terminating bool
}

// Select returns the pods that a Service's selector chooses. Without a selector there are none.
func Select(s *corev1.Service, pods []Pod) (out []Pod) {
	if len(s.Spec.Selector) == 0 {
		return nil
	}
	selector := labels.SelectorFromSet(s.Spec.Selector)
	for _, p := range pods {
		if p.Namespace == s.Namespace && selector.Matches(labels.Set(p.Labels)) {
			out = append(out, p)
		}
	}
	return out
}

// Slices returns the endpoints of a Service among the pods of a node that it selects: one slice for
// each of its address families and, if pods have named ports of different numbers, each of these.
func Slices(s *corev1.Service, pods []Pod, node string) (out []*service.Slice) {
	type group struct {
		six   bool
		ports string
	}
	groups := map[group]*service.Slice{}
	for _, p := range pods {
		ports := portsOf(s, p.Pod)
		if len(ports) == 0 && len(s.Spec.Ports) > 0 {
			continue // it has none of the named ports
		}
		for _, family := range s.Spec.IPFamilies {
			six := family == corev1.IPv6Protocol
			i := slices.IndexFunc(p.Addresses, func(a netip.Addr) bool { return a.Is6() == six })
			if i < 0 {
				continue
			}
			g := group{six, fmt.Sprint(ports)}
			if groups[g] == nil {
				groups[g] = &service.Slice{Namespace: s.Namespace, Service: s.Name, Ports: ports}
			}
			groups[g].Endpoints = append(groups[g].Endpoints, endpoint(s, p, p.Addresses[i], node))
		}
	}
	number := map[bool]int{}
	order := func(a, b group) int { // IPv4 before IPv6
		return cmp.Or(cmp.Compare(a.ports, b.ports), strings.Compare(accept.FamilyName(a.six), accept.FamilyName(b.six)))
	}
	for _, g := range slices.SortedFunc(maps.Keys(groups), order) {
		slice := groups[g]
		number[g.six]++
		slice.Name = fmt.Sprintf("%s-%s-%d", s.Name, accept.FamilyName(g.six), number[g.six])
		slices.SortFunc(slice.Endpoints, func(a, b service.Endpoint) int { return a.Address.Compare(b.Address) })
		out = append(out, slice)
	}
	return out
}

func endpoint(s *corev1.Service, p Pod, addr netip.Addr, node string) service.Endpoint {
	e := service.Endpoint{
		Address: addr, Pod: p.Name, Node: node,
		Ready: p.Ready, Serving: p.Serving, Terminating: p.Terminating,
	}
	if s.Spec.PublishNotReadyAddresses {
		e.Ready = true
	}
	if p.Spec.Hostname != "" && p.Spec.Subdomain == s.Name {
		e.Hostname = p.Spec.Hostname
	}
	return e
}

// portsOf returns the numbers of the Service's ports in a pod. A named port that no container has
// is left out.
func portsOf(s *corev1.Service, pod *corev1.Pod) (out []service.EndpointPort) {
	for _, p := range s.Spec.Ports {
		protocol, known := accept.Protocol(p.Protocol)
		number := p.TargetPort.IntVal
		if p.TargetPort.Type == intstr.String {
			number = podspec.Port(&pod.Spec, p.TargetPort.StrVal, p.Protocol)
		}
		if known && number > 0 {
			out = append(out, service.EndpointPort{Name: p.Name, Protocol: protocol, Port: uint16(number)})
		}
	}
	return out
}
