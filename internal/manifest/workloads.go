package manifest

import (
	"reflect"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/huskd/husk/internal/manifest/claim"
	"github.com/huskd/husk/internal/manifest/document"
	"github.com/huskd/husk/internal/manifest/fields"
	"github.com/huskd/husk/internal/manifest/identity"
	"github.com/huskd/husk/internal/workload"
	"github.com/huskd/husk/internal/workload/convert"
)

// workload parses a workload. Its pod template is decoded and validated like a pod.
func (p *parser) workload(doc *document.Node, table fields.Workload, subject string) {
	kind := workload.Kind(table.Kind)
	if name := nameOf(doc); name != "" {
		subject = strings.ToLower(table.Kind) + " " + name
	}
	r := newReport(subject)
	d := &decoder{report: r, lookup: table.Lookup}
	rest, template := without(doc, strings.Split(table.Template, "."))
	var claims *document.Node
	if kind == workload.StatefulSet {
		rest, claims = without(rest, strings.Split(claimTemplates, "."))
	}
	object, meta := convert.New(kind)
	d.decode(rest, reflect.ValueOf(object).Elem(), place{})
	if prefix := meta.GenerateName; meta.Name == "" && prefix != "" {
		p.generated[prefix]++
		meta.Name = identity.NameOf(prefix, doc.AppendJSON(nil), p.origin.Source, p.generated[prefix])
	}
	setDefault(&meta.Namespace, DefaultNamespace)
	checkMetadata(r, meta)
	if length, label := convert.MaxName(kind); len(meta.Name) > length || label && meta.Name != "" && len(validation.IsDNS1123Label(meta.Name)) > 0 {
		r.invalid("metadata.name", "%q is not valid for a %s: use at most %d lower-case letters, digits and -", meta.Name, table.Kind, length)
	}
	own, volumes := ownClaims(claims, r)
	var pod *corev1.Pod
	if template == nil {
		r.missing(table.Template, "")
	} else {
		pod = p.template(template, table.Template, r, meta, volumes)
	}
	if pod != nil {
		if textField(doc, "apiVersion") != table.APIVersion {
			defaultSelector(object, pod)
		}
		w, problems := convert.Workload(object, pod)
		for _, problem := range problems {
			if problem.Missing {
				r.missing(problem.Field, problem.Text)
			} else {
				r.invalid(problem.Field, "%s", problem.Text)
			}
		}
		w.Ref = workload.Ref{Kind: kind, Namespace: meta.Namespace, Name: meta.Name}
		w.Labels, w.Annotations = meta.Labels, meta.Annotations
		w.Revision, w.Claims = identity.Hash(pod), own
		w.Digest = w.Sum()
		p.workloads = append(p.workloads, w)
	}
	p.problems = append(p.problems, r.sorted()...)
	p.more += r.more
	p.checkUnique(doc, table.Kind, meta, subject)
}

// defaultSelector sets the selector of a workload of a former version to the labels of its
// template. An API server did so.
func defaultSelector(object any, template *corev1.Pod) {
	selector := reflect.ValueOf(object).Elem().FieldByName("Spec").FieldByName("Selector")
	if selector.IsValid() && selector.IsNil() && selector.CanSet() {
		if s, ok := selector.Addr().Interface().(**metav1.LabelSelector); ok {
			*s = &metav1.LabelSelector{MatchLabels: template.Labels}
		}
	}
}

// claimTemplates is the path of the claims of a StatefulSet's pods.
const claimTemplates = "spec.volumeClaimTemplates"

// ownClaims parses the claims that each pod of a StatefulSet has. It also returns the volumes
// that stand for them in the template.
func ownClaims(list *document.Node, r *report) (out []workload.Claim, volumes []corev1.Volume) {
	if list == nil || list.Kind == document.Null {
		return nil, nil
	}
	if list.Kind != document.List {
		r.add(claimTemplates, list.Line, "must be a list, not "+list.Kind.String())
		return nil, nil
	}
	for i, item := range list.Items {
		at := claimTemplates + "[" + strconv.Itoa(i) + "]"
		own := newReport(r.subject)
		var o corev1.PersistentVolumeClaim
		(&decoder{report: own, anyField: true}).decode(item, reflect.ValueOf(&o).Elem(), place{})
		c, problems := claim.OfClaim(&o)
		addProblems(own, problems)
		if o.Name == "" {
			own.missing("metadata.name", "")
		} else if len(validation.IsDNS1123Label(o.Name)) > 0 {
			own.invalid("metadata.name", "%q is not valid: %s", o.Name, labelRule)
		}
		if slices.ContainsFunc(out, func(c workload.Claim) bool { return c.Name == o.Name }) {
			own.invalid("metadata.name", "%q is the name of another claim: rename one", o.Name)
		}
		r.include(own, at)
		out = append(out, workload.Claim{Name: o.Name, Claim: c})
		volumes = append(volumes, workload.ClaimVolume(o.Name))
	}
	return out, volumes
}

// include adds the problems of a part at a path.
func (r *report) include(part *report, at string) {
	below := func(path string) string { return strings.TrimSuffix(at+"."+path, ".") }
	for path, line := range part.lines {
		r.lines[below(path)] = line
	}
	for path := range part.faulty {
		r.faulty[below(path)] = true
	}
	for _, problem := range part.problems {
		r.add(below(problem.Path), problem.Line, problem.Text)
	}
	r.more += part.more
}

// template parses the template at a path of a workload. It adds the problems to r, and returns the
// pod without a name. The volumes take the place of those of the same names.
func (p *parser) template(doc *document.Node, at string, r *report, owner *metav1.ObjectMeta, volumes []corev1.Volume) *corev1.Pod {
	namespace, name := owner.Namespace, owner.Name
	own := newReport(r.subject)
	d := &decoder{report: own}
	var pod corev1.Pod
	d.decode(doc, reflect.ValueOf(&pod).Elem(), place{})
	dropServerFields(&pod)
	dropAPIAccess(&pod.Spec)
	pod.UID, pod.Namespace, pod.Name = "", namespace, name
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		pod.Name = "pod" // the name of the workload is reported already
	}
	if len(validation.IsDNS1123Label(namespace)) > 0 {
		pod.Namespace = DefaultNamespace // likewise
	}
	pod.Spec.Volumes = append(slices.DeleteFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return slices.ContainsFunc(volumes, func(c corev1.Volume) bool { return c.Name == v.Name })
	}), volumes...)
	setDefaults(&pod)
	validate(&pod, own)
	r.include(own, at)
	pod.Name, pod.Spec.NodeName = "", p.origin.Node
	return &pod
}

// without returns a copy of an object without the field at a path, and that field's value. Other
// documents may share parts of the object, which thus isn't changed.
func without(doc *document.Node, path []string) (rest, removed *document.Node) {
	if doc == nil || doc.Kind != document.Object {
		return doc, nil
	}
	out := *doc
	out.Fields = slices.Clone(doc.Fields)
	for i, f := range out.Fields {
		if f.Key != path[0] {
			continue
		}
		if len(path) == 1 {
			out.Fields = slices.Delete(out.Fields, i, i+1)
			return &out, f.Value
		}
		out.Fields[i].Value, removed = without(f.Value, path[1:])
		break
	}
	return &out, removed
}
