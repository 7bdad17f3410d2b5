package criconfig

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/manifest"
)

// Login holds the credentials for a registry. The zero value is anonymous.
type Login struct {
	Username, Password string
	// Secret is the name of the pod's Secret that has it, if any, and UID what a cluster calls that.
	Secret, UID string
}

// The default registry, and the host under which docker login stores its credentials.
const (
	defaultRegistry = "docker.io"
	dockerIndex     = "index.docker.io"
)

// LoginsFor returns the logins in the pod's imagePullSecrets for an image, in the order in which
// the kubelet tries them: those for the longest host and path first, and of the same one in the
// order of the secrets. Secrets that can't be parsed are skipped.
func LoginsFor(pod *corev1.Pod, image string, objects manifest.Objects) []Login {
	type match struct {
		at    string
		login Login
	}
	var found []match
	for _, ref := range pod.Spec.ImagePullSecrets {
		secret := objects[manifest.ObjectKey(manifest.KindSecret, pod.Namespace, ref.Name)]
		uid := string(objects[manifest.ObjectKey(manifest.KindSecretUID, pod.Namespace, ref.Name)][manifest.UIDKey])
		for at, login := range logins(secret) {
			login.Secret, login.UID = ref.Name, uid
			if covers(at, image) && !slices.Contains(found, match{at, login}) {
				found = append(found, match{at, login})
			}
		}
	}
	slices.SortStableFunc(found, func(a, b match) int {
		return cmp.Or(cmp.Compare(len(b.at), len(a.at)), cmp.Compare(a.at, b.at))
	})
	var out []Login
	for _, m := range found {
		if !slices.ContainsFunc(out, func(l Login) bool { return l.Username == m.login.Username && l.Password == m.login.Password }) {
			out = append(out, m.login)
		}
	}
	return out
}

// logins parses a secret of type kubernetes.io/dockerconfigjson or kubernetes.io/dockercfg. It
// returns the logins by host and path.
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
		login := Login{Username: e.Username, Password: e.Password}
		if raw, err := base64.StdEncoding.DecodeString(e.Auth); err == nil && len(raw) > 0 {
			login.Username, login.Password, _ = strings.Cut(string(raw), ":")
		}
		for _, scheme := range []string{"https://", "http://"} {
			at = strings.TrimPrefix(at, scheme)
		}
		at = strings.TrimSuffix(at, "/")
		if host, _, _ := strings.Cut(at, "/"); host == dockerIndex { // its paths, /v1 and /v2, aren't part of image names
			at = defaultRegistry
		}
		out[at] = login
	}
	return out
}

// covers reports whether an image is below a host and path. Each label of the host may be a pattern
// such as *.
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
