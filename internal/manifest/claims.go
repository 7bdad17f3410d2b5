package manifest

import (
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/huskd/husk/internal/manifest/claim"
	"github.com/huskd/husk/internal/manifest/document"
)

// bound returns a claim with the path of the volume that it gets.
func (o Objects) bound(name string, object Object) Object {
	claims, volumes := map[string]claim.Claim{}, map[string]claim.Volume{}
	for key, data := range o {
		if of, ok := strings.CutPrefix(key, KindClaim+" "); ok {
			claims[of], _ = claim.Decode[claim.Claim](data)
		} else if of, ok := strings.CutPrefix(key, KindVolume+" /"); ok {
			volumes[of], _ = claim.Decode[claim.Volume](data)
		}
	}
	volume, ok := claim.Bind(claims, volumes)[name]
	if !ok {
		return object
	}
	c := claims[name]
	c.Path = volumes[volume].Path
	return claim.Encode(c)
}

// claim parses a PersistentVolumeClaim.
func (p *parser) claim(doc *document.Node, subject string) {
	if name := nameOf(doc); name != "" {
		subject = "claim " + name
	}
	var o corev1.PersistentVolumeClaim
	r := newReport(subject)
	(&decoder{report: r, anyField: true}).decode(doc, reflect.ValueOf(&o).Elem(), place{})
	setDefault(&o.Namespace, DefaultNamespace)
	c, problems := claim.OfClaim(&o)
	addProblems(r, problems)
	p.stored(doc, KindClaim, &o.ObjectMeta, r, claim.Encode(c))
}

// volume parses a PersistentVolume.
func (p *parser) volume(doc *document.Node, subject string) {
	if meta := doc.Get("metadata"); meta != nil && textField(meta, "name") != "" {
		subject = "volume " + textField(meta, "name")
	}
	var o corev1.PersistentVolume
	r := newReport(subject)
	(&decoder{report: r, anyField: true}).decode(doc, reflect.ValueOf(&o).Elem(), place{})
	v, ok, problems := claim.OfVolume(&o)
	if !ok {
		p.unused = append(p.unused, Unused{doc.Line, KindVolume + " " + o.Name, "only volumes of hostPath and local are used: its claims are directories of this node"})
		return
	}
	o.Namespace = ""
	addProblems(r, problems)
	p.stored(doc, KindVolume, &o.ObjectMeta, r, claim.Encode(v))
}

// addProblems adds problems, except those of values that couldn't be decoded.
func addProblems(r *report, problems []claim.Problem) {
	for _, problem := range problems {
		if !r.faulty[problem.Path] {
			r.invalid(problem.Path, "%s", problem.Text)
		}
	}
}

// stored adds an object, or its problems.
func (p *parser) stored(doc *document.Node, kind string, m *metav1.ObjectMeta, r *report, data Object) {
	if m.Name == "" {
		r.missing("metadata.name", "")
	} else if len(validation.IsDNS1123Subdomain(m.Name)) > 0 {
		r.invalid("metadata.name", "%q is not valid: %s", m.Name, subdomainRule)
	}
	if kind == KindClaim && len(validation.IsDNS1123Label(m.Namespace)) > 0 {
		r.invalid("metadata.namespace", "%q is not valid: %s", m.Namespace, labelRule)
	}
	p.problems = append(p.problems, r.sorted()...)
	p.more += r.more
	p.checkUnique(doc, kind, m, r.subject)
	p.keep(doc, kind, m)
	p.objects[ObjectKey(kind, m.Namespace, m.Name)] = data
}
