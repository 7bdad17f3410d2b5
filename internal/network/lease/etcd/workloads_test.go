package etcd_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/huskd/husk/internal/network/lease/claim"
	"github.com/huskd/husk/internal/network/lease/etcd"
	"github.com/huskd/husk/internal/network/policy"
	"github.com/huskd/husk/internal/network/policy/exchange"
)

// teller is a node that tells of its pods.
type teller struct {
	*member
	*exchange.Exchange
	mu     sync.Mutex
	own    []*policy.Pod
	others []string
	calls  int
}

func tell(t *testing.T, name string, cfg etcd.Config, own ...*policy.Pod) *teller {
	t.Helper()
	n := &teller{member: join(t, name, cfg), own: own}
	n.Exchange = exchange.New(exchange.Config{
		Store: etcd.Workloads{Store: n.store}, Node: name, Subnets: []netip.Prefix{netip.MustParsePrefix("10.201.0.0/16")}, Log: slog.New(slog.DiscardHandler),
		Own: func() []*policy.Pod {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.own
		},
		Others: func(pods []*policy.Pod) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.others = nil
			n.calls++
			for _, p := range pods {
				n.others = append(n.others, fmt.Sprint(p.Key(), p.Labels, p.Addresses, p.Ports))
			}
			slices.Sort(n.others)
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- n.Exchange.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return n
}

func (n *teller) has(pods ...*policy.Pod) {
	n.mu.Lock()
	n.own = pods
	n.mu.Unlock()
	n.Exchange.Changed()
}

// knows waits until the node knows these pods of others.
func (n *teller) knows(want ...string) {
	n.t.Helper()
	eventually(n.t, n.name+" knows "+strings.Join(want, ", "), func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.calls > 0 && slices.Equal(n.others, want)
	})
}

func workload(name, label, ip string) *policy.Pod {
	return &policy.Pod{
		Namespace: "shop", Name: name, Labels: labels.Set{"app": label}, Addresses: []netip.Addr{netip.MustParseAddr(ip)},
		Ports: []policy.NamedPort{{Name: "http", Protocol: policy.TCP, Port: 80}}, Started: time.Now(),
	}
}

// TestWorkloads: nodes learn of each other's pods, over the end of a session and a restart of a
// node, and believe nothing that can't be.
func TestWorkloads(t *testing.T) {
	t.Parallel()
	s := start(t)
	cfg := etcd.Config{Endpoints: []string{s.url}, TTL: time.Hour}
	client := s.client("", "")
	for key, value := range map[string]string{
		"a/shop/stale":   `{"v":1,"labels":{"app":"x"},"addresses":["10.201.1.7"]}`, // of an earlier life of the node
		"x/shop/outside": `{"v":1,"labels":{"app":"x"},"addresses":["192.0.2.7"]}`,
		"x/shop/broken":  `{`,
		"x/shop/newer":   `{"v":2,"addresses":["10.201.1.7"]}`,
		"x/shop":         `{"v":1}`,
		"x/shop/huge":    `{"v":1,"labels":{"app":"` + strings.Repeat("x", 40<<10) + `"}}`,
	} {
		if _, err := client.Put(t.Context(), "/husk/default/workloads/"+key, value); err != nil {
			t.Fatal(err)
		}
	}
	a := tell(t, "a", cfg, workload("web", "web", "10.201.1.2"))
	b := tell(t, "b", cfg, workload("web", "web", "10.201.2.2"), workload("db", "db", "10.201.2.3"))
	const web = "shop/web@a app=web [10.201.1.2] [{http 6 80}]"
	fix := func(text string) string { return strings.Replace(text, " app", "app", 1) }
	b.knows(fix(web))
	a.knows("shop/db@bapp=db [10.201.2.3] [{http 6 80}]", "shop/web@bapp=web [10.201.2.2] [{http 6 80}]")
	if notes := a.now().Notes; len(notes) > 0 {
		t.Errorf("those who follow the nodes see %v", notes)
	}

	a.has(workload("web", "old", "10.201.1.2"), workload("new", "new", "10.201.1.3"))
	b.knows("shop/new@aapp=new [10.201.1.3] [{http 6 80}]", fix(strings.Replace(web, "app=web", "app=old", 1)))
	a.has(workload("web", "web", "10.201.1.2"))
	b.knows(fix(web))

	// The session ends: entries go with it and come back with the next.
	own := etcd.Workloads{Store: a.store}
	session := own.Session()
	if err := b.store.End(t.Context(), session); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the node has another session", func() bool {
		a.Announce(a.announced) // the Keeper notices the loss when it asks
		return own.Session() != session
	})
	b.knows(fix(web))
	a.has()
	b.knows()
	if err := own.Write(t.Context(), session, map[string]string{"a/shop/web": "{}"}, nil); err != claim.ErrLost {
		t.Errorf("a write with a session that has ended: %v", err)
	}
}

// TestWorkloadsMany: a node with more pods than a transaction has room for.
func TestWorkloadsMany(t *testing.T) {
	t.Parallel()
	s := start(t)
	cfg := etcd.Config{Endpoints: []string{s.url}}
	b := tell(t, "b", cfg)
	a := tell(t, "a", cfg)
	var pods []*policy.Pod
	for i := range 1000 {
		pods = append(pods, workload(fmt.Sprint("web-", i), "web", fmt.Sprintf("10.201.%d.%d", 1+i>>8, i&255)))
	}
	began := time.Now()
	a.has(pods...)
	eventually(t, "b knows the pods", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.others) == len(pods)
	})
	t.Logf("%d pods known after %v", len(pods), time.Since(began).Round(time.Millisecond))
}

// TestWorkloadsAreKept: what etcd has lost of the pods of a node that can't reach it is still
// known, until another pod has their addresses. What a node removed meanwhile isn't there for long.
func TestWorkloadsAreKept(t *testing.T) {
	t.Parallel()
	for name, empty := range map[string]func(*server){
		"Wiped": (*server).wipe,
		"Deleted": func(s *server) {
			if _, err := s.client("", "").Delete(t.Context(), "/husk/", clientv3.WithPrefix()); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			p := s.proxy()
			cfg := etcd.Config{Endpoints: []string{s.url}}
			web := &policy.Pod{Namespace: "shop", Name: "web", Labels: labels.Set{"app": "web"}, Addresses: []netip.Addr{netip.MustParseAddr("10.201.1.2")}}
			db := &policy.Pod{Namespace: "shop", Name: "db", Labels: labels.Set{"app": "db"}, Addresses: []netip.Addr{netip.MustParseAddr("10.201.2.2")}}
			away := tell(t, "a", etcd.Config{Endpoints: []string{p.url}}, web)
			other, third := tell(t, "b", cfg), tell(t, "c", cfg, db)
			away.knows("shop/db@capp=db [10.201.2.2] []")
			both := []string{"shop/db@capp=db [10.201.2.2] []", "shop/web@aapp=web [10.201.1.2] []"}
			other.knows(both...)
			third.knows(both[1])
			p.set(true)
			empty(s)
			client := s.client("", "")
			eventually(t, "the other node's pod is in etcd again", func() bool {
				other.mu.Lock()
				known := slices.Clone(other.others)
				other.mu.Unlock()
				if !slices.Equal(known, both) {
					t.Fatalf("node b knows %s", known)
				}
				resp, err := client.Get(t.Context(), "/husk/default/workloads/", clientv3.WithPrefix())
				return err == nil && len(resp.Kvs) == 1
			})
			third.knows("shop/web@aapp=web [10.201.1.2] []")
			// The address is another pod's now.
			third.has(&policy.Pod{Namespace: "shop", Name: "db", Labels: labels.Set{"app": "db"}, Addresses: web.Addresses})
			other.knows("shop/db@capp=db [10.201.1.2] []")
			p.set(false)
			other.knows("shop/db@capp=db [10.201.1.2] []", "shop/web@aapp=web [10.201.1.2] []")
		})
	}
}
