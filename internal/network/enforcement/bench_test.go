package enforcement

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/netns/netnstest"
	"github.com/huskd/husk/internal/network/firewall"
	"github.com/huskd/husk/internal/network/policy"
	"github.com/huskd/husk/internal/network/policytable"
	"github.com/huskd/husk/internal/pod"
)

// objects are 10,000 pods in 100 namespaces with ten policies each. Pods of a ReplicaSet share
// their labels, as apisource keeps them.
func objects() policy.Changes {
	c := policy.Changes{Policies: map[string]*policy.Policy{}, Namespaces: map[string]labels.Set{}, Pods: map[string]*policy.Pod{}}
	shared := map[string]*policy.Pod{}
	for i := range 10_000 {
		namespace, app := fmt.Sprint("team-", i%100), i/100%10
		set := fmt.Sprint(namespace, app)
		if shared[set] == nil {
			shared[set] = &policy.Pod{
				Namespace: namespace, Labels: labels.Set{"app": fmt.Sprint("app-", app), "tier": []string{"front", "back", "db"}[app%3], "pod-template-hash": set, "managed-by": "helm"},
				Ports: []policy.NamedPort{{Name: "http", Protocol: policy.TCP, Port: 8080}},
			}
		}
		p := *shared[set]
		p.Name, p.Addresses = fmt.Sprint("pod-", i), []netip.Addr{netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})}
		c.Pods[p.Key()] = &p
	}
	for i := range 1000 {
		namespace, app := fmt.Sprint("team-", i%100), fmt.Sprint("app-", i/100)
		c.Namespaces[namespace] = labels.Set{"name": namespace}
		c.Policies[fmt.Sprint("NetworkPolicy ", i)] = &policy.Policy{
			Name: fmt.Sprint("NetworkPolicy ", i), Tier: policy.Namespaced,
			Subject: policy.PodSelector{Namespace: namespace, Pods: labels.SelectorFromSet(labels.Set{"app": app})},
			Ingress: &policy.Rules{Rules: []policy.Rule{{Action: policy.Accept, Peers: []policy.Peer{
				{Pods: &policy.PodSelector{Namespace: namespace, Pods: labels.SelectorFromSet(labels.Set{"app": fmt.Sprint("app-", (i/100+1)%10)})}},
				{Pods: &policy.PodSelector{Namespaces: labels.SelectorFromSet(labels.Set{"name": fmt.Sprint("team-", (i+7)%100)}), Pods: labels.SelectorFromSet(labels.Set{"tier": "front"})}},
			}, Ports: []policy.Port{{Protocol: policy.TCP, First: 8080, Last: 8080}}}}},
		}
	}
	return c
}

// feed is a source that is fed by the benchmark.
type feed struct {
	update func(policy.Changes)
	ready  chan struct{}
}

func (s *feed) Run(ctx context.Context, update func(policy.Changes), _ func(error)) error {
	s.update = update
	close(s.ready)
	<-ctx.Done()
	return nil
}

func heap() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// BenchmarkStart takes 10,000 pods, 110 of which are on the node, and 1,000 policies from objects
// to the kernel. The heap is what is kept, objects included.
func BenchmarkStart(b *testing.B) {
	hosttest.Root(b)
	path := filepath.Join(b.TempDir(), "node")
	netnstest.Make(b, path)
	kept := 0
	for b.Loop() {
		b.StopTimer()
		before := heap()
		c := objects()
		mirror := make(map[string]*policy.Pod, len(c.Pods)) // as package cluster keeps one
		for key, p := range c.Pods {
			mirror[key] = p
		}
		table, err := policytable.Open(path, pod.Instance("be0f"))
		if err != nil {
			b.Fatal(err)
		}
		source := &feed{ready: make(chan struct{})}
		f := firewall.New(firewall.Config{Source: source, Kernel: table, File: filepath.Join(b.TempDir(), "policies.json"), Log: slog.New(slog.DiscardHandler)})
		var last pod.Attachment
		var address []netip.Prefix
		for i := range 110 {
			p := c.Pods[fmt.Sprintf("team-%d/pod-%d", i*91%100, i*91)]
			last = pod.Attachment{Sandbox: fmt.Sprint(i), IfName: "eth0", Pod: pod.Ref{Namespace: p.Namespace, Name: p.Name}, Labels: p.Labels}
			address = []netip.Prefix{netip.PrefixFrom(p.Addresses[0], 32)}
			if i < 109 {
				f.Adopt(last, address)
			}
		}
		ctx, cancel := context.WithCancel(b.Context())
		done := make(chan error, 1)
		go func() { done <- f.Run(ctx) }()
		<-source.ready
		b.StartTimer()
		source.update(c)
		if err := f.Admit(ctx, last, address); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		kept = heap() - before
		if wrong, err := table.Verify(); err != nil || len(wrong) > 0 {
			b.Fatal(wrong, err)
		}
		// One pod's new label, from the object to the kernel.
		var took []time.Duration
		for i := range 50 {
			p := *mirror["team-5/pod-5"]
			p.Labels = labels.Set{"app": fmt.Sprint("app-", i%2)}
			began := time.Now()
			source.update(policy.Changes{Pods: map[string]*policy.Pod{p.Key(): &p}})
			if err := f.Admit(ctx, last, address); err != nil {
				b.Fatal(err)
			}
			took = append(took, time.Since(began))
			time.Sleep(15 * time.Millisecond)
		}
		b.ReportMetric(float64(median(took).Microseconds()), "µs-label")
		cancel()
		if err := <-done; err != nil {
			b.Fatal(err)
		}
		if err := table.Teardown(); err != nil {
			b.Fatal(err)
		}
		if err := table.Close(); err != nil {
			b.Fatal(err)
		}
		runtime.KeepAlive(mirror)
		runtime.KeepAlive(f)
		b.StartTimer()
	}
	b.ReportMetric(float64(kept)/(1<<20), "heap-MB")
}

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}
