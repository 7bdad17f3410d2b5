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

// How long the API server's answers are cached, as the kubelet does.
const (
	tokenAge   = 2 * time.Minute
	allowedAge = 5 * time.Minute
	deniedAge  = 30 * time.Second
	// maxCached bounds a cache.
	maxCached = 1000
)

const (
	tokenReviews  = "/apis/authentication.k8s.io/v1/tokenreviews"
	accessReviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
)

// auth authenticates and authorizes requests, by client certificates and the API server.
type auth struct {
	client *cluster.Client
	node   string
	roots  *x509.CertPool // CAs of client certificates; nil for none

	users   cache[*authenticationv1.UserInfo] // by the hash of their token
	allowed cache[bool]                       // by the hash of user, verb and subresource
}

// trust sets the CAs of client certificates, in PEM.
func (a *auth) trust(pem []byte) error {
	if len(pem) == 0 {
		return nil
	}
	a.roots = x509.NewCertPool()
	if !a.roots.AppendCertsFromPEM(pem) {
		return errors.New("--node-client-ca-file: the file holds no certificate")
	}
	return nil
}

// protect passes a request on to next if its user may use one of the subresources of the node, and
// refuses it otherwise. The verb is that of the request's method if it is empty.
func (a *auth) protect(subresources []string, verb string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, err := a.authenticate(r)
		switch {
		case err != nil:
			a.client.LogOnce("token review", err)
			dismiss(w)
			http.Error(w, "the API server can't be asked for authentication now", http.StatusInternalServerError)
			return
		case user == nil:
			dismiss(w)
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		verb := verb
		if verb == "" {
			verb = verbOf(r.Method)
		}
		allowed, err := a.authorize(r.Context(), user, verb, subresources)
		switch {
		case err != nil:
			a.client.LogOnce("access review", err)
			dismiss(w)
			http.Error(w, "the API server can't be asked for authorization now", http.StatusInternalServerError)
		case !allowed:
			dismiss(w)
			http.Error(w, fmt.Sprintf("Forbidden (user=%s, verb=%s, resource=nodes, subresource(s)=%v)", user.Username, verb, subresources), http.StatusForbidden)
		default:
			trust(r.Context())
			next.ServeHTTP(w, r)
		}
	})
}

// dismissal is how long the body of a request that is refused may take. The server reads it, so
// that the client gets the answer.
const dismissal = time.Second

// dismiss makes the server close the connection after the answer, so that a client without access
// holds none.
func dismiss(w http.ResponseWriter) {
	w.Header().Set("Connection", "close")
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(dismissal)) // tests' writers have none
}

// authenticate returns the user of the request's certificate or token, or nil if there is none.
func (a *auth) authenticate(r *http.Request) (*authenticationv1.UserInfo, error) {
	if user := a.userOfCertificate(r); user != nil {
		return user, nil
	}
	kind, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	token = strings.TrimSpace(token)
	if !strings.EqualFold(kind, "Bearer") || token == "" {
		return nil, nil
	}
	key := hash(token)
	if user, ok := a.users.get(key); ok {
		return user, nil
	}
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	if err := a.client.Create(r.Context(), tokenReviews, review); err != nil {
		return nil, err
	}
	if !review.Status.Authenticated || review.Status.User.Username == "" {
		return nil, nil
	}
	a.users.put(key, &review.Status.User, tokenAge)
	return &review.Status.User, nil
}

// hash returns a key for a cache. Tokens aren't kept in memory longer than their request.
func hash(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return string(h.Sum(nil))
}

// userOfCertificate returns the user of a valid client certificate, or nil.
func (a *auth) userOfCertificate(r *http.Request) *authenticationv1.UserInfo {
	if a.roots == nil || r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil
	}
	intermediates := x509.NewCertPool()
	for _, c := range r.TLS.PeerCertificates[1:] {
		intermediates.AddCert(c)
	}
	cert := r.TLS.PeerCertificates[0]
	_, err := cert.Verify(x509.VerifyOptions{Roots: a.roots, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil || cert.Subject.CommonName == "" {
		return nil
	}
	return &authenticationv1.UserInfo{Username: cert.Subject.CommonName, Groups: cert.Subject.Organization}
}

// verbOf returns the verb by which a request is authorized.
func verbOf(method string) string {
	switch method {
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		return "delete"
	}
	return "get"
}

// authorize asks whether user may use one of these subresources of the node.
func (a *auth) authorize(ctx context.Context, user *authenticationv1.UserInfo, verb string, subresources []string) (bool, error) {
	for _, sub := range subresources {
		if allowed, err := a.allows(ctx, user, verb, sub); err != nil || allowed {
			return allowed, err
		}
	}
	return false, nil
}

func (a *auth) allows(ctx context.Context, user *authenticationv1.UserInfo, verb, subresource string) (bool, error) {
	key := hash(append([]string{user.Username, verb, subresource, fmt.Sprint(user.Extra)}, user.Groups...)...)
	if allowed, ok := a.allowed.get(key); ok {
		return allowed, nil
	}
	extra := map[string]authorizationv1.ExtraValue{}
	for name, values := range user.Extra {
		extra[name] = authorizationv1.ExtraValue(values)
	}
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Version: "v1", Resource: "nodes", Subresource: subresource, Name: a.node},
	}}
	if err := a.client.Create(ctx, accessReviews, review); err != nil {
		return false, err
	}
	allowed, age := review.Status.Allowed && !review.Status.Denied, deniedAge
	if allowed {
		age = allowedAge
	}
	a.allowed.put(key, allowed, age)
	return allowed, nil
}

// cache holds answers of the API server for a limited time. The zero value is empty.
type cache[T any] struct {
	mu      sync.Mutex
	entries map[string]entry[T]
}

type entry[T any] struct {
	value   T
	expires time.Time
}

func (c *cache[T]) get(key string) (value T, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[key]
	return e.value, ok && time.Now().Before(e.expires)
}

func (c *cache[T]) put(key string, value T, age time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil || len(c.entries) >= maxCached {
		c.entries = map[string]entry[T]{}
	}
	c.entries[key] = entry[T]{value, time.Now().Add(age)}
}
