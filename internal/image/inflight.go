package image

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/huskd/husk/internal/image/access"
	"github.com/huskd/husk/internal/image/registry"
)

// pullKey identifies a pull that several calls can share. It includes the login, and whose it is: a
// pull is not shared across credentials.
type pullKey struct {
	name, platform string
	login          registry.Login
	access         access.Kind
	secret         access.Secret
}

// inflightPull is a running pull and the number of calls that wait for it.
type inflightPull struct {
	tracker *tracker
	cancel  context.CancelFunc
	waiters int           // guarded by inflight.mu
	done    chan struct{} // closed when image and err are set
	image   Image
	err     error
}

// inflight holds the running pulls. Its zero value is ready for use.
type inflight struct {
	mu    sync.Mutex
	pulls map[pullKey]*inflightPull
}

// add adds a pull. The caller holds mu.
func (x *inflight) add(key pullKey, p *inflightPull) {
	if x.pulls == nil {
		x.pulls = map[pullKey]*inflightPull{}
	}
	x.pulls[key] = p
}

// finish removes a pull and wakes its waiters.
func (x *inflight) finish(key pullKey, p *inflightPull) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.remove(key, p)
	close(p.done)
}

// leave is called once by each waiter. The last one cancels the pull.
func (x *inflight) leave(key pullKey, p *inflightPull) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if p.waiters--; p.waiters == 0 {
		x.remove(key, p) // no call may join a cancelled pull
		p.cancel()
	}
}

// remove removes a pull unless another has taken its place. The caller holds mu.
func (x *inflight) remove(key pullKey, p *inflightPull) {
	if x.pulls[key] == p {
		delete(x.pulls, key)
	}
}

// wait waits until the pull or ctx ends. onProgress may be nil.
func (p *inflightPull) wait(ctx context.Context, onProgress func(Progress)) (Image, error) {
	var tick <-chan time.Time
	if onProgress != nil {
		ticker := time.NewTicker(progressInterval)
		defer ticker.Stop()
		tick = ticker.C
	}
	for {
		select {
		case <-p.done:
			if p.err == nil && onProgress != nil {
				onProgress(p.tracker.snapshot())
			}
			return p.image, p.err
		case <-ctx.Done():
			return Image{}, fmt.Errorf("pull interrupted while %s: %w", p.tracker.snapshot().Stage, ctx.Err())
		case <-tick:
			onProgress(p.tracker.snapshot())
		}
	}
}
