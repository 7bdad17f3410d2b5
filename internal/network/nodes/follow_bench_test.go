package nodes_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/huskd/husk/internal/netns/netnstest"
	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/lease/claim"
	"github.com/huskd/husk/internal/network/lease/etcd"
	"github.com/huskd/husk/internal/network/peer"
)

// BenchmarkFollow starts a node in a cluster of 5,000, which are records in a real etcd, and
// changes one record at a time. It measures how long the node takes until its kernel agrees, what
// processor time that is, etcd's not included, and how much memory the node uses for the others.
func BenchmarkFollow(b *testing.B) {
	const peers, changes = 5000, 50
	c := newBenchCluster(b, 0, false)
	store, err := etcd.New(etcd.Config{Endpoints: []string{c.url}})
	must(b, err)
	b.Cleanup(func() { must(b, store.Close()) })
	others := writeRecords(b, store, peers)
	netns := namespace(b)
	netnstest.IP(b, netns, "link add eth0 type veth peer name gw0")
	for _, args := range []string{"link set gw0 up", "addr add 192.0.2.1/24 dev eth0", "link set eth0 up", "route add default via 192.0.2.254"} {
		netnstest.IP(b, netns, args)
	}
	var firsts, ones []time.Duration
	var spent time.Duration
	var more float64
	for b.Loop() {
		before := heap()
		began := time.Now()
		m := c.start("self", netns)
		at := c.wait(func(a applied) bool { return len(a.plan.Peers) == peers && usable(a.plan) }, "self")
		firsts = append(firsts, at[0].Sub(began))
		more = heap() - before
		for i := range changes {
			o := &others[i*(peers/changes)]
			to := netip.AddrFrom4([4]byte{172, 15, byte(len(firsts)), byte(i)})
			o.record.Addresses = []netip.Addr{to}
			used, began := cpu(), time.Now()
			o.write(b, store)
			at := c.wait(func(a applied) bool { return peerOf(a.plan, o.record.Name).Endpoint == to }, "self")
			ones = append(ones, at[0].Sub(began))
			spent += cpu() - used
		}
		m.stop()
		must(b, m.keeper.Leave(b.Context()))
		m.stop = func() {}
		must(b, m.Overlay.Teardown())
		must(b, m.Network.Teardown())
	}
	reportQuantile(b, firsts, 0.5, "ms-first-p50")
	reportQuantile(b, ones, 0.5, "ms-change-p50")
	reportQuantile(b, ones, 0.99, "ms-change-p99")
	b.ReportMetric(float64(spent.Microseconds())/1000/float64(len(ones)), "ms-change-CPU")
	b.ReportMetric(more, "MB-heap")
}

// written is a node that is only a record in a store.
type written struct {
	record   peer.Node
	session  claim.Session
	revision int64
}

func (w *written) write(b *testing.B, store *etcd.Store) {
	b.Helper()
	revision, err := store.Write(b.Context(), w.session, w.record, w.revision)
	must(b, err)
	w.revision = revision
}

// writeRecords writes the records and blocks of nodes.
func writeRecords(b *testing.B, store *etcd.Store, size int) []written {
	b.Helper()
	all := make([]written, size)
	var writing errgroup.Group
	writing.SetLimit(100)
	for i := range all {
		writing.Go(func() error {
			name, hi, lo := fmt.Sprintf("peer%05d", i), byte(i>>8), byte(i)
			w := &all[i]
			kept, err := store.Keep(b.Context(), "", nil)
			if err != nil {
				return err
			}
			w.session = kept.Session
			w.record = peer.Node{Version: peer.Version, Name: name, Boot: "boot-" + name, VXLAN: backend.VXLANOf(name), MTU: 1500, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{172, 16 + hi, lo, 1})}}
			block := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 64 + hi, lo, 0}), 24)
			if w.revision, err = store.Write(b.Context(), w.session, w.record, 0); err != nil {
				return err
			}
			return store.Bind(b.Context(), claim.Claim{Block: block, Node: name, Session: w.session}, false)
		})
	}
	must(b, writing.Wait())
	return all
}
