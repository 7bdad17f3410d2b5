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
	// Size, Modes and StorageClass are what a manifest has said.
	Size         string   `json:"size,omitempty"`
	Modes        []string `json:"modes,omitempty"`
	StorageClass string   `json:"storageClass,omitempty"`
}

// Resource returns the name of the claim as kubectl has it.
func (v VolumeView) Resource() string {
	return "persistentvolumeclaim/" + PodName(v.Namespace, v.Name)
}

// VolumeDetails is a volume in the output of husk volume inspect.
type VolumeDetails struct {
	VolumeView
	UsedBytes int64 `json:"usedBytes"`
	// SizeEnforced tells whether the files can't take more than the size.
	SizeEnforced bool `json:"sizeEnforced"`
}

// VolumeViews returns the views of volumes.
func VolumeViews(volumes []*huskv1.Volume) []VolumeView {
	out := make([]VolumeView, 0, len(volumes))
	for _, v := range volumes {
		out = append(out, VolumeView{v.Namespace, v.Name, v.Path, orEmpty(v.Pods), v.Size, v.Modes, v.StorageClass})
	}
	return out
}

// VolumeDetailsOf returns the view of a volume for husk volume inspect.
func VolumeDetailsOf(v *huskv1.Volume) VolumeDetails {
	return VolumeDetails{VolumeView: VolumeViews([]*huskv1.Volume{v})[0], UsedBytes: v.UsedBytes, SizeEnforced: v.SizeEnforced}
}

// VolumeTable returns a table with a row for each volume.
func VolumeTable(volumes []*huskv1.Volume) *Table {
	t := NewTable("NAMESPACE", "NAME", "PODS", "PATH")
	for _, v := range volumes {
		t.Row(v.Namespace, v.Name, orNone(strings.Join(v.Pods, ",")), v.Path)
	}
	return t
}
