// Package manifest parses pod manifests. It turns the bytes of a file into complete, valid pods, or
// into an error with a line for each problem. It is pure.
//
// It is stricter than an API server. A field that Husk doesn't honour is refused rather than
// dropped, unless the field has no meaning on a single node; package fields has the tables. A file
// is accepted or refused as a whole, so that a mistake in one pod is never read as the removal of
// another.
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
	"github.com/huskd/husk/internal/manifest/fields"
	"github.com/huskd/husk/internal/manifest/identity"
	"github.com/huskd/husk/internal/manifest/kinds"
	"github.com/huskd/husk/internal/manifest/remedy"
	"github.com/huskd/husk/internal/network/policy"
	"github.com/huskd/husk/internal/network/service"
	"github.com/huskd/husk/internal/workload"
)

// Origin says where a manifest comes from.
type Origin struct {
	// File is the file's name in messages.
	File string
	// Node is the name of the node. It becomes spec.nodeName.
	Node string
	// Source identifies the source, for example file:/etc/husk/web.yaml. The UIDs of the pods are
	// derived from it, so it must stay the same for all versions of a file.
	Source string
	// From says whose pods they are: messages have remedies for them. Those of a cluster have been
	// validated by an API server, by its own rules.
	From remedy.Source
	// Policies accepts network policies. Without it they are refused, because they would have no
	// effect.
	Policies bool
	// Services accepts Services and their endpoints. Without it they are noted as unused.
	Services bool
}

// File is the parsed content of a manifest file.
type File struct {
	Pods []corev1.Pod
	// Objects are the config maps, secrets, claims and volumes of the file. Pods of any file may
	// reference them.
	Objects Objects
	// Policies are the NetworkPolicies and ClusterNetworkPolicies of the file.
	Policies []policy.Policy
	// Namespaces are the labels of namespaces, by name. They are read if policies are accepted.
	Namespaces map[string]map[string]string
	// Unused are the objects with which a node does nothing: see package kinds.
	Unused []Unused
	// Services are those of the file, with an API server's defaults. They are accepted only if the
	// Origin says so. Slices are endpoints that no selector chooses.
	Services []*corev1.Service
	Slices   []*service.Slice
	// Workloads are the Deployments, Jobs and so on of the file. They have no UIDs.
	Workloads []*workload.Workload
	// Documents are the objects of the file that may be kept without it: all that have an effect,
	// except for pods and workloads.
	Documents []Document
}

// Document is an object of a file as it is written.
type Document struct {
	Kind, Namespace, Name string
	JSON                  []byte // which Parse reads
}

// Unused is an object of a manifest that has no effect.
type Unused struct {
	Line   int
	Object string // its kind and name, as in Ingress default/web
	Why    string
}

func (u Unused) String() string {
	return fmt.Sprintf("line %d: %s has no effect: %s", u.Line, u.Object, u.Why)
}

// Parse returns the pods and objects of a manifest. Each pod has an API server's defaults, the
// node's name and a UID. The error is an *Error.
func Parse(data []byte, o Origin) (File, error) {
	p := &parser{origin: o, seen: map[string]int{}, generated: map[string]int{}, objects: Objects{}, namespaces: map[string]map[string]string{}}
	docs, err := document.Read(data)
	if err != nil {
		p.fail(err)
	}
	for i, doc := range docs {
		p.document(doc, fmt.Sprintf("document %d", i+1))
	}
	if len(p.pods) == 0 && len(p.workloads) == 0 && len(p.objects) == 0 && len(p.policies) == 0 && len(p.unused) == 0 && len(p.services)+len(p.slices) == 0 && len(p.namespaces) == 0 && !p.listed && len(p.problems) == 0 {
		p.problems = []Problem{{Text: "there is no pod in it: begin one with apiVersion: v1 and kind: Pod"}}
	}
	if len(p.problems) == 0 {
		return File{Pods: p.pods, Objects: p.objects, Policies: p.policies, Namespaces: p.namespaces, Unused: p.unused, Services: p.services, Slices: p.slices, Workloads: p.workloads, Documents: p.documents}, nil
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
	policies []policy.Policy
	// namespaces has the labels of namespaces, by name.
	namespaces map[string]map[string]string
	unused     []Unused
	services   []*corev1.Service
	slices     []*service.Slice
	workloads  []*workload.Workload
	documents  []Document
	listed     bool // the file has a list, which may be empty
	problems   []Problem
	more       int            // number of problems that are not in problems
	seen       map[string]int // line of each pod and object, by ObjectKey
	// generated counts the generated names, by their prefix.
	generated map[string]int
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

// document parses a pod, an object, or a list of them.
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
		p.problem(doc.Line, subject, "apiVersion", "missing: set it to v1")
	case p.origin.Policies && isPolicy(version, kind):
		p.policy(doc, kind, subject)
	case isPolicy(version, kind):
		p.problem(doc.Line, subject, "kind", "network policies are not enforced on this node: set network-policy in the configuration, or remove it")
	case p.origin.Policies && version == "v1" && kind == KindNamespace:
		p.namespace(doc, subject)
	case p.origin.Services && isService(version, kind):
		p.service(doc, kind, subject)
	case fields.WorkloadVersion(kind) == version || fields.IsFormer(version, kind):
		table, _ := fields.FindWorkload(fields.WorkloadVersion(kind), kind)
		p.workload(doc, table, subject)
	case fields.WorkloadVersion(kind) != "":
		p.problem(doc.Get("apiVersion").Line, subject, "apiVersion", "%s of %s is not supported: use %s", kind, version, fields.WorkloadVersion(kind))
	case p.isUnused(doc, version, kind):
	case version != "v1" || !slices.Contains([]string{"Pod", "PodList", "List", KindConfigMap, KindSecret, KindClaim, KindVolume}, kind):
		p.problem(doc.Get("kind").Line, subject, "kind", "%s of %s is not supported: use a v1 Pod", kind, version)
	case kind == "Pod":
		p.pod(doc, subject)
	case kind == KindConfigMap || kind == KindSecret:
		p.object(doc, kind, subject)
	case kind == KindClaim:
		p.claim(doc, subject)
	case kind == KindVolume:
		p.volume(doc, subject)
	default:
		p.list(doc, subject, kind)
	}
}

// isUnused notes an object that has no effect, and reports whether it is one.
func (p *parser) isUnused(doc *document.Node, version, kind string) bool {
	why, ok := kinds.Lookup(version, kind)
	if !ok {
		return false
	}
	name := ""
	if meta := doc.Get("metadata"); meta != nil {
		name = textField(meta, "name")
		if namespace := textField(meta, "namespace"); namespace != "" {
			name = namespace + "/" + name
		}
	}
	p.unused = append(p.unused, Unused{doc.Line, strings.TrimSpace(kind + " " + name), why})
	return true
}

// textField returns the value of a string field, or "".
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
			p.problem(f.Line, subject, f.Key, "unknown field: a %s has only items", kind)
		}
	}
}

// item parses an item of a list. The items of a PodList may leave out apiVersion and kind.
func (p *parser) item(item *document.Node, subject, kind string) {
	if item.Kind == document.Object && kind == "PodList" {
		for _, f := range []struct{ key, value string }{{"apiVersion", "v1"}, {"kind", "Pod"}} {
			if item.Get(f.key) == nil {
				item.Fields = append(item.Fields, document.Field{Key: f.key, Line: item.Line, Value: &document.Node{Kind: document.Text, Line: item.Line, Text: f.value}})
			}
		}
	}
	if item.Kind == document.Object && strings.HasSuffix(textField(item, "kind"), "List") {
		p.problem(item.Line, subject, "kind", "nested lists are not supported: write the pods as items of the outer list")
		return
	}
	p.document(item, subject)
}

func (p *parser) pod(doc *document.Node, subject string) {
	if name := nameOf(doc); name != "" {
		subject = "pod " + name
	}
	r := newReport(subject)
	r.from = p.origin.From
	d := &decoder{report: r}
	var pod corev1.Pod
	d.decode(doc, reflect.ValueOf(&pod).Elem(), place{})
	p.setName(&pod)
	dropServerFields(&pod)
	dropAPIAccess(&pod.Spec)
	setDefaults(&pod)
	validate(&pod, r)
	p.problems = append(p.problems, r.sorted()...)
	p.more += r.more
	p.checkUnique(doc, "Pod", &pod.ObjectMeta, subject)
	if len(p.problems) > 0 {
		return
	}
	if pod.UID == "" {
		pod.UID = identity.UID(&pod, p.origin.Node, p.origin.Source)
	}
	pod.Spec.NodeName = p.origin.Node
	p.pods = append(p.pods, pod)
}

// checkUnique adds a problem if the file has already declared an object of this kind and name.
func (p *parser) checkUnique(doc *document.Node, kind string, m *metav1.ObjectMeta, subject string) {
	key := ObjectKey(kind, m.Namespace, m.Name)
	if line, ok := p.seen[key]; ok && m.Name != "" {
		p.problem(doc.Line, subject, "metadata.name", "line %d declares a %s of the same name: rename one", line, strings.ToLower(kind))
	}
	p.seen[key] = doc.Line
}

// keep adds an object that may be kept without its file.
func (p *parser) keep(doc *document.Node, kind string, m *metav1.ObjectMeta) {
	p.documents = append(p.documents, Document{kind, m.Namespace, m.Name, doc.AppendJSON(nil)})
}

// nameOf returns the namespace/name that a document declares, or "" if it has no name.
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

// setName names a pod that has only the beginning of a name. The pods of a file get different
// names, and the same ones each time it is parsed.
func (p *parser) setName(pod *corev1.Pod) {
	prefix := pod.GenerateName
	if pod.Name != "" || prefix == "" {
		return
	}
	p.generated[prefix]++
	pod.Name = identity.Name(pod, p.origin.Source, p.generated[prefix])
}

// apiAccess begins the names of the volumes with a token that an API server adds to pods.
const apiAccess = "kube-api-access-"

// dropAPIAccess removes the volume with which an API server gives a pod access to itself. The
// output of kubectl get has it. The volume of a pod that comes from an API server has a Secret in
// place of the token, and stays.
func dropAPIAccess(spec *corev1.PodSpec) {
	dropped := map[string]bool{}
	for _, v := range spec.Volumes {
		dropped[v.Name] = strings.HasPrefix(v.Name, apiAccess) && v.Projected != nil &&
			slices.ContainsFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool { return s.ServiceAccountToken != nil })
	}
	spec.Volumes = slices.DeleteFunc(spec.Volumes, func(v corev1.Volume) bool { return dropped[v.Name] })
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			containers[i].VolumeMounts = slices.DeleteFunc(containers[i].VolumeMounts, func(m corev1.VolumeMount) bool { return dropped[m.Name] })
		}
	}
}

// dropServerFields clears the fields that an API server sets.
func dropServerFields(pod *corev1.Pod) {
	m := &pod.ObjectMeta
	*m = metav1.ObjectMeta{Name: m.Name, Namespace: m.Namespace, UID: m.UID, Labels: m.Labels, Annotations: m.Annotations}
	pod.Status = corev1.PodStatus{}
}
