package manifest

import (
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

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
	object, meta := convert.New(kind)
	d.decode(rest, reflect.ValueOf(object).Elem(), place{})
	setDefault(&meta.Namespace, DefaultNamespace)
	checkMetadata(r, meta)
	if length, label := convert.MaxName(kind); len(meta.Name) > length || label && meta.Name != "" && len(validation.IsDNS1123Label(meta.Name)) > 0 {
		r.invalid("metadata.name", "%q is not valid for a %s: use at most %d lower-case letters, digits and -", meta.Name, table.Kind, length)
	}
	var pod *corev1.Pod
	if template == nil {
		r.missing(table.Template, "")
	} else {
		pod = p.template(template, table.Template, r, meta.Namespace, meta.Name)
	}
	if pod != nil {
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
		w.Revision = identity.Hash(pod)
		w.Digest = w.Sum()
		p.workloads = append(p.workloads, w)
	}
	p.problems = append(p.problems, r.sorted()...)
	p.more += r.more
	p.checkUnique(doc, table.Kind, meta, subject)
}

// template parses the template at a path of a workload. It adds the problems to r, and returns the
// pod without a name.
func (p *parser) template(doc *document.Node, at string, r *report, namespace, name string) *corev1.Pod {
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
	setDefaults(&pod)
	validate(&pod, own)
	for path, line := range own.lines {
		r.lines[strings.TrimSuffix(at+"."+path, ".")] = line
	}
	for path := range own.faulty {
		r.faulty[strings.TrimSuffix(at+"."+path, ".")] = true
	}
	for _, problem := range own.problems {
		r.add(strings.TrimSuffix(at+"."+problem.Path, "."), problem.Line, problem.Text)
	}
	r.more += own.more
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
