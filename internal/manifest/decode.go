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

	"github.com/huskd/husk/internal/manifest/document"
	"github.com/huskd/husk/internal/manifest/fields"
)

// decoder reads a document into a Kubernetes type. It reads on after a
// problem, so that all of them are told at once.
type decoder struct {
	*report
	// whole says that it is not a pod, whose fields have a table.
	anyField bool
}

// place is where a value stands: its path, with indexes, and its pattern, by
// which the table of fields knows it. Below a field that is listed as a whole
// the pattern is empty.
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

// decode reads n into v, which is settable. A null leaves v as it is.
func (d *decoder) decode(n *document.Node, v reflect.Value, at place) {
	d.lines[at.path] = n.Line
	if n.Kind == document.Null {
		return
	}
	if q, ok := v.Addr().Interface().(*resource.Quantity); ok {
		if *q, ok = parseQuantity(n.Text); !ok || n.Kind != document.Text && n.Kind != document.Number {
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
		d.misread(at.path, at.path, n.Line, "can't be read")
	}
}

// bytes are written in base64, which may be wrapped.
func (d *decoder) bytes(n *document.Node, v reflect.Value, at place) {
	if !d.is(n, document.Text, at) {
		return
	}
	data, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(n.Text), ""))
	if err != nil {
		d.misread(at.path, at.path, n.Line, "is not base64: encode it, or write it as stringData of a Secret or data of a ConfigMap")
		return
	}
	v.SetBytes(data)
}

// is says whether n has the kind that is wanted, or notes that it hasn't.
func (d *decoder) is(n *document.Node, want document.Kind, at place) bool {
	if n.Kind == want {
		return true
	}
	remedy := ""
	if want == document.Text && (n.Kind == document.Number || n.Kind == document.Boolean) {
		remedy = fmt.Sprintf(": quote it (%q)", n.Raw)
		if d.anyField { // it may be secret
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
			switch how, remedy := fields.Lookup(to.pattern); {
			case how == fields.Listed:
				to.pattern = ""
			case how == fields.Unlisted:
				if !f.Value.IsZero() {
					d.misread(at.path, to.path, f.Line, "%s", remedy)
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

// first says whether a key is met for the first time, or notes that it isn't.
func (d *decoder) checkNotRepeated(seen map[string]int, f document.Field, at, to place) bool {
	if line, ok := seen[f.Key]; ok {
		d.misread(at.path, to.path, f.Line, "given twice: line %d has it too", line)
		return false
	}
	seen[f.Key] = f.Line
	return true
}

// jsonFields collects the fields of a struct by their JSON names, those of
// inlined structs among them.
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

// short shows a value in a message.
func abbreviate(n *document.Node) string {
	const most = 40
	text := string(n.AppendJSON(nil))
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

// example names what a type that reads itself wants.
func exampleOf(t reflect.Type) string {
	if strings.HasSuffix(t.Name(), "Time") {
		return "a time such as 2026-01-31T12:00:00Z"
	}
	return "a " + t.Name()
}

// quantityForm bounds the exponent: Kubernetes' parser takes the time and
// memory that 1e2000000000 stands for.
var quantityForm = regexp.MustCompile(`^[+-]?[0-9]{0,18}(\.[0-9]{0,18})?([numkKMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,2})?$`)

func parseQuantity(text string) (resource.Quantity, bool) {
	if !quantityForm.MatchString(text) {
		return resource.Quantity{}, false
	}
	q, err := resource.ParseQuantity(text)
	return q, err == nil
}
