package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/huskd/husk/internal/network/firewall"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/network/policy"
	"github.com/huskd/husk/internal/network/policytable"
	"github.com/huskd/husk/internal/pod"
)

// BenchmarkAttachDetach reports the median of each; ns/op is of both.
func BenchmarkAttachDetach(b *testing.B) {
	port := pod.PortMapping{Protocol: pod.TCP, HostPort: 8080, Port: 80}
	large := func(c *Config) { c.Subnets[0] = netip.MustParsePrefix("10.88.0.0/16") }
	for _, c := range []struct {
		name   string
		change func(*Config)
		ports  []pod.PortMapping
		filled int // leases that are there
	}{
		{"v4", func(c *Config) { c.Subnets = c.Subnets[:1] }, nil, 0},
		{"dual", func(*Config) {}, nil, 0},
		{"dual,port", func(*Config) {}, []pod.PortMapping{port}, 0},
		{"dual,bridge", func(c *Config) { c.Mode = "bridge" }, nil, 0},
		{"dual,policies", func(c *Config) { c.Policy = policies(b, c) }, nil, 0},
		{"dual,of 1000", large, nil, 1000},
		{"dual,of 60000", large, nil, 60_000},
	} {
		b.Run(c.name, func(b *testing.B) {
			l := newLab(b)
			cfg := l.config()
			cfg.Quarantine = -1
			c.change(&cfg)
			n := l.open(cfg)
			for i := range c.filled {
				a := pod.Attachment{Sandbox: pod.NewID(), Pod: pod.Ref{Name: fmt.Sprint("filler", i)}, Netns: "/run/netns/filler", IfName: "eth0"}
				must(b, n.ledger.reserve(&record{Attachment: a, Mode: plan.PTP, MTU: 1500}))
			}
			var attach, detach []time.Duration
			for b.Loop() {
				b.StopTimer()
				a := l.attachment(c.ports...)
				b.StartTimer()
				start := time.Now()
				if _, err := n.Attach(b.Context(), a); err != nil {
					b.Fatal(err)
				}
				attached := time.Now()
				if err := n.Detach(b.Context(), a); err != nil {
					b.Fatal(err)
				}
				attach, detach = append(attach, attached.Sub(start)), append(detach, time.Since(attached))
			}
			report(b, "attach", attach)
			report(b, "detach", detach)
		})
	}
}

func report(b *testing.B, what string, d []time.Duration) {
	slices.Sort(d)
	b.ReportMetric(float64(d[len(d)/2].Microseconds()), "µs-p50-"+what)
	b.ReportMetric(float64(d[len(d)*9/10].Microseconds()), "µs-p90-"+what)
}

// policies returns the owner of 1,000 policies in 100 namespaces, one of which is of all pods.
func policies(b *testing.B, c *Config) Policy {
	table, err := policytable.Open(c.Netns, c.Instance)
	must(b, err)
	b.Cleanup(func() { must(b, errors.Join(table.Teardown(), table.Close())) })
	all := policy.Changes{Policies: map[string]*policy.Policy{}, Namespaces: map[string]labels.Set{"default": {}}}
	for i := range 1000 {
		name, namespace, subject := fmt.Sprint("NetworkPolicy ", i), "default", labels.Everything()
		if i > 0 {
			subject = labels.SelectorFromSet(labels.Set{"app": fmt.Sprint(i)})
		}
		if i%100 > 0 {
			namespace = fmt.Sprint("team-", i%100)
		}
		all.Policies[name] = &policy.Policy{
			Name: name, Tier: policy.Namespaced, Subject: policy.PodSelector{Namespace: namespace, Pods: subject},
			Ingress: &policy.Rules{Rules: []policy.Rule{{Action: policy.Accept, Peers: []policy.Peer{{Pods: &policy.PodSelector{Namespace: namespace, Pods: labels.Everything()}}}}}},
		}
	}
	f := firewall.New(firewall.Config{Source: objects{all}, Kernel: table, Log: c.Log})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- f.Run(ctx) }()
	b.Cleanup(func() {
		cancel()
		must(b, <-done)
	})
	return labelled{f}
}

// objects is a source whose objects don't change.
type objects struct{ all policy.Changes }

func (o objects) Run(ctx context.Context, update func(policy.Changes), _ func(error)) error {
	update(o.all)
	<-ctx.Done()
	return nil
}

// labelled knows that pods have no labels.
type labelled struct{ *firewall.Firewall }

func (l labelled) Admit(ctx context.Context, a pod.Attachment, addresses []netip.Prefix) error {
	a.Labels = map[string]string{}
	return l.Firewall.Admit(ctx, a, addresses)
}
