package datapath

import (
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/nlsock"
	"github.com/huskd/husk/internal/network/plan"
)

// BenchmarkStages does what Apply and Cut do, step by step, and reports the median of each stage.
func BenchmarkStages(b *testing.B) {
	n := newNode(b, plan.PTP)
	stages := map[string][]time.Duration{}
	for b.Loop() {
		b.StopTimer()
		p := n.plan(port)
		b.StartTimer()
		last := time.Now()
		stage := func(name string, err error) {
			if err != nil {
				b.Fatal(name, err)
			}
			now := time.Now()
			stages[name] = append(stages[name], now.Sub(last))
			last = time.Now()
		}
		_, err := n.Uplink()
		stage("uplink", err)
		inPod := dialAt(p.Netns)
		pod, err := inPod()
		stage("enter", err)
		ns, err := unix.Open(p.Netns, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			b.Fatal(err)
		}
		links, eth, err := n.ensureVeth(p, ns, inPod)
		stage("veth", err)
		_ = unix.Close(ns)
		requests, names := sideRequests(links, p.Host)
		stage("host", n.withConn(func(c *nlsock.Conn) error { return firstError(c.Do(requests...), names, p.Netns) }))
		stage("pod", podSide(pod, eth, p))
		_ = pod.Close()
		last = time.Now()
		stage("elements", n.table.add(p.Elements))
		stage("cut-link", n.markForDeletion(p.Veth.Host))
		stage("cut-elements", n.table.remove(p.Elements))
		b.StopTimer()
		if len(stages["veth"])%40 == 0 {
			start := time.Now()
			if err := n.Reap(); err != nil {
				b.Fatal(err)
			}
			stages["reap-40"] = append(stages["reap-40"], time.Since(start))
		}
		b.StartTimer()
	}
	for name, d := range stages {
		slices.Sort(d)
		b.ReportMetric(float64(d[len(d)/2].Microseconds()), "µs-"+name)
	}
}
