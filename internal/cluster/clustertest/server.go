// Package clustertest provides an API server with lists and watches, whose faults a test controls.
// It doesn't validate what it gets.
package clustertest

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Object is an object on the server.
type Object interface {
	metav1.Object
	runtime.Object
}

// Request is a request other than GET.
type Request struct {
	Method, Path string
	Body         []byte
}

// Server is an API server.
type Server struct {
	t testing.TB
	// Kubeconfig is the path of a kubeconfig for the server.
	Kubeconfig string
	http       *httptest.Server

	mu       sync.Mutex
	version  int
	objects  map[string]Object // by path
	events   []event
	newer    chan struct{} // closed with the next event
	requests []Request
	count    int // of all requests since the last Intercept
	handler  func(w http.ResponseWriter, r *http.Request) bool
	missing  map[string]bool // see SetMissing
}

type event struct {
	version int
	list    string // the path of its list
	text    string
}

// New starts a server on the loopback, which stops with the test.
func New(t testing.TB) *Server {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return NewOn(t, listener)
}

// NewOn starts a server, which stops with the test, on a listener that it closes.
func NewOn(t testing.TB, listener net.Listener) *Server {
	t.Helper()
	s := &Server{t: t, objects: map[string]Object{}, newer: make(chan struct{}), version: 1, missing: map[string]bool{}}
	s.http = &httptest.Server{Listener: listener, Config: &http.Server{Handler: http.HandlerFunc(s.serve)}}
	s.http.Start()
	t.Cleanup(s.Stop)
	s.Kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: %q}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {token: t}}]\ncurrent-context: x\n", s.http.URL)
	if err := os.WriteFile(s.Kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

// Stop closes the server's port and all connections until Start.
func (s *Server) Stop() {
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		s.http.Close() // waits for watches, which end with their connections
	}()
	for {
		s.http.CloseClientConnections()
		select {
		case <-stopped:
			return
		case <-time.After(10 * time.Millisecond): // for a client that has connected meanwhile
		}
	}
}

// Start opens the port again.
func (s *Server) Start() {
	s.t.Helper()
	Eventually(s.t, func() string {
		listener, err := net.Listen("tcp", s.http.Listener.Addr().String())
		if err != nil {
			return err.Error()
		}
		s.http = &httptest.Server{Listener: listener, Config: &http.Server{Handler: http.HandlerFunc(s.serve)}}
		return ""
	})
	s.http.Start()
}

// Intercept passes all further requests to handler first, which returns whether it has answered.
// Nil ends that. All connections are closed.
func (s *Server) Intercept(handler func(w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	s.handler, s.count = handler, 0
	s.mu.Unlock()
	s.http.CloseClientConnections()
}

// CloseConnections ends all connections, and with them the watches.
func (s *Server) CloseConnections() { s.http.CloseClientConnections() }

// RequestCount returns the number of requests since the last call of Intercept.
func (s *Server) RequestCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count
}

// Requests returns all requests other than GET, in order.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Request(nil), s.requests...)
}

// Put adds or replaces an object in the list at a path.
func (s *Server) Put(list string, o Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	o = o.DeepCopyObject().(Object)
	o.SetResourceVersion(strconv.Itoa(s.version))
	path := list + " " + o.GetNamespace() + "/" + o.GetName()
	kind := "MODIFIED"
	if s.objects[path] == nil {
		kind = "ADDED"
	}
	s.objects[path] = o
	s.notify(list, kind, o)
}

// Remove removes an object from the list at a path.
func (s *Server) Remove(list, namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	path := list + " " + namespace + "/" + name
	o := s.objects[path]
	if o == nil {
		s.t.Errorf("the server has no %s", path)
		return
	}
	s.version++
	delete(s.objects, path)
	s.notify(list, "DELETED", o)
}

func (s *Server) notify(list, kind string, o Object) {
	text, err := json.Marshal(map[string]any{"type": kind, "object": o})
	if err != nil {
		s.t.Error(err)
	}
	s.events = append(s.events, event{s.version, list, string(text)})
	close(s.newer)
	s.newer = make(chan struct{})
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.count++
	handler := s.handler
	s.mu.Unlock()
	if handler != nil && handler(w, r) {
		return
	}
	if r.Method != http.MethodGet {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		s.requests = append(s.requests, Request{r.Method, r.URL.Path, body})
		s.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		if r.Method == http.MethodPost {
			_, _ = w.Write(body)
			return
		}
		_, _ = io.WriteString(w, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x"}}`)
		return
	}
	version, isVersion := strings.CutPrefix(r.URL.Path, "/apis/")
	switch {
	case isVersion && strings.Count(version, "/") == 1:
		s.discover(w, version)
	case s.isMissing(r.URL.Path):
		RespondError(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	case r.URL.Query().Get("sendInitialEvents") != "":
		RespondError(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	case r.URL.Query().Get("watch") != "":
		s.watch(w, r)
	default:
		s.list(w, r)
	}
}

// RespondError responds with a failure status.
func RespondError(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Reason: reason, Code: int32(code), Message: "no: " + string(reason),
	})
}

// kinds are the version and kind of each list, by the last element of its path.
var kinds = map[string][2]string{
	"pods": {"v1", "PodList"}, "services": {"v1", "ServiceList"}, "nodes": {"v1", "NodeList"}, "configmaps": {"v1", "ConfigMapList"},
	"secrets": {"v1", "SecretList"}, "runtimeclasses": {"node.k8s.io/v1", "RuntimeClassList"},
	"namespaces": {"v1", "NamespaceList"}, "networkpolicies": {"networking.k8s.io/v1", "NetworkPolicyList"},
	"endpointslices":         {"discovery.k8s.io/v1", "EndpointSliceList"},
	"servicecidrs":           {"networking.k8s.io/v1", "ServiceCIDRList"},
	"clusternetworkpolicies": {"policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicyList"},
	// Only their metadata are ever asked for.
	"customresourcedefinitions": {"meta.k8s.io/v1", "PartialObjectMetadataList"},
}

// definitions is the list of definitions, whose names have those of the kinds.
const definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// SetMissing makes a kind, by the last element of the path of its lists, missing like one whose
// definition isn't installed, or brings it with its definition. Its watches end.
func (s *Server) SetMissing(plural string, missing bool) {
	group, _, _ := strings.Cut(kinds[plural][0], "/")
	name := plural + "." + group
	s.mu.Lock()
	s.missing[plural] = missing
	had := s.objects[definitions+" /"+name] != nil
	s.mu.Unlock()
	if !missing {
		s.Put(definitions, &metav1.PartialObjectMetadata{
			TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"}, ObjectMeta: metav1.ObjectMeta{Name: name},
		})
	} else if had {
		s.Remove(definitions, "", name)
	}
	s.http.CloseClientConnections()
}

// discover responds with the kinds of a version, if it has any.
func (s *Server) discover(w http.ResponseWriter, version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := metav1.APIResourceList{GroupVersion: version}
	for plural, kind := range kinds {
		if kind[0] == version && !s.missing[plural] {
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: plural})
		}
	}
	if len(list.APIResources) == 0 {
		RespondError(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(list)
}

// isMissing reports whether SetMissing has made the kind of a list missing.
func (s *Server) isMissing(path string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.missing[path[strings.LastIndex(path, "/")+1:]]
}

func selected(r *http.Request, o Object) bool {
	name, ok := strings.CutPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
	return !ok || o.GetName() == name
}

func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	kind, ok := kinds[r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]]
	if !ok {
		RespondError(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	items := []Object{}
	for path, o := range s.objects {
		if strings.HasPrefix(path, r.URL.Path+" ") && selected(r, o) {
			items = append(items, o)
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{
		"apiVersion": kind[0], "kind": kind[1], "metadata": map[string]string{"resourceVersion": strconv.Itoa(s.version)}, "items": items,
	})
}

func (s *Server) watch(w http.ResponseWriter, r *http.Request) {
	since, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	s.mu.Lock()
	unknown := since > s.version
	s.mu.Unlock()
	if unknown { // it came from an intercepted answer, and events after it would never come
		RespondError(w, http.StatusGone, metav1.StatusReasonExpired)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	flush := http.NewResponseController(w)
	_ = flush.Flush()
	wanted := strings.TrimPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
	for {
		s.mu.Lock()
		var due []string
		for _, e := range s.events {
			if e.version > since && e.list == r.URL.Path && (strings.Contains(wanted, "=") || wanted == "" || strings.Contains(e.text, `"name":"`+wanted+`"`)) {
				due = append(due, e.text)
			}
		}
		since = s.version
		newer := s.newer
		s.mu.Unlock()
		for _, text := range due {
			_, _ = io.WriteString(w, text+"\n")
		}
		_ = flush.Flush()
		select {
		case <-newer:
		case <-r.Context().Done():
			return
		}
	}
}

// Eventually waits until check returns no error text.
func Eventually(t testing.TB, check func() string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		text := check()
		if text == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(text)
		}
	}
}
