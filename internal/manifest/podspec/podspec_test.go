package podspec

import (
	"iter"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func spec() *corev1.PodSpec {
	always := corev1.ContainerRestartPolicyAlways
	port := func(name string, number int32, protocol corev1.Protocol) []corev1.ContainerPort {
		return []corev1.ContainerPort{{Name: name, ContainerPort: number, Protocol: protocol}}
	}
	return &corev1.PodSpec{
		InitContainers: []corev1.Container{
			{Name: "setup", Ports: port("web", 1, "")},
			{Name: "sidecar", RestartPolicy: &always, Ports: port("metrics", 2, corev1.ProtocolTCP)},
		},
		Containers: []corev1.Container{{Name: "a", Ports: port("web", 3, corev1.ProtocolUDP)}, {Name: "b", Ports: port("web", 4, "")}},
	}
}

func TestContainers(t *testing.T) {
	names := func(containers iter.Seq[*corev1.Container], most int) (out []string) {
		for c := range containers {
			if out = append(out, c.Name); len(out) == most {
				break
			}
		}
		return out
	}
	for _, c := range []struct {
		containers iter.Seq[*corev1.Container]
		want       []string
	}{{Containers(spec()), []string{"setup", "sidecar", "a", "b"}}, {Lasting(spec()), []string{"a", "b", "sidecar"}}} {
		for most := 1; most <= len(c.want); most++ {
			if got := names(c.containers, most); !slices.Equal(got, c.want[:most]) {
				t.Errorf("got %v, want %v", got, c.want[:most])
			}
		}
	}
}

func TestPort(t *testing.T) {
	for _, c := range []struct {
		name     string
		protocol corev1.Protocol
		want     int32
	}{{"web", "", 4}, {"web", corev1.ProtocolTCP, 4}, {"web", corev1.ProtocolUDP, 3}, {"metrics", "", 2}, {"web", corev1.ProtocolSCTP, 0}, {"absent", "", 0}} {
		if got := Port(spec(), c.name, c.protocol); got != c.want {
			t.Errorf("port %s of %q is %d, want %d", c.name, c.protocol, got, c.want)
		}
	}
}

func TestHasSidecar(t *testing.T) {
	for name, want := range map[string]bool{"setup": false, "sidecar": true, "a": false, "absent": false} {
		if got := HasSidecar(spec(), name); got != want {
			t.Errorf("%s: %t, want %t", name, got, want)
		}
	}
}
