package criconfig

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/manifest"
)

func TestLoginsFor(t *testing.T) {
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
		{".dockerconfigjson": []byte(`{"auths": {"registry.example.com/team": {"username": "team", "password": "q"}, "registry.example.com": {"username": "team", "password": "p"}}}`)},
	} {
		name := fmt.Sprint("s", i)
		objects[manifest.ObjectKey(manifest.KindSecret, "default", name)] = secret
		pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: name})
	}
	pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: "missing"})
	type login struct{ username, password string }
	for image, want := range map[string][]login{
		"docker.io/library/nginx:1":           {{"hub", "secret:x"}},
		"registry.example.com/team/app:1":     {{"team", "p"}, {"team", "q"}, {"any", "p"}},
		"registry.example.com/teams/app:1":    {{"team", "p"}, {"any", "p"}},
		"registry.example.com/other@sha256:x": {{"team", "p"}, {"any", "p"}},
		"www.example.com/other":               {{"any", "p"}},
		"a.b.example.com/app":                 nil,
		"127.0.0.1:5000/app":                  {{"local", ""}},
		"127.0.0.1:5001/app":                  nil,
		"old.example.org/app":                 {{"old", "p"}},
		"quay.io/app":                         nil,
	} {
		var got []login
		for _, l := range LoginsFor(pod, image, objects) {
			got = append(got, login{l.Username, l.Password})
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %+v, want %+v", image, got, want)
		}
	}
}
