package agent

import (
	"bytes"
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

	"github.com/huskd/husk/internal/agent/podplan"
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

// allowed is the outcome of a pod of secretPod that may use its image: what it lacks is a config
// map, without which no runtime is called.
const allowed = "config map"

// outcome returns allowed, or why a pod doesn't get its image, or "" if it isn't known yet.
func outcome(p Pod) string {
	switch {
	case p.Status.Reason != "CreateContainerConfigError":
		return strings.TrimPrefix(p.Status.Reason, "ContainerCreating")
	case strings.Contains(p.Status.Message, allowed):
		return allowed
	}
	return p.Status.Message
}

// outcomeOf applies a pod and returns its outcome.
func (h *harness) outcomeOf(pod *corev1.Pod, objects manifest.Objects) string {
	h.t.Helper()
	if _, _, err := h.Apply(h.ctx(), pod, objects, "run"); err != nil {
		h.t.Fatal(err)
	}
	p := h.waitFor(string(pod.UID), "started or refused", func(p Pod) bool { return outcome(p) != "" })
	if err := h.Remove(h.ctx(), string(pod.UID)); err != nil {
		h.t.Fatal(err)
	}
	return outcome(p)
}

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
			if got := h.outcomeOf(pod, objects); got != allowed {
				t.Errorf("the pod ends with %s", got)
			}
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

// TestPrivateImage gives a pod an image that its login may pull. Pods without that login can't use
// it by any name, and those with it can without the registry, also after a restart.
func TestPrivateImage(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	img, err := testimage.New(platforms.DefaultSpec(), ocispec.ImageConfig{Cmd: []string{"/bin/true"}})
	if err != nil {
		t.Fatal(err)
	}
	host, server := privateRegistry(t, http.StatusUnauthorized, "right", "second", "third")
	push := testimage.Registry{URL: server.URL, Client: &http.Client{Transport: as("right")}}
	for _, tag := range []string{"1", "2"} {
		if err := push.Push(t.Context(), "team/app", tag, img); err != nil {
			t.Fatal(err)
		}
	}
	const ifNotPresent, never = corev1.PullIfNotPresent, corev1.PullNever
	tag, digest := host+"/team/app:1", host+"/team/app@"+img.Descriptor.Digest.String()
	owner, objects := secretPod(t, "owner", tag, ifNotPresent, "right at "+host)
	if got := h.outcomeOf(owner, objects); got != allowed {
		t.Fatalf("the pod with the login ends with %s", got)
	}
	attempt := 0
	try := func(what, image string, policy corev1.PullPolicy, want string, logins ...string) {
		t.Helper()
		attempt++
		if got := h.outcomeOf(secretPod(t, fmt.Sprint("p", attempt), image, policy, logins...)); want == allowed != (got == allowed) || !strings.HasPrefix(got, want) {
			t.Errorf("%s: the pod ends with %q, want %q", what, got, want)
		}
	}
	const failed, refused = "ErrImagePull", "ErrImageNeverPull"
	attack := func(when string) {
		t.Helper()
		for name, image := range map[string]string{"a tag": tag, "a digest": digest, "the ID": img.ID(), "a part of the ID": img.ID()[7:19], "tag and digest": tag + "@" + img.Descriptor.Digest.String()} {
			try(when+"no login, "+name, image, ifNotPresent, failed)
			try(when+"no login, Never, "+name, image, never, refused)
			try(when+"a wrong login, "+name, image, ifNotPresent, failed, "wrong at "+host)
			try(when+"a wrong login, Never, "+name, image, never, refused, "wrong at "+host)
			try(when+"the login elsewhere, "+name, image, never, refused, "right at "+host+"/other", "right at other.test")
			try(when+"the login, "+name, image, never, allowed, "wrong at "+host, "right at "+host)
		}
	}
	attack("")

	ground, err := testimage.New(platforms.DefaultSpec(), ocispec.ImageConfig{Cmd: []string{"/bin/other"}})
	if err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	if err := testimage.WriteArchive(&archive, testimage.Named{Image: ground, Names: []string{"localhost/ground:1"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.images.Load(t.Context(), &archive, nil); err != nil {
		t.Fatal(err)
	}
	for _, policy := range []corev1.PullPolicy{never, ifNotPresent} {
		for login, want := range map[string]bool{"wrong at " + host: false, "right at " + host: true} {
			pod, objects := secretPod(t, "volume", "localhost/ground:1", never, login)
			pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: tag, PullPolicy: policy}}}}
			pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
			if got := h.outcomeOf(pod, objects); (got == allowed) != want {
				t.Errorf("a volume with policy %s, %s: the pod ends with %q", policy, login, got)
			}
		}
	}

	// The login of a cluster's Secret changes. A Secret of that name is another one.
	for _, c := range []struct {
		uid, user string
		policy    corev1.PullPolicy
		want      bool
	}{{"u1", "second", ifNotPresent, true}, {"u1", "wrong", never, true}, {"u2", "wrong", never, false}, {"", "wrong", never, false}} {
		pod, objects := secretPod(t, "cluster", tag, c.policy, c.user+" at "+host)
		if c.uid != "" {
			objects[manifest.ObjectKey(manifest.KindSecretUID, pod.Namespace, pod.Spec.ImagePullSecrets[0].Name)] = manifest.Object{manifest.UIDKey: []byte(c.uid)}
		}
		if got := h.outcomeOf(pod, objects); (got == allowed) != c.want {
			t.Errorf("a Secret of UID %q with the login %s: the pod ends with %q", c.uid, c.user, got)
		}
	}
	try("another login of the registry that has not pulled it", tag, never, refused, "third at "+host)
	try("another login of the registry", tag, ifNotPresent, allowed, "third at "+host)
	try("another login of the registry that has pulled it", tag, never, allowed, "third at "+host)
	h.restart()
	server.Close()
	attack("after a restart, without the registry: ")
	if _, _, _, err := h.images.Tag(t.Context(), tag, "localhost/given:1"); err != nil {
		t.Fatal(err)
	}
	try("a name that the administrator gave", "localhost/given:1", never, allowed)
	try("the former name", tag, never, refused)
}

// A container whose image has a malformed name waits with the kubelet's reason and events, and
// nothing is pulled, whatever the policy is.
func TestMalformedImageName(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	for i, policy := range []corev1.PullPolicy{corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever} {
		p := parse(t, fmt.Sprintf("p%d", i), "")
		p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = "UPPER/:", policy
		h.apply(p)
		got := h.waitFor(string(p.UID), "refused", func(p Pod) bool { return p.Status.Reason == "InvalidImageName" && p.Status.SandboxReady })
		if c := got.Status.Containers[0]; c.State != podplan.Waiting || !strings.Contains(c.Message, `image name "UPPER/:" is malformed: `) || !got.Status.Stuck {
			t.Errorf("with policy %s: %+v", policy, got.Status)
		}
		var reasons []string
		events, _, _ := h.Events.After(0)
		for _, e := range events {
			if e.UID == string(p.UID) && e.Container != "" {
				reasons = append(reasons, e.Reason)
			}
		}
		if got := strings.Join(reasons, " "); got != "InspectFailed Failed" {
			t.Errorf("with policy %s, the events are %s", policy, got)
		}
	}
}
