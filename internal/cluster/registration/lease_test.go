package registration

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/huskd/husk/internal/cluster"
	"github.com/huskd/husk/internal/cluster/clustertest"
)

// leaseStore answers requests about one lease as an API server does, and records their methods.
type leaseStore struct {
	t *testing.T

	mu      sync.Mutex
	lease   *coordinationv1.Lease // nil if there is none
	version int
	methods []string
}

func (s *leaseStore) store(lease *coordinationv1.Lease) {
	s.version++
	lease.TypeMeta = metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}
	lease.ResourceVersion = strconv.Itoa(s.version)
	s.lease = lease
}

func (s *leaseStore) answer(w http.ResponseWriter, r *http.Request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.methods = append(s.methods, r.Method)
	switch {
	case r.Method != http.MethodPost && s.lease == nil:
		clustertest.RespondError(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return true
	case r.Method != http.MethodGet:
		var sent coordinationv1.Lease
		if err := json.NewDecoder(r.Body).Decode(&sent); err != nil {
			s.t.Errorf("%s: %v", r.Method, err)
		}
		if s.lease != nil && sent.ResourceVersion != s.lease.ResourceVersion {
			clustertest.RespondError(w, http.StatusConflict, metav1.StatusReasonConflict)
			return true
		}
		s.store(&sent)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(s.lease)
	return true
}

func TestLeaseIsReadOnlyIfNeeded(t *testing.T) {
	t.Parallel()
	server := clustertest.New(t)
	store := &leaseStore{t: t}
	server.Intercept(store.answer)
	client, err := cluster.New(server.Kubeconfig, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	n := &Node{Config: Config{Client: client}}
	n.now.Store(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here", UID: "u"}})
	renews := func(when string, want ...string) {
		t.Helper()
		var last metav1.MicroTime
		store.mu.Lock()
		if store.methods = nil; store.lease != nil && store.lease.Spec.RenewTime != nil {
			last = *store.lease.Spec.RenewTime
		}
		store.mu.Unlock()
		if err := n.renew(t.Context()); err != nil {
			t.Errorf("%s: %v", when, err)
		}
		store.mu.Lock()
		defer store.mu.Unlock()
		if !slices.Equal(store.methods, want) {
			t.Errorf("%s, a renewal sends %q, want %q", when, store.methods, want)
		}
		if l := store.lease; l == nil || *l.Spec.HolderIdentity != "here" || !l.Spec.RenewTime.After(last.Time) || l.OwnerReferences[0].UID != "u" {
			t.Errorf("%s, the lease is %+v after a renewal, the last one was at %v", when, l, last)
		}
	}
	renews("without a lease", http.MethodGet, http.MethodPost)
	renews("after it was created", http.MethodPut)
	renews("again", http.MethodPut)
	store.mu.Lock()
	changed := store.lease.DeepCopy()
	changed.Labels = map[string]string{"by": "another"}
	store.store(changed)
	store.mu.Unlock()
	renews("after another write", http.MethodPut, http.MethodGet, http.MethodPut)
	renews("after the conflict", http.MethodPut)
	if store.lease.Labels["by"] != "another" {
		t.Errorf("the label that another client has set is gone: %v", store.lease.Labels)
	}
	store.mu.Lock()
	store.lease = nil
	store.mu.Unlock()
	renews("after it was deleted", http.MethodPut, http.MethodGet, http.MethodPost)
	renews("after it was created again", http.MethodPut)
}
