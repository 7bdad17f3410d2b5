// Package serviceapi serves the part of huskd's own API that is about Services.
package serviceapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/network/service"
	"github.com/huskd/husk/internal/network/service/accept"
	"github.com/huskd/husk/internal/network/service/declared"
	"github.com/huskd/husk/internal/network/serviceproxy"
	"github.com/huskd/husk/internal/workload/controller"
)

// Server serves the API of Services.
type Server struct {
	huskv1.UnimplementedServicesServer
	Proxy *serviceproxy.Proxy
	// Agent and Workloads have the pods that Services select. They are nil with network-only.
	Agent     *agent.Agent
	Workloads *controller.Controller
}

// Accepts reports whether the Services of manifests are served.
func (s *Server) Accepts() bool { return s != nil && s.Proxy.Declared() != nil }

// ListServices lists the Services and their endpoints.
func (s *Server) ListServices(context.Context, *huskv1.ListServicesRequest) (*huskv1.ListServicesResponse, error) {
	r := &huskv1.ListServicesResponse{}
	b := s.Proxy.Balancer()
	if b == nil {
		return r, nil
	}
	world := b.World()
	parts := map[string][]*service.Slice{} // by the keys of their Services
	for i := range world.Slices {
		key := world.Slices[i].Namespace + "/" + world.Slices[i].Service
		parts[key] = append(parts[key], &world.Slices[i])
	}
	for i := range world.Services {
		of := &world.Services[i]
		r.Services = append(r.Services, serviceMessage(of, parts[of.Key()], world.Node))
	}
	slices.SortFunc(r.Services, func(a, b *huskv1.Service) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return r, nil
}

func serviceMessage(of *service.Service, parts []*service.Slice, node service.Node) *huskv1.Service {
	out := &huskv1.Service{Namespace: of.Namespace, Name: of.Name, ExternalName: of.ExternalName, Type: "ClusterIP"}
	switch {
	case of.ExternalName != "":
		out.Type = "ExternalName"
	case of.Headless():
		out.Type = "Headless"
	case of.LoadBalancer:
		out.Type = "LoadBalancer"
	case slices.ContainsFunc(of.Ports, func(p service.Port) bool { return p.NodePort != 0 }):
		out.Type = "NodePort"
	}
	for _, a := range slices.Concat(of.ClusterIPs, of.ExternalIPs, of.LoadBalancerIPs) {
		out.Addresses = append(out.Addresses, a.String())
	}
	for _, part := range parts {
		for i := range part.Endpoints {
			out.Endpoints++
			if part.Endpoints[i].Ready {
				out.Ready++
			}
		}
	}
	for _, p := range of.Ports {
		port := &huskv1.ServicePort{Name: p.Name, Protocol: p.Protocol.String(), Port: int32(p.Port), NodePort: int32(p.NodePort)}
		for _, six := range []bool{false, true} {
			var targets []service.Target
			for _, part := range parts {
				targets = part.AppendTargets(targets, p, six)
			}
			for _, at := range service.Choose(targets, node).All {
				port.Endpoints = append(port.Endpoints, at.String())
			}
		}
		out.Ports = append(out.Ports, port)
	}
	return out
}

// Run makes the Services and endpoints of a manifest count, which is the file at path. One that is
// refused doesn't keep the others from that.
func (s *Server) Run(ctx context.Context, file manifest.File, path, source string, send func(*huskv1.RunEvent) error) error {
	var errs []error
	for _, o := range file.Services {
		effective, unchanged, err := s.Proxy.Declared().Apply(ctx, declared.Object{Service: o}, source)
		if err != nil {
			err = fmt.Errorf("%s: %w", path, err)
		} else {
			err = send(serviceEvent(effective, unchanged))
		}
		errs = append(errs, err)
	}
	for _, o := range file.Slices {
		_, unchanged, err := s.Proxy.Declared().Apply(ctx, declared.Object{Slice: o}, source)
		if err != nil {
			err = fmt.Errorf("%s: %w", path, err)
		} else {
			err = send(&huskv1.RunEvent{
				Kind: "endpoints", Namespace: o.Namespace, Name: o.Name, Unchanged: unchanged, Settled: true,
				Message: fmt.Sprintf("%d for service %s", len(o.Endpoints), o.Service),
			})
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func serviceEvent(o *corev1.Service, unchanged bool) *huskv1.RunEvent {
	ev := &huskv1.RunEvent{Kind: "service", Namespace: o.Namespace, Name: o.Name, Unchanged: unchanged, Settled: true}
	switch {
	case o.Spec.Type == corev1.ServiceTypeExternalName:
		ev.Message = "is a name for " + o.Spec.ExternalName
	case accept.Headless(&o.Spec):
		ev.Message = "names its pods"
	default:
		ev.Message = "at " + strings.Join(o.Spec.ClusterIPs, ", ")
	}
	var ports []string
	for _, p := range o.Spec.Ports {
		if p.NodePort != 0 {
			ports = append(ports, fmt.Sprintf("%d/%s", p.NodePort, p.Protocol))
		}
	}
	if len(ports) > 0 {
		ev.Message += ", node port " + strings.Join(ports, ", ")
	}
	if unchanged {
		ev.Message = "unchanged, " + ev.Message
	}
	return ev
}

// Note sends what the Services of a manifest lack, once its pods are there.
func (s *Server) Note(file manifest.File, send func(*huskv1.RunEvent) error) error {
	for _, o := range file.Services {
		for _, effective := range s.Proxy.Effective() {
			if effective.Namespace != o.Namespace || effective.Name != o.Name {
				continue
			}
			if err := s.note(effective, file, send); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Server) note(o *corev1.Service, file manifest.File, send func(*huskv1.RunEvent) error) error {
	name := "service " + o.Namespace + "/" + o.Name + ": "
	if o.Spec.Type == corev1.ServiceTypeLoadBalancer {
		if err := send(&huskv1.RunEvent{Note: name + declared.NoLoadBalancer(o)}); err != nil {
			return err
		}
	}
	if len(o.Spec.Selector) == 0 || o.Spec.Type == corev1.ServiceTypeExternalName || s.selects(o, file) {
		return nil
	}
	return send(&huskv1.RunEvent{Note: fmt.Sprintf("%sno pod in namespace %s has the labels %s, which its selector wants", name, o.Namespace, labels.Set(o.Spec.Selector))})
}

// selects reports whether a Service's selector chooses a pod that there is, or that the file or a
// workload brings.
func (s *Server) selects(o *corev1.Service, file manifest.File) bool {
	selector := labels.SelectorFromSet(o.Spec.Selector)
	chooses := func(pod *corev1.Pod) bool {
		return pod.Namespace == o.Namespace && selector.Matches(labels.Set(pod.Labels))
	}
	for i := range file.Pods {
		if chooses(&file.Pods[i]) {
			return true
		}
	}
	for _, w := range file.Workloads {
		if chooses(w.Template) {
			return true
		}
	}
	for _, p := range s.Agent.List() {
		if chooses(p.Manifest) {
			return true
		}
	}
	for _, v := range s.Workloads.List() {
		if chooses(v.Template) {
			return true
		}
	}
	return false
}

// RemoveFile removes the Services and endpoints of a manifest. It reports each, with
// errdefs.ErrNotFound if it wasn't there.
func (s *Server) RemoveFile(ctx context.Context, file manifest.File, report func(kind, namespace, name string, err error) error) error {
	remove := func(kind, namespace, name string, o declared.Object) error {
		n, err := s.Proxy.Declared().Remove(ctx, o)
		if n == 0 && err == nil {
			err = errdefs.ErrNotFound
		}
		return report(kind, namespace, name, err)
	}
	for _, o := range file.Services {
		if err := remove("service", o.Namespace, o.Name, declared.Object{Service: o}); err != nil {
			return err
		}
	}
	for _, o := range file.Slices {
		if err := remove("endpoints", o.Namespace, o.Name, declared.Object{Slice: o}); err != nil {
			return err
		}
	}
	return nil
}

// Remove removes the Service that a name such as service/web means, and returns nil if there is
// none.
func (s *Server) Remove(ctx context.Context, name string) (*huskv1.RemoveResponse, error) {
	namespace, name, ok := declared.Name(name)
	if !ok || !s.Accepts() {
		return nil, nil
	}
	o := &corev1.Service{}
	o.Namespace, o.Name = namespace, name
	n, err := s.Proxy.Declared().Remove(ctx, declared.Object{Service: o})
	if n == 0 || err != nil {
		return nil, err
	}
	return &huskv1.RemoveResponse{Namespace: namespace, Name: name, Kind: "service"}, nil
}
