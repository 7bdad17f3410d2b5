package manifest

import (
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/huskd/husk/internal/manifest/document"
	"github.com/huskd/husk/internal/network/policy"
	"github.com/huskd/husk/internal/network/policy/accept"
)

// The kinds of policies.
const (
	KindNetworkPolicy        = "NetworkPolicy"
	KindClusterNetworkPolicy = "ClusterNetworkPolicy"
)

// KindNamespace is the kind of the objects whose labels policies select.
const KindNamespace = "Namespace"

func isPolicy(version, kind string) bool {
	return kind == KindNetworkPolicy && version == networkingv1.SchemeGroupVersion.String() ||
		kind == KindClusterNetworkPolicy && version == accept.ClusterVersion.String()
}

// policy parses a network policy.
func (p *parser) policy(doc *document.Node, kind, subject string) {
	namespaced := kind == KindNetworkPolicy
	if meta := doc.Get("metadata"); meta != nil && !namespaced && textField(meta, "name") != "" {
		subject = kind + " " + textField(meta, "name")
	} else if name := nameOf(doc); namespaced && name != "" {
		subject = kind + " " + name
	}
	spec := *doc // without what a server sets
	spec.Fields = slices.DeleteFunc(slices.Clone(doc.Fields), func(f document.Field) bool { return f.Key == "status" })
	r := newReport(subject)
	d := &decoder{report: r, anyField: true}
	var m *metav1.ObjectMeta
	var read func() (policy.Policy, []accept.Problem)
	if namespaced {
		var o networkingv1.NetworkPolicy
		d.object(&spec, reflect.ValueOf(&o).Elem(), place{})
		m, read = &o.ObjectMeta, func() (policy.Policy, []accept.Problem) { return accept.Namespaced(&o) }
		setDefault(&m.Namespace, DefaultNamespace)
		if len(validation.IsDNS1123Label(m.Namespace)) > 0 {
			r.invalid("metadata.namespace", "%q is not valid: %s", m.Namespace, labelRule)
		}
	} else {
		var o accept.ClusterNetworkPolicy
		d.object(&spec, reflect.ValueOf(&o).Elem(), place{})
		m, read = &o.ObjectMeta, func() (policy.Policy, []accept.Problem) { return accept.Cluster(&o) }
		if m.Namespace != "" {
			r.invalid("metadata.namespace", "a %s is in no namespace: remove it", kind)
		}
	}
	if m.Name == "" {
		r.missing("metadata.name", "")
	} else if len(validation.IsDNS1123Subdomain(m.Name)) > 0 {
		r.invalid("metadata.name", "%q is not valid: %s", m.Name, subdomainRule)
	}
	accepted, problems := read()
	for _, problem := range problems {
		r.invalid(problem.Field, "%s", problem.Text)
	}
	p.problems = append(p.problems, r.sorted()...)
	p.more += r.more
	p.checkUnique(doc, kind, m, subject)
	p.keep(doc, kind, m)
	p.policies = append(p.policies, accepted)
}

// namespace parses a namespace, for its labels.
func (p *parser) namespace(doc *document.Node, subject string) {
	if meta := doc.Get("metadata"); meta != nil && textField(meta, "name") != "" {
		subject = "namespace " + textField(meta, "name")
	}
	var o corev1.Namespace
	r := newReport(subject)
	(&decoder{report: r, anyField: true}).decode(doc, reflect.ValueOf(&o).Elem(), place{})
	o.Namespace = o.Name // it must be a label too
	checkMetadata(r, &o.ObjectMeta)
	p.problems = append(p.problems, r.sorted()...)
	p.more += r.more
	o.Namespace = ""
	p.checkUnique(doc, KindNamespace, &o.ObjectMeta, subject)
	p.keep(doc, KindNamespace, &o.ObjectMeta)
	p.namespaces[o.Name] = o.Labels
}
