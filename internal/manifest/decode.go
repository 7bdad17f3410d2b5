package manifest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/huskd/husk/internal/manifest/document"
	"github.com/huskd/husk/internal/manifest/fields"
)

// decoder decodes a document into a Kubernetes type. It continues after a problem, to report all
// problems at once.
type decoder struct {
	*report
	// anyField accepts every field of the type. It is set for config maps and secrets; the fields
	// of pods must be in the table of package fields.
	anyField bool
	// lookup finds a field in the table, if it isn't that of pods.
	lookup func(pattern string) (fields.Coverage, string)
}

// place is the position of a value: its path with indexes, and the pattern under which the table of
// fields lists it. The pattern is empty below a field that is listed as a whole.
type place struct{ path, pattern string }

func (p place) field(name string) place {
	if p.pattern != "" || p.path == "" {
		p.pattern = join(p.pattern, name)
	}
	p.path = join(p.path, name)
	return p
}

func (p place) index(i int) place {
	p.path += "[" + strconv.Itoa(i) + "]"
	if p.pattern != "" {
		p.pattern += "[]"
	}
	return p
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// decode decodes n into v, which is settable. A null leaves v unchanged.
func (d *decoder) decode(n *document.Node, v reflect.Value, at place) {
	d.lines[at.path] = n.Line
	if n.Kind == document.Null {
		return
	}
	if q, ok := v.Addr().Interface().(*resource.Quantity); ok {
		if *q, ok = ParseQuantity(n.Text); !ok || n.Kind != document.Text && n.Kind != document.Number {
			d.misread(at.path, at.path, n.Line, "%s is not a quantity such as 250m, 1.5 or 64Mi", abbreviate(n))
		}
		return
	}
	if u, ok := v.Addr().Interface().(json.Unmarshaler); ok {
		if err := u.UnmarshalJSON(n.AppendJSON(nil)); err != nil {
			d.misread(at.path, at.path, n.Line, "%s is not %s", abbreviate(n), exampleOf(v.Type()))
		}
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		p := reflect.New(v.Type().Elem())
		d.decode(n, p.Elem(), at)
		v.Set(p)
	case reflect.Struct:
		if d.is(n, document.Object, at) {
			d.object(n, v, at)
		}
	case reflect.Map:
		if d.is(n, document.Object, at) {
			d.mapping(n, v, at)
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			d.bytes(n, v, at)
			return
		}
		if !d.is(n, document.List, at) {
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), len(n.Items), len(n.Items)))
		for i, item := range n.Items {
			if item.Kind == document.Null {
				d.misread(at.path, at.index(i).path, item.Line, "empty: remove it")
			}
			d.decode(item, v.Index(i), at.index(i))
		}
	case reflect.String:
		if d.is(n, document.Text, at) {
			v.SetString(n.Text)
		}
	case reflect.Bool:
		if d.is(n, document.Boolean, at) {
			v.SetBool(n.Text == "true")
		}
	case reflect.Int32, reflect.Int64:
		if d.is(n, document.Number, at) {
			d.integer(n, v, at)
		}
	default:
		d.misread(at.path, at.path, n.Line, "this type of field is not supported")
	}
}

// bytes decodes base64, which may be wrapped over several lines.
func (d *decoder) bytes(n *document.Node, v reflect.Value, at place) {
	if !d.is(n, document.Text, at) {
		return
	}
	data, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(n.Text), ""))
	if err != nil {
		d.misread(at.path, at.path, n.Line, "is not base64: encode it, or use stringData of a Secret or data of a ConfigMap")
		return
	}
	v.SetBytes(data)
}

// is reports whether n has the wanted kind, and adds a problem if not.
func (d *decoder) is(n *document.Node, want document.Kind, at place) bool {
	if n.Kind == want {
		return true
	}
	remedy := ""
	if want == document.Text && (n.Kind == document.Number || n.Kind == document.Boolean) {
		remedy = fmt.Sprintf(": quote it (%q)", n.Raw)
		if d.anyField { // the value may be a secret
			remedy = ": quote it"
		}
	}
	d.misread(at.path, at.path, n.Line, "must be %s, not %s%s", want, n.Kind, remedy)
	return false
}

func (d *decoder) integer(n *document.Node, v reflect.Value, at place) {
	i, err := strconv.ParseInt(n.Text, 10, v.Type().Bits())
	switch {
	case err == nil:
		v.SetInt(i)
	case strings.ContainsAny(n.Text, ".eE"):
		d.misread(at.path, at.path, n.Line, "%s is not a whole number", n.Text)
	default:
		d.misread(at.path, at.path, n.Line, "%s is too large", n.Text)
	}
}

func (d *decoder) mapping(n *document.Node, v reflect.Value, at place) {
	v.Set(reflect.MakeMapWithSize(v.Type(), len(n.Fields)))
	seen := map[string]int{}
	for _, f := range n.Fields {
		to := place{path: join(at.path, f.Key)}
		if !d.checkNotRepeated(seen, f, at, to) {
			continue
		}
		value := reflect.New(v.Type().Elem()).Elem()
		d.decode(f.Value, value, to)
		v.SetMapIndex(reflect.ValueOf(f.Key).Convert(v.Type().Key()), value)
	}
}

func (d *decoder) object(n *document.Node, v reflect.Value, at place) {
	names := map[string][]int{}
	jsonFields(v.Type(), nil, names)
	seen := map[string]int{}
	for _, f := range n.Fields {
		to := at.field(f.Key)
		if !d.checkNotRepeated(seen, f, at, to) {
			continue
		}
		index, ok := names[f.Key]
		if !ok {
			hint := ""
			if !d.full() {
				hint = fields.Suggest(f.Key, at.pattern, names)
			}
			d.misread(at.path, to.path, f.Line, "unknown field%s", hint)
			continue
		}
		if to.pattern != "" && !d.anyField {
			lookup := d.lookup
			if lookup == nil {
				lookup = func(pattern string) (fields.Coverage, string) { return fields.Lookup(pattern, d.from) }
			}
			switch how, text := lookup(to.pattern); {
			case how == fields.Listed:
				to.pattern = ""
			case how == fields.Unlisted:
				if !f.Value.IsZero() {
					d.misread(at.path, to.path, f.Line, "%s", text)
				}
				continue
			}
		}
		d.decode(f.Value, v.FieldByIndex(index), to)
		if f.Value.Kind != document.Null {
			d.lines[to.path] = f.Line
		}
	}
}

// checkNotRepeated reports whether this is the first field with its key, and adds a problem if not.
func (d *decoder) checkNotRepeated(seen map[string]int, f document.Field, at, to place) bool {
	if line, ok := seen[f.Key]; ok {
		d.misread(at.path, to.path, f.Line, "set twice: also at line %d", line)
		return false
	}
	seen[f.Key] = f.Line
	return true
}

// jsonFields collects the fields of a struct by their JSON names, including those of embedded
// structs.
func jsonFields(t reflect.Type, prefix []int, out map[string][]int) {
	for i := range t.NumField() {
		f := t.Field(i)
		index := append(append([]int(nil), prefix...), i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported():
		case name == "" && f.Anonymous:
			jsonFields(f.Type, index, out)
		case name != "":
			out[name] = index
		}
	}
}

// abbreviate returns a value as it appears in messages.
func abbreviate(n *document.Node) string {
	const most = 40
	text := string(n.AppendJSON(nil))
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

// exampleOf describes the values that a type with its own UnmarshalJSON accepts.
func exampleOf(t reflect.Type) string {
	if strings.HasSuffix(t.Name(), "Time") {
		return "a time such as 2026-01-31T12:00:00Z"
	}
	if t == reflect.TypeFor[intstr.IntOrString]() {
		return "a number or a name"
	}
	return "a " + t.Name()
}

// quantityForm bounds the exponent: for 1e2000000000, Kubernetes' parser needs time and memory in
// proportion to the value.
var quantityForm = regexp.MustCompile(`^[+-]?[0-9]{0,18}(\.[0-9]{0,18})?([numkKMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,2})?$`)

// ParseQuantity parses a quantity in bounded time.
func ParseQuantity(text string) (resource.Quantity, bool) {
	if !quantityForm.MatchString(text) {
		return resource.Quantity{}, false
	}
	q, err := resource.ParseQuantity(text)
	return q, err == nil
}
