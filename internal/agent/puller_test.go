package agent

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/containerd/platforms"
	"github.com/google/go-containerregistry/pkg/registry"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/test/testimage"
)

// privateRegistry is an in-memory registry that accepts the logins of some users, whose password is
// their name, and answers others with a status.
func privateRegistry(t testing.TB, status int, users ...string) (host string, server *httptest.Server) {
	t.Helper()
	store := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, ok := r.BasicAuth()
		for _, u := range users {
			if ok && user == u && password == u {
				store.ServeHTTP(w, r)
				return
			}
		}
		if !ok || status == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://"), server
}

// hasImage is the reason of a pod of secretPod that may use its image: what it lacks is a config
// map, without which no runtime is called.
const hasImage = "CreateContainerConfigError"

// secretPod returns a pod with an image and pull policy, and imagePullSecrets whose
// .dockerconfigjson have these logins, each USER at HOST/PATH.
func secretPod(t testing.TB, name, image string, policy corev1.PullPolicy, logins ...string) (*corev1.Pod, manifest.Objects) {
	t.Helper()
	pod := parse(t, name, "")
	pod.Spec.Containers[0].Image, pod.Spec.Containers[0].ImagePullPolicy = image, policy
	pod.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "missing"}}}}
	objects := manifest.Objects{}
	for i, login := range logins {
		user, at, _ := strings.Cut(login, " at ")
		secret := fmt.Sprintf("%s-%d", name, i)
		pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: secret})
		objects[manifest.ObjectKey(manifest.KindSecret, pod.Namespace, secret)] = manifest.Object{
			corev1.DockerConfigJsonKey: fmt.Appendf(nil, `{"auths": {%q: {"username": %q, "password": %q}}}`, at, user, user),
		}
	}
	return pod, objects
}

// TestEveryLoginIsTried pulls from registries that accept one of a pod's logins, however they
// refuse the others.
func TestEveryLoginIsTried(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	img, err := testimage.New(platforms.DefaultSpec(), ocispec.ImageConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusBadRequest, http.StatusInternalServerError} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			host, server := privateRegistry(t, status, "right")
			push := testimage.Registry{URL: server.URL, Client: &http.Client{Transport: as("right")}}
			if err := push.Push(t.Context(), "team/app", "1", img); err != nil {
				t.Fatal(err)
			}
			name := host + "/team/app:1"
			pod, objects := secretPod(t, fmt.Sprint("several-", status), name, corev1.PullIfNotPresent, "wrong at "+host, "other at "+host+"/team", "right at "+host)
			if _, _, err := h.Apply(h.ctx(), pod, objects, "run"); err != nil {
				t.Fatal(err)
			}
			h.waitFor(string(pod.UID), "allowed to use its image", func(p Pod) bool {
				if strings.HasPrefix(p.Status.Reason, "ErrImagePull") {
					t.Fatalf("not pulled: %s", p.Status.Message)
				}
				return p.Status.Reason == hasImage
			})
		})
	}
}

// as is a transport that logs in as a user of a privateRegistry.
type as string

func (user as) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.SetBasicAuth(string(user), string(user))
	return http.DefaultTransport.RoundTrip(r)
}
