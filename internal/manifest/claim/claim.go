// Package claim has what a node keeps of the PersistentVolumeClaims and PersistentVolumes of
// manifests, and decides which volume a claim gets. It is pure.
package claim

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Claim is what a PersistentVolumeClaim asks for.
type Claim struct {
	Modes []corev1.PersistentVolumeAccessMode `json:"modes"`
	// Size is enforced if the file system has project quotas.
	Size resource.Quantity `json:"size"`
	// Class and Volume choose the volume, if there is one. Without one the claim is a directory of
	// the node, whatever its class.
	Class  string `json:"class,omitempty"`
	Volume string `json:"volume,omitempty"`
	// Path is the directory of the volume that the claim got, see Bind.
	Path string `json:"path,omitempty"`
}

// Volume is a PersistentVolume of the node.
type Volume struct {
	Path  string                              `json:"path"`
	Modes []corev1.PersistentVolumeAccessMode `json:"modes"`
	Size  resource.Quantity                   `json:"size"`
	Class string                              `json:"class,omitempty"`
	// Claim is namespace/name of the only claim that may have the volume; empty for any.
	Claim string `json:"claim,omitempty"`
}

// Problem is a mistake in an object, at a path such as spec.accessModes.
type Problem struct{ Path, Text string }

var modes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOncePod}

// OfClaim returns a claim and its mistakes.
func OfClaim(o *corev1.PersistentVolumeClaim) (Claim, []Problem) {
	s := &o.Spec
	out := Claim{Modes: s.AccessModes, Volume: s.VolumeName}
	if s.StorageClassName != nil {
		out.Class = *s.StorageClassName
	}
	problems := checkModes(s.AccessModes)
	if s.VolumeMode != nil && *s.VolumeMode != corev1.PersistentVolumeFilesystem {
		problems = append(problems, Problem{"spec.volumeMode", "block devices are not supported: use Filesystem"})
	}
	size, ok := s.Resources.Requests[corev1.ResourceStorage]
	switch {
	case !ok:
		problems = append(problems, Problem{"spec.resources.requests", "storage is missing: set it, as in 1Gi"})
	case size.Sign() <= 0:
		problems = append(problems, Problem{"spec.resources.requests", fmt.Sprintf("storage is %s: it must be more than 0", size.String())})
	}
	out.Size = size
	return out, problems
}

// OfVolume returns a volume and its mistakes. ok is false for a volume that isn't a directory of a
// node.
func OfVolume(o *corev1.PersistentVolume) (out Volume, ok bool, problems []Problem) {
	s := &o.Spec
	at := "spec.hostPath.path"
	switch {
	case s.HostPath != nil:
		out.Path = s.HostPath.Path
	case s.Local != nil:
		at, out.Path = "spec.local.path", s.Local.Path
	default:
		return Volume{}, false, nil
	}
	out.Modes, out.Size, out.Class = s.AccessModes, s.Capacity[corev1.ResourceStorage], s.StorageClassName
	if ref := s.ClaimRef; ref != nil {
		out.Claim = cmp.Or(ref.Namespace, corev1.NamespaceDefault) + "/" + ref.Name
	}
	problems = checkModes(s.AccessModes)
	if !path.IsAbs(out.Path) || slices.Contains(strings.Split(out.Path, "/"), "..") {
		problems = append(problems, Problem{at, fmt.Sprintf("%q is not an absolute path without ..", out.Path)})
	}
	return out, true, problems
}

func checkModes(set []corev1.PersistentVolumeAccessMode) (problems []Problem) {
	if len(set) == 0 {
		problems = append(problems, Problem{"spec.accessModes", "missing: set it to [ReadWriteOnce]"})
	}
	for _, mode := range set {
		if !slices.Contains(modes, mode) {
			problems = append(problems, Problem{"spec.accessModes", fmt.Sprintf("%q is not one of ReadWriteOnce, ReadOnlyMany, ReadWriteMany, ReadWriteOncePod", mode)})
		}
	}
	if len(set) > 1 && slices.Contains(set, corev1.ReadWriteOncePod) {
		problems = append(problems, Problem{"spec.accessModes", "ReadWriteOncePod excludes other modes: remove it or them"})
	}
	return problems
}

// Bind returns the volumes that claims get, by namespace/name of the claim. A claim gets the volume
// that it or the volume names. Otherwise, if it has a class, it gets the smallest volume of that
// class that is large enough and has its modes. Each volume has one claim.
func Bind(claims map[string]Claim, volumes map[string]Volume) map[string]string {
	out, taken := map[string]string{}, map[string]bool{}
	names := slices.Sorted(maps.Keys(claims))
	for _, name := range names {
		for _, volume := range slices.Sorted(maps.Keys(volumes)) {
			if !taken[volume] && (claims[name].Volume == volume && cmp.Or(volumes[volume].Claim, name) == name || claims[name].Volume == "" && volumes[volume].Claim == name) {
				out[name], taken[volume] = volume, true
				break
			}
		}
	}
	bySize := slices.SortedFunc(maps.Keys(volumes), func(a, b string) int {
		x, y := volumes[a].Size, volumes[b].Size
		return cmp.Or(x.Cmp(y), strings.Compare(a, b))
	})
	for _, name := range names {
		if out[name] != "" || claims[name].Volume != "" {
			continue
		}
		i := slices.IndexFunc(bySize, func(volume string) bool { return !taken[volume] && volumes[volume].suits(claims[name]) })
		if i >= 0 {
			out[name], taken[bySize[i]] = bySize[i], true
		}
	}
	return out
}

func (v Volume) suits(c Claim) bool {
	missing := func(mode corev1.PersistentVolumeAccessMode) bool { return !slices.Contains(v.Modes, mode) }
	return v.Claim == "" && v.Class == c.Class && c.Class != "" && v.Size.Cmp(c.Size) >= 0 && !slices.ContainsFunc(c.Modes, missing)
}

// Exclusive reports whether only one pod at a time may use the claim.
func (c Claim) Exclusive() bool { return slices.Contains(c.Modes, corev1.ReadWriteOncePod) }

// Key is the key of the JSON of a claim or volume in the data of an object.
const Key = "spec"

// Encode returns a Claim or Volume as the data of an object.
func Encode[T Claim | Volume](v T) map[string][]byte {
	raw, _ := json.Marshal(v) // it consists of texts and quantities, which never fail
	return map[string][]byte{Key: raw}
}

// Decode returns the Claim or Volume that Encode has encoded.
func Decode[T Claim | Volume](data map[string][]byte) (v T, err error) {
	err = json.Unmarshal(data[Key], &v)
	return v, err
}
