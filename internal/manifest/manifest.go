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

	"github.com/huskd/husk/internal/manifest/document"
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
	docs, err := document.Read(data)
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
	if se := (*document.SyntaxError)(nil); errors.As(err, &se) {
		problem.Line = se.Line
	}
	p.problems = append(p.problems, problem)
}

func (p *parser) problem(line int, subject, path, format string, args ...any) {
	p.problems = append(p.problems, Problem{line, subject, path, fmt.Sprintf(format, args...)})
}

// document reads a pod or a list of them.
func (p *parser) document(doc *document.Node, subject string) {
	if doc.Kind != document.Object {
		p.problem(doc.Line, subject, "", "must be an object, not %s", doc.Kind)
		return
	}
	version, kind := textField(doc, "apiVersion"), textField(doc, "kind")
	switch {
	case kind == "":
		p.problem(doc.Line, subject, "kind", "missing: begin with apiVersion: v1 and kind: Pod")
	case version == "":
		p.problem(doc.Line, subject, "apiVersion", "missing: it is v1")
	case version != "v1" || !slices.Contains([]string{"Pod", "PodList", "List", KindConfigMap, KindSecret}, kind):
		p.problem(doc.Get("kind").Line, subject, "kind", "%s of %s is not supported: write a v1 Pod", kind, version)
	case kind == "Pod":
		p.pod(doc, subject)
	case kind == KindConfigMap || kind == KindSecret:
		p.object(doc, kind, subject)
	default:
		p.list(doc, subject, kind)
	}
}

// word returns the text of a field, or nothing.
func textField(n *document.Node, key string) string {
	if value := n.Get(key); value != nil && value.Kind == document.Text {
		return value.Text
	}
	return ""
}

func (p *parser) list(doc *document.Node, subject, kind string) {
	for _, f := range doc.Fields {
		switch f.Key {
		case "apiVersion", "kind", "metadata":
		case "items":
			p.listed = true
			if f.Value.Kind != document.List {
				p.problem(f.Line, subject, "items", "must be a list, not %s", f.Value.Kind)
			}
			for i, item := range f.Value.Items {
				p.item(item, fmt.Sprintf("%s: items[%d]", subject, i), kind)
			}
		default:
			p.problem(f.Line, subject, f.Key, "unknown field: a %s has items", kind)
		}
	}
}

// item reads one of a list. Those of a PodList need not say that they are pods.
func (p *parser) item(item *document.Node, subject, kind string) {
	if item.Kind == document.Object && kind == "PodList" {
		for _, f := range []struct{ key, value string }{{"apiVersion", "v1"}, {"kind", "Pod"}} {
			if item.Get(f.key) == nil {
				item.Fields = append(item.Fields, document.Field{Key: f.key, Line: item.Line, Value: &document.Node{Kind: document.Text, Line: item.Line, Text: f.value}})
			}
		}
	}
	if item.Kind == document.Object && strings.HasSuffix(textField(item, "kind"), "List") {
		p.problem(item.Line, subject, "kind", "a list in a list is not supported: write its pods as items")
		return
	}
	p.document(item, subject)
}

func (p *parser) pod(doc *document.Node, subject string) {
	if name := nameOf(doc); name != "" {
		subject = "pod " + name
	}
	r := newReport(subject)
	d := &decoder{report: r}
	var pod corev1.Pod
	d.decode(doc, reflect.ValueOf(&pod).Elem(), place{})
	dropServerFields(&pod)
	setDefaults(&pod)
	validate(&pod, r)
	p.problems = append(p.problems, r.sorted()...)
	p.more += r.more
	p.checkUnique(doc, "Pod", &pod.ObjectMeta, subject)
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
func (p *parser) checkUnique(doc *document.Node, kind string, m *metav1.ObjectMeta, subject string) {
	key := ObjectKey(kind, m.Namespace, m.Name)
	if line, ok := p.seen[key]; ok && m.Name != "" {
		p.problem(doc.Line, subject, "metadata.name", "there is another %s of this name at line %d: use another", strings.ToLower(kind), line)
	}
	p.seen[key] = doc.Line
}

// nameOf returns namespace/name of a pod's document, if it has a name.
func nameOf(doc *document.Node) string {
	meta := doc.Get("metadata")
	if meta == nil || textField(meta, "name") == "" {
		return ""
	}
	namespace := textField(meta, "namespace")
	if namespace == "" {
		namespace = DefaultNamespace
	}
	return namespace + "/" + textField(meta, "name")
}

// forget drops what an API server has set.
func dropServerFields(pod *corev1.Pod) {
	m := &pod.ObjectMeta
	*m = metav1.ObjectMeta{Name: m.Name, Namespace: m.Namespace, UID: m.UID, Labels: m.Labels, Annotations: m.Annotations}
	pod.Status = corev1.PodStatus{}
}
