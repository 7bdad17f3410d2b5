// Package manifest reads pod manifests: the bytes of a file in, complete and
// valid pods out, or a line for each thing that is wrong. It is pure.
//
// It is stricter than an API server. A field that Husk would not honour is
// refused, not dropped, unless it means nothing on one node; fields.go has the
// tables. A file is taken whole or not at all, so that a mistake in one pod
// can't be taken for the removal of another.
package manifest

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Origin says where a manifest comes from.
type Origin struct {
	// File is its name in messages.
	File string
	// Node is the name of the node, which becomes spec.nodeName.
	Node string
	// Source is what the UIDs of the pods depend on: another manifest from the
	// same source must have the same, such as file:/etc/husk/web.yaml.
	Source string
}

// File is what a manifest declares.
type File struct {
	Pods []corev1.Pod
	// Objects are what stands beside the pods, for them and others to refer to.
	Objects Objects
}

// Parse returns the pods of a manifest, with an API server's defaults, the
// node's name and a UID, and what is beside them. The error is an *Error.
func Parse(data []byte, o Origin) (File, error) {
	p := &parser{origin: o, seen: map[string]int{}, objects: Objects{}}
	docs, err := documents(data)
	if err != nil {
		p.fail(err)
	}
	for i, doc := range docs {
		p.document(doc, fmt.Sprintf("document %d", i+1))
	}
	if len(p.pods) == 0 && len(p.objects) == 0 && !p.listed && len(p.problems) == 0 {
		p.problems = []Problem{{Text: "there is no pod in it: begin one with apiVersion: v1 and kind: Pod"}}
	}
	if len(p.problems) == 0 {
		return File{p.pods, p.objects}, nil
	}
	e := &Error{File: o.File, Problems: p.problems, More: p.more}
	if n := len(e.Problems); n > maxProblems {
		e.Problems, e.More = e.Problems[:maxProblems], e.More+n-maxProblems
	}
	return File{}, e
}

type parser struct {
	origin   Origin
	pods     []corev1.Pod
	objects  Objects
	listed   bool // there is a list, which may say that there are none
	problems []Problem
	more     int            // problems beyond those
	seen     map[string]int // lines of the pods and objects by kind, namespace and name
}

func (p *parser) fail(err error) {
	problem := Problem{Text: err.Error()}
	if se := (*syntaxError)(nil); errors.As(err, &se) {
		problem.Line = se.line
	}
	p.problems = append(p.problems, problem)
}

func (p *parser) problem(line int, subject, path, format string, args ...any) {
	p.problems = append(p.problems, Problem{line, subject, path, fmt.Sprintf(format, args...)})
}

// document reads a pod or a list of them.
func (p *parser) document(doc *node, subject string) {
	if doc.kind != object {
		p.problem(doc.line, subject, "", "must be an object, not %s", doc.kind)
		return
	}
	version, kind := word(doc, "apiVersion"), word(doc, "kind")
	switch {
	case kind == "":
		p.problem(doc.line, subject, "kind", "missing: begin with apiVersion: v1 and kind: Pod")
	case version == "":
		p.problem(doc.line, subject, "apiVersion", "missing: it is v1")
	case version != "v1" || !slices.Contains([]string{"Pod", "PodList", "List", KindConfigMap, KindSecret}, kind):
		p.problem(doc.get("kind").line, subject, "kind", "%s of %s is not supported: write a v1 Pod", kind, version)
	case kind == "Pod":
		p.pod(doc, subject)
	case kind == KindConfigMap || kind == KindSecret:
		p.object(doc, kind, subject)
	default:
		p.list(doc, subject, kind)
	}
}

// word returns the text of a field, or nothing.
func word(n *node, key string) string {
	if value := n.get(key); value != nil && value.kind == text {
		return value.text
	}
	return ""
}

func (p *parser) list(doc *node, subject, kind string) {
	for _, f := range doc.fields {
		switch f.key {
		case "apiVersion", "kind", "metadata":
		case "items":
			p.listed = true
			if f.value.kind != list {
				p.problem(f.line, subject, "items", "must be a list, not %s", f.value.kind)
			}
			for i, item := range f.value.items {
				p.item(item, fmt.Sprintf("%s: items[%d]", subject, i), kind)
			}
		default:
			p.problem(f.line, subject, f.key, "unknown field: a %s has items", kind)
		}
	}
}

// item reads one of a list. Those of a PodList need not say that they are pods.
func (p *parser) item(item *node, subject, kind string) {
	if item.kind == object && kind == "PodList" {
		for _, f := range []struct{ key, value string }{{"apiVersion", "v1"}, {"kind", "Pod"}} {
			if item.get(f.key) == nil {
				item.fields = append(item.fields, field{f.key, item.line, &node{kind: text, line: item.line, text: f.value}})
			}
		}
	}
	if item.kind == object && strings.HasSuffix(word(item, "kind"), "List") {
		p.problem(item.line, subject, "kind", "a list in a list is not supported: write its pods as items")
		return
	}
	p.document(item, subject)
}

func (p *parser) pod(doc *node, subject string) {
	if name := nameOf(doc); name != "" {
		subject = "pod " + name
	}
	r := newReport(subject)
	d := &decoder{report: r}
	var pod corev1.Pod
	d.decode(doc, reflect.ValueOf(&pod).Elem(), place{})
	forget(&pod)
	setDefaults(&pod)
	validate(&pod, r)
	p.problems = append(p.problems, r.sorted()...)
	p.more += r.more
	p.first(doc, "Pod", &pod.ObjectMeta, subject)
	if len(p.problems) > 0 {
		return
	}
	if pod.UID == "" {
		pod.UID = uid(&pod, p.origin)
	}
	pod.Spec.NodeName = p.origin.Node
	p.pods = append(p.pods, pod)
}

// first notes that there is another of the same kind and name, if there is.
func (p *parser) first(doc *node, kind string, m *metav1.ObjectMeta, subject string) {
	key := ObjectKey(kind, m.Namespace, m.Name)
	if line, ok := p.seen[key]; ok && m.Name != "" {
		p.problem(doc.line, subject, "metadata.name", "there is another %s of this name at line %d: use another", strings.ToLower(kind), line)
	}
	p.seen[key] = doc.line
}

// nameOf returns namespace/name of a pod's document, if it has a name.
func nameOf(doc *node) string {
	meta := doc.get("metadata")
	if meta == nil || word(meta, "name") == "" {
		return ""
	}
	namespace := word(meta, "namespace")
	if namespace == "" {
		namespace = DefaultNamespace
	}
	return namespace + "/" + word(meta, "name")
}

// forget drops what is ignored, so that it makes no difference to the pod's
// identity.
func forget(pod *corev1.Pod) {
	m := &pod.ObjectMeta
	*m = metav1.ObjectMeta{Name: m.Name, Namespace: m.Namespace, UID: m.UID, Labels: m.Labels, Annotations: m.Annotations}
	pod.Status = corev1.PodStatus{}
	s := &pod.Spec
	s.NodeName, s.NodeSelector, s.SchedulerName, s.Tolerations, s.TopologySpreadConstraints = "", nil, "", nil, nil
	s.EnableServiceLinks, s.PreemptionPolicy, s.Priority, s.PriorityClassName = nil, nil, nil, ""
	forEachContainer(pod, func(c *corev1.Container, _ string, _ bool) {
		c.ResizePolicy, c.TerminationMessagePath, c.TerminationMessagePolicy = nil, "", ""
	})
}
