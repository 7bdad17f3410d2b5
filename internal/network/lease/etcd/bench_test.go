package etcd_test

import (
	"testing"

	"github.com/huskd/husk/internal/network/lease/etcd"
	"github.com/huskd/husk/internal/network/peer"
)

// BenchmarkAnnounce is how long a changed record takes from one node to another.
func BenchmarkAnnounce(b *testing.B) {
	s := start(b)
	cfg := etcd.Config{Endpoints: []string{s.url}}
	from, to := join(b, "a", cfg), join(b, "b", cfg)
	from.ready()
	to.ready()
	record := peer.Node{Addresses: from.announced.Addresses}
	for i := 0; b.Loop(); i++ {
		record.MTU = 1400 + i%100
		from.Announce(record)
		eventually(b, "the record is there", func() bool {
			peers := to.now().Peers
			return len(peers) == 1 && peers[0].MTU == record.MTU
		})
	}
}
