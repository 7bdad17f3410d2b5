package manifest

import (
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/huskd/husk/internal/manifest/document"
	"github.com/huskd/husk/internal/network/service"
	"github.com/huskd/husk/internal/network/service/accept"
)

// The kinds of Services and of endpoints that don't come from a selector.
const (
	KindService       = "Service"
	KindEndpoints     = "Endpoints"
	KindEndpointSlice = "EndpointSlice"
)

func isService(version, kind string) bool {
	switch kind {
	case KindService, KindEndpoints:
		return version == "v1"
	case KindEndpointSlice:
		return version == discoveryv1.SchemeGroupVersion.String()
	}
	return false
}

// service parses a Service, or endpoints.
func (p *parser) service(doc *document.Node, kind, subject string) {
	if name := nameOf(doc); name != "" {
		subject = kind + " " + name
	}
	spec := *doc // without what a server sets
	spec.Fields = slices.DeleteFunc(slices.Clone(doc.Fields), func(f document.Field) bool { return f.Key == "status" })
	r := newReport(subject)
	decode := func(into any) {
		(&decoder{report: r, anyField: true}).decode(&spec, reflect.ValueOf(into).Elem(), place{})
	}
	meta := &metav1.ObjectMeta{}
	var problems []accept.Problem
	switch kind {
	case KindService:
		o := &corev1.Service{}
		decode(o)
		o.ObjectMeta = metav1.ObjectMeta{Name: o.Name, Namespace: o.Namespace, Labels: o.Labels, Annotations: o.Annotations}
		setDefault(&o.Namespace, DefaultNamespace)
		meta, problems = &o.ObjectMeta, accept.Complete(o)
		p.services = append(p.services, o)
	case KindEndpoints:
		o := &corev1.Endpoints{} //nolint:staticcheck // manifests still have it
		decode(o)
		setDefault(&o.Namespace, DefaultNamespace)
		var parts []service.Slice
		parts, problems = accept.Endpoints(o)
		for i := range parts {
			p.slices = append(p.slices, &parts[i])
		}
		meta = &o.ObjectMeta
	case KindEndpointSlice:
		o := &discoveryv1.EndpointSlice{}
		decode(o)
		setDefault(&o.Namespace, DefaultNamespace)
		var s service.Slice
		s, problems = accept.Slice(o)
		if s.Service == "" {
			r.missing("metadata.labels", ": the label "+discoveryv1.LabelServiceName+" names the Service")
		}
		meta, p.slices = &o.ObjectMeta, append(p.slices, &s)
	}
	checkMetadata(r, meta)
	for _, problem := range problems {
		if problem.Field != "metadata.name" || !slices.ContainsFunc(r.problems, func(p Problem) bool { return p.Path == "metadata.name" }) {
			r.invalid(problem.Field, "%s", problem.Text)
		}
	}
	p.problems = append(p.problems, r.sorted()...)
	p.more += r.more
	p.checkUnique(doc, kind, meta, subject)
}
