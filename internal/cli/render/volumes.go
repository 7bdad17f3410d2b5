package render

import (
	"strings"

	huskv1 "github.com/huskd/husk/api/v1"
)

// VolumeView is a volume in the JSON and YAML of husk volume ls.
type VolumeView struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Path      string   `json:"path"`
	Pods      []string `json:"pods"`
}

// VolumeViews returns the views of volumes.
func VolumeViews(volumes []*huskv1.Volume) []VolumeView {
	out := make([]VolumeView, 0, len(volumes))
	for _, v := range volumes {
		out = append(out, VolumeView{v.Namespace, v.Name, v.Path, orEmpty(v.Pods)})
	}
	return out
}

// VolumeTable returns a table with a row for each volume.
func VolumeTable(volumes []*huskv1.Volume) *Table {
	t := NewTable("NAMESPACE", "NAME", "PODS", "PATH")
	for _, v := range volumes {
		t.Row(v.Namespace, v.Name, orNone(strings.Join(v.Pods, ",")), v.Path)
	}
	return t
}
