package criconfig

import (
	"encoding/base64"
	"encoding/json"
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/manifest"
)

// Login is how a registry is to know who asks it for an image. The zero value is
// nobody.
type Login struct{ Username, Password string }

// The hosts of the registry that has images without one, as docker login writes
// them.
const (
	defaultRegistry = "docker.io"
	dockerIndex     = "index.docker.io"
)

// LoginFor is that of the pod's imagePullSecrets which is for an image: the one
// whose host and path are the longest that the image's name begins with. One
// that can't be read is none.
func LoginFor(pod *corev1.Pod, image string, objects manifest.Objects) Login {
	var found Login
	longest := -1
	for _, ref := range pod.Spec.ImagePullSecrets {
		secret := objects[manifest.ObjectKey(manifest.KindSecret, pod.Namespace, ref.Name)]
		for at, login := range logins(secret) {
			if covers(at, image) && len(at) > longest {
				found, longest = login, len(at)
			}
		}
	}
	return found
}

// logins reads a secret of one of the types kubernetes.io/dockerconfigjson and
// kubernetes.io/dockercfg: logins by host and path.
func logins(secret manifest.Object) map[string]Login {
	type entry struct{ Username, Password, Auth string }
	var file struct{ Auths map[string]entry }
	if content, ok := secret[corev1.DockerConfigJsonKey]; ok {
		_ = json.Unmarshal(content, &file)
	} else {
		_ = json.Unmarshal(secret[corev1.DockerConfigKey], &file.Auths)
	}
	out := map[string]Login{}
	for at, e := range file.Auths {
		login := Login{e.Username, e.Password}
		if raw, err := base64.StdEncoding.DecodeString(e.Auth); err == nil && len(raw) > 0 {
			login.Username, login.Password, _ = strings.Cut(string(raw), ":")
		}
		for _, scheme := range []string{"https://", "http://"} {
			at = strings.TrimPrefix(at, scheme)
		}
		at = strings.TrimSuffix(at, "/")
		if host, _, _ := strings.Cut(at, "/"); host == dockerIndex { // /v1 and /v2 are no part of a name
			at = defaultRegistry
		}
		out[at] = login
	}
	return out
}

// covers says whether an image is below a host and path. In each part of the
// host * stands for anything.
func covers(at, image string) bool {
	host, below, _ := strings.Cut(at, "/")
	imageHost, name, _ := strings.Cut(image, "/")
	wants, has := strings.Split(host, "."), strings.Split(imageHost, ".")
	if len(wants) != len(has) {
		return false
	}
	for i := range wants {
		if ok, err := path.Match(wants[i], has[i]); err != nil || !ok {
			return false
		}
	}
	return below == "" || name == below || strings.HasPrefix(name, below+"/") || strings.HasPrefix(name, below+":") || strings.HasPrefix(name, below+"@")
}
