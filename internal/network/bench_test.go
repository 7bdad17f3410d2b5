package network

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/huskd/husk/internal/network/plan"
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
