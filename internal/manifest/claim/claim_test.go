package claim

import (
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestBind(t *testing.T) {
	t.Parallel()
	once, many := corev1.ReadWriteOnce, corev1.ReadWriteMany
	claim := func(class, volume, size string, modes ...corev1.PersistentVolumeAccessMode) Claim {
		return Claim{Modes: modes, Size: resource.MustParse(size), Class: class, Volume: volume}
	}
	volume := func(class, claim, size string, modes ...corev1.PersistentVolumeAccessMode) Volume {
		return Volume{Path: "/p", Modes: modes, Size: resource.MustParse(size), Class: class, Claim: claim}
	}
	for name, test := range map[string]struct {
		claims  map[string]Claim
		volumes map[string]Volume
		want    map[string]string
	}{
		"no class": {
			map[string]Claim{"n/a": claim("", "", "1Gi", once)}, map[string]Volume{"v": volume("", "", "1Gi", once)}, map[string]string{},
		},
		"the smallest that suits": {
			map[string]Claim{"n/a": claim("manual", "", "2Gi", once)},
			map[string]Volume{"v1": volume("manual", "", "1Gi", once), "v2": volume("manual", "", "5Gi", once), "v3": volume("manual", "", "3Gi", once, many)},
			map[string]string{"n/a": "v3"},
		},
		"modes": {
			map[string]Claim{"n/a": claim("manual", "", "1Gi", many)}, map[string]Volume{"v": volume("manual", "", "1Gi", once)}, map[string]string{},
		},
		"named by the claim": {
			map[string]Claim{"n/a": claim("manual", "", "1Gi", once), "n/b": claim("", "v", "9Gi", many)}, map[string]Volume{"v": volume("manual", "", "1Gi", once)},
			map[string]string{"n/b": "v"},
		},
		"named by the volume": {
			map[string]Claim{"n/a": claim("manual", "", "1Gi", once), "n/b": claim("manual", "", "1Gi", once)}, map[string]Volume{"v": volume("manual", "n/b", "1Gi", once)},
			map[string]string{"n/b": "v"},
		},
		"the volume is another's": {
			map[string]Claim{"n/a": claim("", "v", "1Gi", once)}, map[string]Volume{"v": volume("", "n/b", "1Gi", once)}, map[string]string{},
		},
		"one claim each": {
			map[string]Claim{"n/a": claim("x", "", "1Gi", once), "n/b": claim("x", "", "1Gi", once)}, map[string]Volume{"v": volume("x", "", "1Gi", once)},
			map[string]string{"n/a": "v"},
		},
	} {
		if got := Bind(test.claims, test.volumes); !maps.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

func TestEncode(t *testing.T) {
	t.Parallel()
	in := Claim{Modes: []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}, Size: resource.MustParse("1500Mi"), Class: "x"}
	out, err := Decode[Claim](Encode(in))
	if err != nil || out.Size.Cmp(in.Size) != 0 || !slices.Equal(out.Modes, in.Modes) || out.Class != in.Class || out.Exclusive() {
		t.Errorf("%+v %v, want %+v", out, err, in)
	}
}
