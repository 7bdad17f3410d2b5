package apiserver

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/huskd/husk/internal/cluster"
	"github.com/huskd/husk/internal/manifest"
)

// Like kubelet, a token is renewed after four fifths of its lifetime, and at the latest after
// maxTokenAge.
const (
	minTokenAge = time.Second
	maxTokenAge = 24 * time.Hour
)

// A failed request is repeated after firstTokenRetry, and then after twice the last wait, up to
// lastTokenRetry. The first request for a new pod often fails: the server's Node authorizer learns
// of the pod about when the node does. The error is therefore logged only if a failure is the
// reportedFailure-th in a row.
const (
	firstTokenRetry = 50 * time.Millisecond
	lastTokenRetry  = 5 * time.Second
	reportedFailure = 4
)

// tokens requests and renews the service account tokens of pods.
type tokens struct {
	*cluster.Client
	wake func()

	mu    sync.Mutex
	known map[string]*token // by ObjectKey of the secret that replaces it
}

type token struct {
	spec       tokenSpec
	value      []byte // empty until the first request succeeds
	serial     int
	requesting bool
	failures   int       // in a row
	next       time.Time // when to request it again
}

func (t tokenSpec) path() string {
	return "/api/v1/namespaces/" + t.namespace + "/serviceaccounts/" + t.account + "/token"
}

// retryWait returns how long to wait after another failure.
func retryWait(failures int) time.Duration {
	return min(firstTokenRetry<<min(failures, 10), lastTokenRetry)
}

// subject names the token in the log.
func (t tokenSpec) subject() string {
	return t.path() + " of pod " + t.pod.Namespace + "/" + t.pod.Name
}

// ensure requests a token unless it is still valid, and reports whether there is one.
func (t *tokens) ensure(ctx context.Context, key string, spec tokenSpec, group *sync.WaitGroup) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.known[key]
	if k == nil {
		k = &token{spec: spec}
		t.known[key] = k
	}
	if !k.requesting && !time.Now().Before(k.next) {
		k.requesting = true
		group.Go(func() { t.request(ctx, k) })
	}
	return len(k.value) > 0
}

func (t *tokens) request(ctx context.Context, k *token) {
	start := time.Now()
	r := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: &k.spec.seconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: k.spec.pod.Name, UID: k.spec.pod.UID},
	}}
	if k.spec.audience != "" {
		r.Spec.Audiences = []string{k.spec.audience}
	}
	err := t.Create(ctx, k.spec.path(), r)
	if err == nil && r.Status.Token == "" {
		err = errors.New("the answer has no token")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	defer t.wake()
	k.requesting = false
	if err != nil {
		k.next = time.Now().Add(retryWait(k.failures))
		if k.failures++; k.failures >= reportedFailure {
			t.LogOnce(k.spec.subject(), err)
		}
		return
	}
	t.LogOnce(k.spec.subject(), nil)
	k.failures = 0
	// The expiry time is by the server's clock. The lifetime doesn't depend on it.
	lasts := time.Duration(k.spec.seconds) * time.Second
	if s := r.Spec.ExpirationSeconds; s != nil {
		lasts = time.Duration(*s) * time.Second
	}
	k.value, k.next = []byte(r.Status.Token), start.Add(min(max(lasts*4/5, minTokenAge), maxTokenAge))
	k.serial++
}

// nextRequest returns when the next token must be requested; zero means never.
func (t *tokens) nextRequest() (next time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range t.known {
		if !k.requesting && (next.IsZero() || k.next.Before(next)) {
			next = k.next
		}
	}
	return next
}

// collect adds the needed tokens to objects, as secrets, and drops the others.
func (t *tokens) collect(needed map[string]bool, objects manifest.Objects, versions map[string]string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, k := range t.known {
		switch {
		case !needed[key]:
			delete(t.known, key)
			t.Forget(k.spec.subject())
		case len(k.value) > 0:
			objects[key], versions[key] = manifest.Object{tokenKey: k.value}, strconv.Itoa(k.serial)
		}
	}
}
