package kubeletapi

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/huskd/husk/internal/cluster"
	"github.com/huskd/husk/internal/cluster/clustertest"
	"github.com/huskd/husk/internal/logs"
)

// authority answers reviews: the token good is alice's, and she may get pods.
func authority(t *testing.T) (*clustertest.Server, *guard) {
	t.Helper()
	s := clustertest.New(t)
	client, err := cluster.New(s.Kubeconfig, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	s.Misbehave(func(w http.ResponseWriter, r *http.Request) bool {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case tokenReviews:
			fmt.Fprintf(w, `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","status":{"authenticated":%v,"user":{"username":"alice","groups":["people"]}}}`, strings.Contains(string(body), `"token":"good"`))
		case accessReviews:
			var review authorizationv1.SubjectAccessReview
			_ = json.Unmarshal(body, &review)
			a := review.Spec.ResourceAttributes
			allowed := review.Spec.User == "alice" && a.Verb == "get" && a.Resource == "nodes" && a.Subresource == "pods" && a.Name == "here"
			fmt.Fprintf(w, `{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","status":{"allowed":%v}}`, allowed)
		}
		return true
	})
	return s, newGuard(client, "here")
}

func TestGuard(t *testing.T) {
	t.Parallel()
	s, g := authority(t)
	h := g.protect(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	ask := func(method, path, authorization string) int {
		r := httptest.NewRequest(method, path, nil)
		if authorization != "" {
			r.Header.Set("Authorization", authorization)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	for _, c := range []struct {
		method, path, authorization string
		want                        int
	}{
		{"GET", "/pods", "", 401},
		{"GET", "/pods", "Basic YWxpY2U6eA==", 401},
		{"GET", "/pods", "Bearer ", 401},
		{"GET", "/pods", "Bearer bad", 401},
		{"GET", "/pods", "Bearer good", 418},
		{"GET", "/containerLogs/a/b/c", "Bearer good", 403},
		{"GET", "/stats/summary", "Bearer good", 403},
		{"GET", "/metrics/resource", "Bearer good", 403},
		{"GET", "/exec/a/b/c", "Bearer good", 403},
		{"POST", "/pods", "Bearer good", 403},
	} {
		if got := ask(c.method, c.path, c.authorization); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
	before := s.Asked()
	if ask("GET", "/pods", "Bearer good") != 418 || s.Asked() != before {
		t.Error("the answer isn't remembered")
	}
	// A server that can't say lets nobody in, but those who were.
	s.Misbehave(func(w http.ResponseWriter, _ *http.Request) bool {
		clustertest.Refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError)
		return true
	})
	if got := ask("GET", "/pods", "Bearer other"); got != 500 {
		t.Errorf("without a review: %d", got)
	}
	if got := ask("GET", "/pods", "Bearer good"); got != 418 {
		t.Errorf("with one from before: %d", got)
	}
}

// TestCertificates: a certificate that signs for itself is nobody's.
func TestCertificates(t *testing.T) {
	t.Parallel()
	_, g := authority(t)
	cert, err := selfSigned("alice", nil)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodGet, "/pods", nil)
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}
	if user := g.certified(r); user != nil {
		t.Errorf("without authorities it is %v", user)
	}
	g.roots = x509.NewCertPool()
	if user := g.certified(r); user != nil {
		t.Errorf("with others it is %v", user)
	}
	g.roots.AddCert(leaf) // but it is for servers
	if user := g.certified(r); user != nil {
		t.Errorf("as a server it is %v", user)
	}
	if err := g.trust([]byte("rubbish")); err == nil {
		t.Error("rubbish is trusted")
	}
}

func TestAttributes(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"GET /healthz": "get healthz", "GET /pods": "get pods", "GET /containerLogs/a/b/c": "get proxy", "GET /exec/a/b/c": "create proxy",
		"POST /attach/a/b/c": "create proxy", "GET /portForward/a/b": "create proxy", "PUT /x": "update proxy", "GET /": "get proxy",
	} {
		method, at, _ := strings.Cut(path, " ")
		verb, sub := attributes(httptest.NewRequest(method, at, nil))
		if got := verb + " " + sub; got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}

func TestWantedLogs(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	for query, want := range map[string]want{
		"":                               {stdout: true, stderr: true, left: math.MaxInt64, options: logs.Options{Tail: -1}},
		"tailLines=0&follow=true":        {stdout: true, stderr: true, left: math.MaxInt64, options: logs.Options{Follow: true}},
		"limitBytes=5&stream=Stderr":     {stderr: true, left: 5, options: logs.Options{Tail: -1}},
		"sinceSeconds=10&timestamps=1":   {stdout: true, stderr: true, timestamps: true, left: math.MaxInt64, options: logs.Options{Tail: -1, Since: time.Unix(990, 0)}},
		"previous=true&follow=false":     {stdout: true, stderr: true, previous: true, left: math.MaxInt64, options: logs.Options{Tail: -1}},
		"sinceTime=1970-01-01T00:00:09Z": {stdout: true, stderr: true, left: math.MaxInt64, options: logs.Options{Tail: -1, Since: time.Unix(9, 0).UTC()}},
	} {
		q, _ := url.ParseQuery(query)
		got, err := wantOf(q, now)
		if err != nil || got != want {
			t.Errorf("%q: %+v %v, want %+v", query, got, err, want)
		}
	}
	for _, query := range []string{"tailLines=-1", "tailLines=x", "limitBytes=0", "sinceSeconds=0", "sinceTime=yesterday", "stream=stdin", "tailLines=99999999999999999999"} {
		q, _ := url.ParseQuery(query)
		if _, err := wantOf(q, now); err == nil {
			t.Errorf("%q is taken", query)
		}
	}
	w := want{stdout: true, left: 6}
	if text, over := w.text(logs.Line{Stderr: true, Text: []byte("no")}); text != nil || over {
		t.Errorf("stderr: %q", text)
	}
	if text, over := w.text(logs.Line{Text: []byte("abc")}); string(text) != "abc\n" || over {
		t.Errorf("%q %v", text, over)
	}
	if text, over := w.text(logs.Line{Text: []byte("def")}); string(text) != "de" || !over {
		t.Errorf("%q %v", text, over)
	}
}
