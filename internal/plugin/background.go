package plugin

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/huskd/husk/internal/network/daemonless"
)

// Between attempts of what failed, and how many there are. After those, what is
// left waits for a repeated DEL, an ADD of the same container, or GC.
const (
	firstRetry = 100 * time.Millisecond
	attempts   = 6
)

// behind does what calls leave: it deletes links behind the back of DEL, those
// of a network that come within a while together, and closes sockets.
type background struct {
	mu      sync.Mutex
	pending map[string][]*daemonless.Detachment // by the network's directory
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
		p.log().Warn("network: links are still to be deleted, and their addresses to be freed", "network", dir, "attempt", i+1, "error", err)
		time.Sleep(pause)
		pause *= 2
	}
}

// freed is when the kernel has freed what was deleted: sockets that are closed
// earlier keep others waiting (see oneshot.Config.Close).
const freed = 100 * time.Millisecond

// close closes a call's sockets behind its back. Closing changes nothing in the
// kernel, so that there is no error to tell.
func (b *background) close(c io.Closer) error {
	b.working.Go(func() {
		time.Sleep(freed)
		_ = c.Close()
	})
	return nil
}

// closeTime is how long Close waits.
const closeTime = 10 * time.Second

// Close waits for what DEL left to be done, some seconds at most.
func (p *Plugin) Close() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.background.working.Wait()
	}()
	select {
	case <-done:
	case <-time.After(closeTime):
		p.log().Warn("network: links are still to be deleted: a repeated DEL, or GC, goes on")
	}
}
