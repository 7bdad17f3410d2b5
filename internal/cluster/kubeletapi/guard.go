package kubeletapi

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/huskd/husk/internal/cluster"
)

// How long an answer of the API server on who somebody is and what they may
// holds; the times are the kubelet's.
const (
	tokenAge   = 2 * time.Minute
	allowedAge = 5 * time.Minute
	deniedAge  = 30 * time.Second
	// mostAnswers are kept.
	mostAnswers = 1000
)

const (
	tokenReviews  = "/apis/authentication.k8s.io/v1/tokenreviews"
	accessReviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
)

// guard lets in whom the API server says may come in.
type guard struct {
	client *cluster.Client
	node   string
	roots  *x509.CertPool // of clients' certificates; nil for none

	users   answers[*authenticationv1.UserInfo]
	allowed answers[bool]
}

func newGuard(client *cluster.Client, node string) *guard { return &guard{client: client, node: node} }

// trust takes the certificates of those who vouch for clients.
func (g *guard) trust(pem []byte) error {
	if len(pem) == 0 {
		return nil
	}
	g.roots = x509.NewCertPool()
	if !g.roots.AppendCertsFromPEM(pem) {
		return errors.New("--node-client-ca-file: there is no certificate in it")
	}
	return nil
}

// protect asks everybody who comes to next.
func (g *guard) protect(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, err := g.who(r)
		switch {
		case err != nil:
			g.client.Complain("who somebody is", err)
			http.Error(w, "who you are can't be found out now", http.StatusInternalServerError)
			return
		case user == nil:
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		verb, sub := attributes(r)
		may, err := g.may(r.Context(), user, verb, sub)
		switch {
		case err != nil:
			g.client.Complain("what somebody may", err)
			http.Error(w, "whether you may can't be found out now", http.StatusInternalServerError)
		case !may:
			http.Error(w, fmt.Sprintf("Forbidden (user=%s, verb=%s, resource=nodes, subresource=%s)", user.Username, verb, sub), http.StatusForbidden)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// who says who sent a request: whom the certificate names, or the token. Nobody
// is nil.
func (g *guard) who(r *http.Request) (*authenticationv1.UserInfo, error) {
	if user := g.certified(r); user != nil {
		return user, nil
	}
	kind, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	token = strings.TrimSpace(token)
	if !strings.EqualFold(kind, "Bearer") || token == "" {
		return nil, nil
	}
	key := string(sum(token))
	if user, ok := g.users.get(key); ok {
		return user, nil
	}
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	if err := g.client.Create(r.Context(), tokenReviews, review); err != nil {
		return nil, err
	}
	if !review.Status.Authenticated || review.Status.User.Username == "" {
		return nil, nil
	}
	g.users.put(key, &review.Status.User, tokenAge)
	return &review.Status.User, nil
}

func sum(parts ...string) []byte {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return h.Sum(nil)
}

// certified is whom a client's certificate names, if it is good.
func (g *guard) certified(r *http.Request) *authenticationv1.UserInfo {
	if g.roots == nil || r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil
	}
	between := x509.NewCertPool()
	for _, c := range r.TLS.PeerCertificates[1:] {
		between.AddCert(c)
	}
	cert := r.TLS.PeerCertificates[0]
	_, err := cert.Verify(x509.VerifyOptions{Roots: g.roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil || cert.Subject.CommonName == "" {
		return nil
	}
	return &authenticationv1.UserInfo{Username: cert.Subject.CommonName, Groups: cert.Subject.Organization}
}

// attributes are what a request is in the words of authorization. A session runs
// programs, whatever the method of the request that begins it.
func attributes(r *http.Request) (verb, subresource string) {
	first, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch first {
	case "exec", "attach", "portForward":
		return "create", "proxy"
	}
	verb = map[string]string{
		http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete",
	}[r.Method]
	if verb == "" {
		verb = "get"
	}
	switch first {
	case "pods", "healthz", "stats", "metrics":
		return verb, first
	}
	return verb, "proxy"
}

// may says whether a user may do that with the node. Whoever may all of proxy
// may its parts.
func (g *guard) may(ctx context.Context, user *authenticationv1.UserInfo, verb, subresource string) (bool, error) {
	key := string(sum(append([]string{user.Username, verb, subresource}, user.Groups...)...))
	if may, ok := g.allowed.get(key); ok {
		return may, nil
	}
	extra := map[string]authorizationv1.ExtraValue{}
	for name, values := range user.Extra {
		extra[name] = authorizationv1.ExtraValue(values)
	}
	may := false
	for _, sub := range []string{subresource, "proxy"} {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Version: "v1", Resource: "nodes", Subresource: sub, Name: g.node},
		}}
		if err := g.client.Create(ctx, accessReviews, review); err != nil {
			return false, err
		}
		if may = review.Status.Allowed && !review.Status.Denied; may || sub == subresource && sub == "proxy" {
			break
		}
	}
	age := deniedAge
	if may {
		age = allowedAge
	}
	g.allowed.put(key, may, age)
	return may, nil
}

// answers of the API server that hold for a while. The zero value has none.
type answers[T any] struct {
	mu   sync.Mutex
	held map[string]answer[T]
}

type answer[T any] struct {
	value T
	until time.Time
}

func (a *answers[T]) get(key string) (value T, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	held, ok := a.held[key]
	return held.value, ok && time.Now().Before(held.until)
}

func (a *answers[T]) put(key string, value T, age time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.held == nil || len(a.held) >= mostAnswers {
		a.held = map[string]answer[T]{}
	}
	a.held[key] = answer[T]{value, time.Now().Add(age)}
}
