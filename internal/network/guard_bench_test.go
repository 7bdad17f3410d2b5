package network

import (
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/huskd/husk/internal/netns"
)

// BenchmarkGuard compares round trips (rr) and connections (crr) between a pod and a host outside
// with those without the rules about node ports and spoofed sources, in turns: x-rr and x-crr are
// the ratios of the medians.
func BenchmarkGuard(b *testing.B) {
	l := newLab(b)
	cfg := l.clusterConfig()
	n := l.open(cfg)
	must(b, n.SetBlocks(b.Context(), blocks1))
	must(b, n.SetNodes(known("up0")))
	a := l.attach(n)
	must(b, netns.Do(l.other, func() error {
		s, err := net.Listen("tcp4", other4+":7000")
		if err != nil {
			return err
		}
		b.Cleanup(func() { _ = s.Close() })
		go func() {
			for {
				c, err := s.Accept()
				if err != nil {
					return
				}
				go func() {
					_, _ = io.Copy(c, c)
					_ = c.Close()
				}()
			}
		}()
		return nil
	}))
	dial := func() net.Conn {
		var c net.Conn
		must(b, netns.Do(a.Netns, func() (err error) {
			c, err = net.DialTimeout("tcp4", other4+":7000", patience)
			return err
		}))
		return c
	}
	trip := func(c net.Conn) {
		buf := []byte{1}
		_, err := c.Write(buf)
		must(b, err)
		_, err = io.ReadFull(c, buf)
		must(b, err)
	}
	const trips, connections = 2000, 200
	took := map[string][]time.Duration{}
	for b.Loop() {
		for _, rules := range []string{"with", "without"} {
			if rules == "without" {
				for _, chain := range []string{"forward", "input", "from-outside"} {
					l.run(l.node, "nft", "flush", "chain", "inet", cfg.Instance.Table(), chain)
				}
			} else {
				must(b, n.remakeTable())
			}
			c := dial()
			trip(c)
			start := time.Now()
			for range trips {
				trip(c)
			}
			took["rr "+rules] = append(took["rr "+rules], time.Since(start)/trips)
			_ = c.Close()
			start = time.Now()
			must(b, netns.Do(a.Netns, func() error {
				for range connections {
					c, err := net.Dial("tcp4", other4+":7000")
					if err != nil {
						return err
					}
					trip(c)
					_ = c.Close()
				}
				return nil
			}))
			took["crr "+rules] = append(took["crr "+rules], time.Since(start)/connections)
		}
	}
	median := func(what string) float64 {
		slices.Sort(took[what])
		return float64(took[what][len(took[what])/2])
	}
	for _, what := range []string{"rr", "crr"} {
		b.ReportMetric(median(what+" with")/1000, fmt.Sprintf("µs-%s", what))
		b.ReportMetric(median(what+" with")/median(what+" without"), "x-"+what)
	}
}
