package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/huskd/husk/internal/backoff"
	"github.com/huskd/husk/internal/cluster/clustertest"
)

// counted counts the requests of a client, also those that reach no server.
type counted struct {
	http.RoundTripper
	mu             sync.Mutex
	probes, others int
}

func (c *counted) RoundTrip(r *http.Request) (*http.Response, error) {
	c.mu.Lock()
	if r.URL.Path == "/version" {
		c.probes++
	} else {
		c.others++
	}
	c.mu.Unlock()
	return c.RoundTripper.RoundTrip(r)
}

// since returns the counts, and starts again.
func (c *counted) since() (probes, others int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	probes, others = c.probes, c.others
	c.probes, c.others = 0, 0
	return probes, others
}

// TestOutage checks that the lists of a client wait for a server together, and follow it as soon as
// it is there: at the first start, after its port was closed, and after a proxy before it had no
// server. Only one of them asks meanwhile, so that none backs off.
func TestOutage(t *testing.T) {
	t.Parallel()
	// No other program uses the address, so the port stays free while the server is down.
	listener, err := net.Listen("tcp", fmt.Sprintf("127.%d.%d.%d:0", 1+rand.N(250), rand.N(250), 1+rand.N(250)))
	if err != nil {
		t.Fatal(err)
	}
	s := clustertest.NewOn(t, listener)
	s.Stop()
	client, err := New(s.Kubeconfig, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	requests := &counted{RoundTripper: client.http.Transport}
	client.http.Transport = requests
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() {
		cancel()
		s.CloseConnections()
		client.Close()
	})
	const lists = 8
	var caches []*Cache[*corev1.Pod]
	for i := range lists {
		caches = append(caches, Watch[*corev1.Pod](ctx, client, List{Path: Pods(fmt.Sprint("n", i)), Item: &corev1.Pod{}, List: &corev1.PodList{}}, func() {}))
	}
	waitTogether := func(t *testing.T) {
		t.Helper()
		probes, others := 0, 0
		clustertest.Eventually(t, func() string {
			p, o := requests.since()
			if probes, others = probes+p, others+o; probes < 4 {
				return fmt.Sprintf("the server was probed %d times, and asked for lists %d times", probes, others)
			}
			return ""
		})
		// Each asks once, and a watch that has ended perhaps for its list, too.
		if others > 2*lists {
			t.Errorf("%d lists made %d requests while the server could not be reached", lists, others)
		}
	}
	pods := 0
	follow := func(t *testing.T) {
		t.Helper()
		clustertest.Eventually(t, func() string {
			for i, c := range caches {
				if !c.Synced() || len(c.All()) != pods || c.Err() != nil {
					return fmt.Sprintf("list %d has %d pods of %d, synced: %v, error: %v", i, len(c.All()), pods, c.Synced(), c.Err())
				}
			}
			return ""
		})
	}
	add := func() {
		pods++
		for i := range lists {
			s.Put(Pods(fmt.Sprint("n", i)), &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprint("n", i), Name: fmt.Sprint("p", pods)}})
		}
	}

	waitTogether(t)
	add()
	s.Start()
	follow(t)
	s.Stop()
	requests.since()
	waitTogether(t)
	add()
	s.Start()
	follow(t)
	requests.since()
	s.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		clustertest.RespondError(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
		return true
	})
	waitTogether(t)
	add()
	s.Intercept(nil)
	follow(t)
}

// TestOutageAnswers checks what of a server's answers ends an outage, and that a request that fails
// although probes succeed is left to the caller's back-off.
func TestOutageAnswers(t *testing.T) {
	t.Parallel()
	s := clustertest.New(t)
	client, err := New(s.Kubeconfig, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	for code, down := range map[int]bool{
		http.StatusOK: false, http.StatusUnauthorized: false, http.StatusForbidden: false, http.StatusNotFound: false, http.StatusTooManyRequests: false,
		http.StatusInternalServerError: false, http.StatusBadGateway: true, http.StatusServiceUnavailable: true, http.StatusGatewayTimeout: true,
	} {
		s.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(code)
			return true
		})
		if err := client.probe(t.Context()); (err != nil) != down {
			t.Errorf("%d: %v", code, err)
		}
	}
	s.Intercept(nil)
	requests, failed := 0, &net.OpError{Op: "dial", Err: errors.New("no route")}
	if err := client.outage.retry(t.Context(), func() error { requests++; return &url.Error{Op: "Get", URL: "x", Err: failed} }); !errors.Is(err, failed) || requests != 2 {
		t.Errorf("a server that only answers probes: %v after %d requests", err, requests)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s.Stop()
	defer s.Start()
	time.AfterFunc(time.Millisecond, cancel)
	if err := client.outage.retry(ctx, func() error { return &url.Error{Op: "Get", URL: "x", Err: failed} }); !errors.Is(err, failed) {
		t.Errorf("canceled: %v", err)
	}
}

// TestRefusedWaits: a server that has refused lists for long, as while its etcd is away, is asked
// again soon.
func TestRefusedWaits(t *testing.T) {
	t.Parallel()
	waits := refusedWaits()
	next := waits.DelayFunc()
	for range 100 {
		if wait := next(); wait > backoff.Most {
			t.Fatalf("a wait is %v", wait)
		}
	}
}
