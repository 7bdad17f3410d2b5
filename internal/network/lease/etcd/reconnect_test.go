package etcd_test

import (
	"net"
	"sync/atomic"
	"testing"

	"github.com/huskd/husk/internal/network/lease/etcd"
)

// TestReconnects: however long etcd has been away, a node goes on trying to reach it. With waits
// like gRPC's own, twelve attempts would take five minutes.
func TestReconnects(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var attempts atomic.Int32
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			attempts.Add(1)
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	join(t, "a", etcd.Config{Endpoints: []string{"http://" + l.Addr().String()}})
	eventually(t, "the node has tried to connect twelve times", func() bool { return attempts.Load() >= 12 })
}
