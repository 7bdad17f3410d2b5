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

// A token is asked for anew when four fifths of its time are over, or a day, as the kubelet does;
// one that couldn't be had a while later.
const (
	maxTokenAge = 24 * time.Hour
	tokenRetry  = 5 * time.Second
)

// tokens of service accounts, for the pods that have them in volumes.
type tokens struct {
	*cluster.Client
	wake func()

	mu    sync.Mutex
	known map[string]*token // by the key of the object that stands for it
}

type token struct {
	spec       tokenSpec
	value      []byte // empty before there is one
	serial     int
	requesting bool
	next       time.Time // when to ask again
}

func (t tokenSpec) path() string {
	return "/api/v1/namespaces/" + t.namespace + "/serviceaccounts/" + t.account + "/token"
}

// ensure has a token be there and stay valid, and says whether it is there.
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
	asked := time.Now()
	r := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: &k.spec.seconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: k.spec.pod.Name, UID: k.spec.pod.UID},
	}}
	if k.spec.audience != "" {
		r.Spec.Audiences = []string{k.spec.audience}
	}
	err := t.Create(ctx, k.spec.path(), r)
	if err == nil && r.Status.Token == "" {
		err = errors.New("its answer has no token")
	}
	t.LogOnce(k.spec.path()+" of pod "+k.spec.pod.Namespace+"/"+k.spec.pod.Name, err)
	t.mu.Lock()
	defer t.mu.Unlock()
	defer t.wake()
	k.requesting = false
	if err != nil {
		k.next = time.Now().Add(tokenRetry)
		return
	}
	// The server's clock says when it expires; how long it lasts is by ours.
	lasts := time.Duration(k.spec.seconds) * time.Second
	if s := r.Spec.ExpirationSeconds; s != nil {
		lasts = time.Duration(*s) * time.Second
	}
	k.value, k.next = []byte(r.Status.Token), asked.Add(min(max(lasts*4/5, tokenRetry), maxTokenAge))
	k.serial++
}

// nextRequest is when the next token is to be asked for; zero is never.
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

// collect gathers the tokens that are needed, as objects, and drops the others.
func (t *tokens) collect(needed map[string]bool, objects manifest.Objects, versions map[string]string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, k := range t.known {
		switch {
		case !needed[key]:
			delete(t.known, key)
			t.Forget(k.spec.path() + " of pod " + k.spec.pod.Namespace + "/" + k.spec.pod.Name)
		case len(k.value) > 0:
			objects[key], versions[key] = manifest.Object{tokenKey: k.value}, strconv.Itoa(k.serial)
		}
	}
}
