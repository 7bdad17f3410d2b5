// Package clustertest has an API server of lists and watches that tests can make
// misbehave. It says nothing of what a real one would refuse.
package clustertest

import (
	"encoding/json"
	"fmt"
	"io"
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

// Object is what the server has.
type Object interface {
	metav1.Object
	runtime.Object
}

// Request is one that changes something.
type Request struct {
	Method, Path string
	Body         []byte
}

// Server is an API server.
type Server struct {
	t testing.TB
	// Kubeconfig is the path of a file that names it.
	Kubeconfig string
	http       *httptest.Server

	mu       sync.Mutex
	version  int
	objects  map[string]Object // by path
	events   []event
	newer    chan struct{} // closed with the next event
	requests []Request
	asked    int
	fault    func(w http.ResponseWriter, r *http.Request) bool
}

type event struct {
	version int
	list    string // the path of its list
	text    string
}

// New starts a server, which ends with the test.
func New(t testing.TB) *Server {
	t.Helper()
	s := &Server{t: t, objects: map[string]Object{}, newer: make(chan struct{}), version: 1}
	s.http = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(func() {
		s.http.CloseClientConnections()
		s.http.Close()
	})
	s.Kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: %q}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {token: t}}]\ncurrent-context: x\n", s.http.URL)
	if err := os.WriteFile(s.Kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

// Intercept has fault answer requests, as long as it says that it did; nil ends
// that. Connections are cut.
func (s *Server) Intercept(fault func(w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	s.fault, s.asked = fault, 0
	s.mu.Unlock()
	s.http.CloseClientConnections()
}

// RequestCount is how many requests there were since it last began to misbehave.
func (s *Server) RequestCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

// Requests are those that would have changed something, in their order.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Request(nil), s.requests...)
}

// Put has the server have an object in the list at a path.
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
	s.tell(list, kind, o)
}

// Remove has the server no longer have an object.
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
	s.tell(list, "DELETED", o)
}

func (s *Server) tell(list, kind string, o Object) {
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
	s.asked++
	fault := s.fault
	s.mu.Unlock()
	if fault != nil && fault(w, r) {
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
	switch {
	case r.URL.Query().Get("sendInitialEvents") != "":
		RespondError(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	case r.URL.Query().Get("watch") != "":
		s.watch(w, r)
	default:
		s.list(w, r)
	}
}

// RespondError answers as an API server that doesn't want to.
func RespondError(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Reason: reason, Code: int32(code), Message: "no: " + string(reason),
	})
}

// kinds are of lists, by the last part of their paths.
var kinds = map[string][2]string{
	"pods": {"v1", "PodList"}, "services": {"v1", "ServiceList"}, "nodes": {"v1", "NodeList"}, "configmaps": {"v1", "ConfigMapList"},
	"secrets": {"v1", "SecretList"}, "runtimeclasses": {"node.k8s.io/v1", "RuntimeClassList"},
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
	if unknown { // a fault's: events after it never come
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

// Eventually waits until nothing is wrong.
func Eventually(t testing.TB, wrong func() string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		text := wrong()
		if text == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(text)
		}
	}
}
