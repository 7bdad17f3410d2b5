package criconfig

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/manifest"
)

func TestLoginFor(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{}
	pod.Namespace = "default"
	objects := manifest.Objects{}
	for i, secret := range []manifest.Object{
		{".dockerconfigjson": []byte(`{"auths": {"https://index.docker.io/v1/": {"auth": "aHViOnNlY3JldDp4"}, "*.example.com": {"username": "any", "password": "p"}}}`)},
		{".dockerconfigjson": []byte(`{"auths": {"registry.example.com/team": {"username": "team", "password": "p"}, "127.0.0.1:5000": {"username": "local"}}}`)},
		{".dockercfg": []byte(`{"old.example.org": {"username": "old", "password": "p"}}`)},
		{".dockerconfigjson": []byte(`not JSON`)},
		{"key": []byte("x")},
	} {
		name := fmt.Sprint("s", i)
		objects[manifest.ObjectKey(manifest.KindSecret, "default", name)] = secret
		pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: name})
	}
	pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: "missing"})
	for image, want := range map[string]Login{
		"docker.io/library/nginx:1":           {"hub", "secret:x"},
		"registry.example.com/team/app:1":     {"team", "p"},
		"registry.example.com/teams/app:1":    {"any", "p"},
		"registry.example.com/other@sha256:x": {"any", "p"},
		"a.b.example.com/app":                 {},
		"127.0.0.1:5000/app":                  {"local", ""},
		"127.0.0.1:5001/app":                  {},
		"old.example.org/app":                 {"old", "p"},
		"quay.io/app":                         {},
	} {
		if got := LoginFor(pod, image, objects); got != want {
			t.Errorf("%s: %+v, want %+v", image, got, want)
		}
	}
}
