package plugin

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/huskd/husk/internal/network/daemonless"
)

// FinishDetach is retried this often, with growing pauses. After that, the work is left to a
// repeated DEL, an ADD of the same container, or GC.
const (
	firstRetry = 100 * time.Millisecond
	attempts   = 6
)

// background does the work that calls leave: it deletes links after DEL, those of one network
// together, and closes sockets.
type background struct {
	mu      sync.Mutex
	pending map[string][]*daemonless.Detachment // by network directory
	working sync.WaitGroup
}

func (b *background) add(p *Plugin, dir string, n *daemonless.Network, r *daemonless.Detachment) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.pending == nil {
		b.pending = map[string][]*daemonless.Detachment{}
	}
	first := len(b.pending[dir]) == 0
	b.pending[dir] = append(b.pending[dir], r)
	if first {
		b.working.Go(func() {
			time.Sleep(p.Linger)
			b.finish(p, dir, n)
		})
	}
}

func (b *background) finish(p *Plugin, dir string, n *daemonless.Network) {
	b.mu.Lock()
	detachments := b.pending[dir]
	delete(b.pending, dir)
	b.mu.Unlock()
	pause := firstRetry
	for i := range attempts {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		err := n.FinishDetach(ctx, detachments...)
		cancel()
		if err == nil {
			return
		}
		p.log().Warn("network: deleting links failed; their addresses stay allocated", "network", dir, "attempt", i+1, "error", err)
		time.Sleep(pause)
		pause *= 2
	}
}

// closeDelay is longer than the kernel usually takes to free what was deleted. Closing a socket
// earlier makes other calls wait, see daemonless.Config.Close.
const closeDelay = 100 * time.Millisecond

// close closes a call's sockets in the background. Closing changes nothing in the kernel, so errors
// don't matter.
func (b *background) close(c io.Closer) error {
	b.working.Go(func() {
		time.Sleep(closeDelay)
		_ = c.Close()
	})
	return nil
}

// closeTimeout is how long Close waits.
const closeTimeout = 10 * time.Second

// Close waits for the background work, some seconds at most.
func (p *Plugin) Close() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.background.working.Wait()
	}()
	select {
	case <-done:
	case <-time.After(closeTimeout):
		p.log().Warn("network: links are still being deleted: repeat DEL, or call GC")
	}
}
