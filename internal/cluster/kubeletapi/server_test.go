package kubeletapi

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/cluster"
	"github.com/huskd/husk/internal/cluster/clustertest"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/logs"
)

// testAuth returns an auth whose API server knows tokens of the form may:VERB:SUBRESOURCE, which
// permit this and nothing else.
func testAuth(t *testing.T) (*clustertest.Server, *auth) {
	t.Helper()
	s := clustertest.New(t)
	client, err := cluster.New(s.Kubeconfig, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case tokenReviews:
			var review authenticationv1.TokenReview
			_ = json.NewDecoder(r.Body).Decode(&review)
			user, ok := strings.CutPrefix(review.Spec.Token, "may:")
			fmt.Fprintf(w, `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","status":{"authenticated":%v,"user":{"username":%q,"groups":["people"]}}}`, ok, user)
		case accessReviews:
			var review authorizationv1.SubjectAccessReview
			_ = json.NewDecoder(r.Body).Decode(&review)
			a := review.Spec.ResourceAttributes
			allowed := review.Spec.User == a.Verb+":"+a.Subresource && a.Resource == "nodes" && a.Name == "here"
			fmt.Fprintf(w, `{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","status":{"allowed":%v}}`, allowed)
		}
		return true
	})
	return s, &auth{client: client, node: "here"}
}

// ask sends a request with an Authorization header, unless that is empty, to a handler.
func ask(h http.Handler, method, path, authorization string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, nil)
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// TestAuthorization walks all routes: none is served without credentials, or to a user with every
// permission but the right one.
func TestAuthorization(t *testing.T) {
	t.Parallel()
	_, a := testAuth(t)
	s := &Server{auth: a, health: newHealth(nil, nil)}
	routes := s.routes()
	for i := range routes {
		routes[i].handler = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }
	}
	h := s.handler(routes)
	all := []string{"proxy", "pods", "healthz", "configz", "statusz", "stats", "metrics", "log", "checkpoint", "spec"}
	element := regexp.MustCompile(`{[a-z]+(\.\.\.)?}`)
	for _, route := range routes {
		access := strings.Fields(route.access)
		for path := range strings.FieldsSeq(route.paths) {
			path = element.ReplaceAllString(strings.ReplaceAll(path, "{$}", ""), "x")
			for _, method := range strings.Split(strings.ReplaceAll(route.methods, "GET", "GET HEAD"), " ") {
				if method == "" {
					method = http.MethodDelete
				}
				verb := route.verb
				if verb == "" {
					verb = map[string]string{"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "DELETE": "delete"}[method]
				}
				for _, token := range []string{"", "Basic YWxpY2U6eA==", "Bearer ", "Bearer unknown"} {
					if got := ask(h, method, path, token).Code; got != http.StatusUnauthorized {
						t.Errorf("%s %s with %q: %d", method, path, token, got)
					}
				}
				for _, sub := range all {
					want := http.StatusForbidden
					if slices.Contains(access, sub) {
						want = http.StatusTeapot
					}
					if got := ask(h, method, path, "Bearer may:"+verb+":"+sub).Code; got != want {
						t.Errorf("%s %s with %s nodes/%s: %d, want %d", method, path, verb, sub, got, want)
					}
					if got := ask(h, method, path, "Bearer may:watch:"+sub).Code; got != http.StatusForbidden {
						t.Errorf("%s %s with watch nodes/%s: %d", method, path, sub, got)
					}
				}
			}
		}
	}
}

func TestAuthCache(t *testing.T) {
	t.Parallel()
	s, a := testAuth(t)
	h := a.protect([]string{"pods", "proxy"}, "", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	const good = "Bearer may:get:proxy"
	if got := ask(h, "GET", "/pods", good).Code; got != 418 {
		t.Fatal(got)
	}
	before := s.RequestCount()
	if ask(h, "GET", "/pods", good).Code != 418 || s.RequestCount() != before {
		t.Error("the answer isn't cached")
	}
	// While the API server fails, only users with cached answers are let in.
	s.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		clustertest.RespondError(w, http.StatusInternalServerError, metav1.StatusReasonInternalError)
		return true
	})
	if got := ask(h, "GET", "/pods", "Bearer may:get:pods").Code; got != 500 {
		t.Errorf("without a cached review: got %d, want 500", got)
	}
	if got := ask(h, "GET", "/pods", good).Code; got != 418 {
		t.Errorf("with a cached review: got %d, want 418", got)
	}
}

// TestInvalidCertificates: a certificate names a user only if a CA has signed it for clients.
func TestInvalidCertificates(t *testing.T) {
	t.Parallel()
	_, a := testAuth(t)
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
	if user := a.userOfCertificate(r); user != nil {
		t.Errorf("without CAs: got %v", user)
	}
	a.roots = x509.NewCertPool()
	if user := a.userOfCertificate(r); user != nil {
		t.Errorf("with another CA: got %v", user)
	}
	a.roots.AddCert(leaf) // it is a certificate for servers
	if user := a.userOfCertificate(r); user != nil {
		t.Errorf("with a server's certificate: got %v", user)
	}
	if err := a.trust([]byte("rubbish")); err == nil {
		t.Error("a CA file without a certificate is accepted")
	}
}

func TestLogQuery(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	for query, want := range map[string]logQuery{
		"":                               {stdout: true, stderr: true, left: math.MaxInt64, options: logs.Options{Parts: true, Tail: -1}},
		"tailLines=0&follow=true":        {stdout: true, stderr: true, left: math.MaxInt64, options: logs.Options{Parts: true, Follow: true}},
		"limitBytes=5&stream=Stderr":     {stderr: true, left: 5, options: logs.Options{Parts: true, Tail: -1}},
		"sinceSeconds=10&timestamps=1":   {stdout: true, stderr: true, timestamps: true, left: math.MaxInt64, options: logs.Options{Parts: true, Tail: -1, Since: time.Unix(990, 0)}},
		"previous=true&follow=false":     {stdout: true, stderr: true, previous: true, left: math.MaxInt64, options: logs.Options{Parts: true, Tail: -1}},
		"sinceTime=1970-01-01T00:00:09Z": {stdout: true, stderr: true, left: math.MaxInt64, options: logs.Options{Parts: true, Tail: -1, Since: time.Unix(9, 0).UTC()}},
	} {
		q, _ := url.ParseQuery(query)
		got, err := parseLogQuery(q, now)
		if err != nil || got != want {
			t.Errorf("%q: got %+v, %v, want %+v", query, got, err, want)
		}
	}
	for _, query := range []string{"tailLines=-1", "tailLines=x", "limitBytes=0", "sinceSeconds=0", "sinceTime=yesterday", "stream=stdin", "tailLines=99999999999999999999"} {
		q, _ := url.ParseQuery(query)
		if _, err := parseLogQuery(q, now); err == nil {
			t.Errorf("%q is accepted", query)
		}
	}
	w := logQuery{stdout: true, left: 100, timestamps: true}
	var out []byte
	for _, l := range []logs.Line{{Time: now.UTC(), Text: []byte("a"), Partial: true}, {Text: []byte("b")}, {Time: now.UTC(), Text: []byte("c"), Partial: true}} {
		text, _ := w.format(l)
		out = append(out, text...)
	}
	if string(out) != "1970-01-01T00:16:40Z ab\n1970-01-01T00:16:40Z c" {
		t.Errorf("parts of lines: %q", out)
	}
	w = logQuery{stdout: true, left: 6}
	if text, done := w.format(logs.Line{Stderr: true, Text: []byte("no")}); text != nil || done {
		t.Errorf("stderr: %q", text)
	}
	if text, done := w.format(logs.Line{Text: []byte("abc")}); string(text) != "abc\n" || done {
		t.Errorf("%q %v", text, done)
	}
	if text, done := w.format(logs.Line{Text: []byte("def")}); string(text) != "de" || !done {
		t.Errorf("%q %v", text, done)
	}
}

// TestShortLog checks that a log comes as its program wrote it, and its end by itself: what came
// with the end would be lost over WebSockets.
func TestShortLog(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte("2026-01-02T03:04:05Z stdout F one\n2026-01-02T03:04:05Z stdout P two\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := agent.Pod{Manifest: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}}}
	p.Status.Containers = []podplan.ContainerStatus{{Name: "c"}, {Name: "late", Reason: "PodInitializing"}}
	p.Containers = []container.Status{{Config: &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: "c"}}, Log: path, Started: time.Unix(1, 0)}}
	s := &Server{Config: Config{
		Pods:  func() []agent.Pod { return []agent.Pod{p} },
		Ended: func(string) (<-chan struct{}, error) { return nil, nil },
	}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", s.logs)
	h := httptest.NewTLSServer(mux) // each flush is a TLS record, which is read by itself
	defer h.Close()
	get := func(of string) (string, *http.Response) {
		t.Helper()
		r, err := h.Client().Get(h.URL + "/containerLogs/default/p/" + of)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		text := make([]byte, 100)
		n, err := r.Body.Read(text)
		if err != nil && r.StatusCode == http.StatusOK {
			t.Errorf("the end came with %q: %v", text[:n], err)
		}
		return string(text[:n]), r
	}
	if text, r := get("c"); text != "one\ntwo" || r.ContentLength >= 0 {
		t.Errorf("%q, %d bytes announced", text, r.ContentLength)
	}
	if text, r := get("late"); r.StatusCode != http.StatusBadRequest || !strings.Contains(text, `is waiting to start: PodInitializing`) {
		t.Errorf("%q", text)
	}
}
