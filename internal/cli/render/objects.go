package render

import (
	"time"

	huskv1 "github.com/huskd/husk/api/v1"
)

// ObjectView is an object in the JSON and YAML of husk objects.
type ObjectView struct {
	Kind      string    `json:"kind"`
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name"`
	File      string    `json:"file"`
	Created   time.Time `json:"created"`
}

// ObjectViews returns the views of objects.
func ObjectViews(objects []*huskv1.Object) []ObjectView {
	out := make([]ObjectView, 0, len(objects))
	for _, o := range objects {
		out = append(out, ObjectView{o.Kind, o.Namespace, o.Name, o.File, time.Unix(0, o.CreatedNs).UTC()})
	}
	return out
}

// ObjectTable returns a table with a row for each object.
func ObjectTable(objects []*huskv1.Object, now time.Time) *Table {
	t := NewTable("KIND", "NAMESPACE", "NAME", "FILE", "AGE")
	for _, o := range objects {
		t.Row(o.Kind, orNone(o.Namespace), o.Name, o.File, Age(now.Sub(time.Unix(0, o.CreatedNs))))
	}
	return t
}
