package servicetable

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/netns/netnstest"
	"github.com/huskd/husk/internal/network/service"
	"github.com/huskd/husk/internal/network/service/compile"
)

// many are Services with ten endpoints each.
func many(n int) service.Changes {
	c := service.Changes{Node: here(), Services: map[string]*service.Service{}, Slices: map[string]*service.Slice{}}
	for i := range n {
		s := &service.Service{
			Namespace: "n", Name: fmt.Sprint("s", i), ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})},
			Ports: []service.Port{{Protocol: service.TCP, Port: 80}},
		}
		c.Services[s.Key()] = s
		c.Slices[fmt.Sprint("n/", i)] = endpointsOf(i, 0)
	}
	return c
}

// endpointsOf are those of a Service of many. The variant is part of the last one's address.
func endpointsOf(i, variant int) *service.Slice {
	slice := &service.Slice{Namespace: "n", Name: fmt.Sprint(i), Service: fmt.Sprint("s", i), Ports: []service.EndpointPort{{Protocol: service.TCP, Port: 8080}}}
	for j := range 10 {
		k := 10*i + j
		e := service.Endpoint{Address: netip.AddrFrom4([4]byte{10, byte(100 + k>>16), byte(k >> 8), byte(k)}), Node: "there", Ready: true, Serving: true}
		if j == 9 {
			e.Address = netip.AddrFrom4([4]byte{10, byte(120 + variant), byte(i >> 8), byte(i)})
		}
		slice.Endpoints = append(slice.Endpoints, e)
	}
	return slice
}

func benchTable(b *testing.B) *Table {
	b.Helper()
	path := filepath.Join(b.TempDir(), "node")
	netnstest.Make(b, path)
	table, err := Open(path, instance, nil)
	must(b, err)
	b.Cleanup(func() { must(b, table.Close()) })
	return table
}

// cpu returns what the process has taken.
func cpu(b *testing.B) (user, system time.Duration) {
	b.Helper()
	var r unix.Rusage
	must(b, unix.Getrusage(unix.RUSAGE_SELF, &r))
	return time.Duration(r.Utime.Nano()), time.Duration(r.Stime.Nano())
}

func BenchmarkLoad(b *testing.B) {
	for _, kind := range []string{"first", "again"} {
		b.Run(kind, func(b *testing.B) {
			table := benchTable(b)
			var user, system time.Duration
			for b.Loop() {
				b.StopTimer()
				if kind == "first" {
					must(b, table.Teardown())
				}
				table.wanted.fronts, table.loaded = map[compile.Key]*compile.Front{}, false
				c := compile.New()
				changes := many(10_000)
				u, s := cpu(b)
				b.StartTimer()
				c.Change(changes)
				must(b, table.Apply(c.Commit()))
				b.StopTimer()
				u2, s2 := cpu(b)
				user, system = user+u2-u, system+s2-s
				b.StartTimer()
			}
			b.ReportMetric(user.Seconds()*1000/float64(b.N), "user-ms/op")
			b.ReportMetric(system.Seconds()*1000/float64(b.N), "kernel-ms/op")
		})
	}
	b.Run("verify", func(b *testing.B) {
		table := benchTable(b)
		c := compile.New()
		c.Change(many(10_000))
		must(b, table.Apply(c.Commit()))
		for b.Loop() {
			if found, err := table.Verify(); err != nil || len(found) > 0 {
				b.Fatal(found, err)
			}
		}
	})
}

func BenchmarkApply(b *testing.B) {
	for _, n := range []int{1, 1000, 10_000} {
		b.Run(fmt.Sprint("an endpoint of ", n, " Services"), func(b *testing.B) {
			table := benchTable(b)
			c := compile.New()
			c.Change(many(n))
			must(b, table.Apply(c.Commit()))
			for i := 0; b.Loop(); i++ {
				c.Change(service.Changes{Slices: one("n/0", endpointsOf(0, 1+i%2))})
				must(b, table.Apply(c.Commit()))
			}
			if table.unsure {
				b.Fatal("the kernel refused an update")
			}
		})
	}
}
