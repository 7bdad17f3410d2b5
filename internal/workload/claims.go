package workload

import (
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/manifest/claim"
)

// Claim is a claim that each pod of a StatefulSet has. Its name is that of the pods' volume.
type Claim struct {
	Name string `json:"name"`
	claim.Claim
}

// Retention says when the claims of a StatefulSet are removed with their files. By default they
// stay.
type Retention struct {
	WhenDeleted bool `json:"whenDeleted,omitempty"` // with the set
	WhenScaled  bool `json:"whenScaled,omitempty"`  // with the pods that scaling down removes
}

// ClaimName returns the name of the claim that the pod with that ordinal has for a volume.
func ClaimName(w *Workload, volume string, ordinal int) string {
	return volume + "-" + w.Name + "-" + strconv.Itoa(ordinal)
}

// ClaimOrdinal returns the ordinal of the pod whose claim has that name, and whether it is one of
// the StatefulSet's.
func ClaimOrdinal(w *Workload, name string) (ordinal int, ok bool) {
	for i := range w.Claims {
		text, ok := strings.CutPrefix(name, w.Claims[i].Name+"-"+w.Name+"-")
		if !ok {
			continue
		}
		if ordinal, err := strconv.Atoi(text); err == nil && ClaimName(w, w.Claims[i].Name, ordinal) == name {
			return ordinal, true
		}
	}
	return 0, false
}

// ClaimVolume returns the volume of a template for the claims of that name. The pods' own claims
// take its place.
func ClaimVolume(name string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
	}}
}

// setClaims makes the volumes of a StatefulSet's pod those of its own claims.
func setClaims(w *Workload, pod *corev1.Pod, ordinal int) {
	for i := range w.Claims {
		for j := range pod.Spec.Volumes {
			if v := &pod.Spec.Volumes[j]; v.Name == w.Claims[i].Name && v.PersistentVolumeClaim != nil {
				own := *v.PersistentVolumeClaim
				own.ClaimName = ClaimName(w, v.Name, ordinal)
				v.PersistentVolumeClaim = &own
			}
		}
	}
}
