package criconfig

import (
	"errors"
	"testing"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/manifest/remedy"
)

// TestMissingObjects: errors count envFrom as the user has written it, also in a pod of an API
// server, where the variables of services come first. They say what is missing and leave the remedy
// to whoever knows where the pod comes from.
func TestMissingObjects(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ container, want string }{
		{"envFrom: [{secretRef: {name: none}}]", `container "a": envFrom[0]: secret shop/none not found`},
		{"envFrom: [{configMapRef: {name: none, optional: true}}, {configMapRef: {name: none}}]", `container "a": envFrom[1]: config map shop/none not found`},
		{"env: [{name: A, valueFrom: {secretKeyRef: {name: none, key: k}}}]", `container "a": env[0].valueFrom: secret shop/none not found`},
	} {
		for _, ofServer := range []bool{false, true} {
			p := pod(t, "  containers: [{name: a, image: 'a:1', "+c.container+"}]\n")
			if ofServer {
				p.Spec.Containers[0].EnvFrom = append([]corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{
					LocalObjectReference: corev1.LocalObjectReference{Name: ServicesName(p)}, Optional: new(true),
				}}}, p.Spec.Containers[0].EnvFrom...)
			}
			_, err := ContainerConfig(p, &p.Spec.Containers[0], Run{}, node())
			missing, is := errors.AsType[*NotFoundError](err)
			if !is || missing.Name != "none" || !errdefs.IsInvalidArgument(err) || err.Error() != c.want {
				t.Errorf("of an API server: %t: %v, want %s", ofServer, err, c.want)
			}
		}
	}
}

// TestFractionOfAByte: the API server accepts fractions of a byte, which a kubelet rounds up. In a
// manifest they are refused, as whoever writes 64m means 64M.
func TestFractionOfAByte(t *testing.T) {
	t.Parallel()
	text := []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n" +
		"  - {name: a, image: 'a:1', resources: {requests: {memory: 10m}, limits: {memory: 100000000500m}}}\n")
	if _, err := manifest.Parse(text, manifest.Origin{Node: "n"}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("in a manifest: %v", err)
	}
	f, err := manifest.Parse(text, manifest.Origin{Node: "n", From: remedy.Cluster})
	if err != nil {
		t.Fatal(err)
	}
	if got := container(t, &f.Pods[0], "a", Run{}).GetLinux().GetResources().GetMemoryLimitInBytes(); got != 100000001 {
		t.Errorf("the limit is %d bytes", got)
	}
}
