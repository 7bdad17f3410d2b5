package image

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/huskd/husk/internal/image/registry"
)

// flightKey is what must be the same for two calls to share one pull. The
// login is part of it, so that nobody gets by another's what is denied to him.
type flightKey struct {
	name, platform string
	login          registry.Login
}

// flight is a pull that is going on, and who waits for it.
type flight struct {
	tracker *tracker
	cancel  context.CancelFunc
	waiters int
	done    chan struct{} // closed when image and err are set
	image   Image
	err     error
}

// flights are all of them. The zero value is ready for use.
type flights struct {
	mu sync.Mutex
	by map[flightKey]*flight
}

// add is called with the lock held.
func (x *flights) add(key flightKey, f *flight) {
	if x.by == nil {
		x.by = map[flightKey]*flight{}
	}
	x.by[key] = f
}

// land tells all who wait that the flight has ended.
func (x *flights) land(key flightKey, f *flight) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.forget(key, f)
	close(f.done)
}

// leave is called once by each who waited. The last one cancels the flight.
func (x *flights) leave(key flightKey, f *flight) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if f.waiters--; f.waiters == 0 {
		x.forget(key, f) // so that nobody joins what is being cut
		f.cancel()
	}
}

// forget is called with the lock held.
func (x *flights) forget(key flightKey, f *flight) {
	if x.by[key] == f {
		delete(x.by, key)
	}
}

// wait waits for the end of the flight or of ctx. listen may be nil.
func (f *flight) wait(ctx context.Context, listen func(Progress)) (Image, error) {
	var tick <-chan time.Time
	if listen != nil {
		ticker := time.NewTicker(progressInterval)
		defer ticker.Stop()
		tick = ticker.C
	}
	for {
		select {
		case <-f.done:
			if f.err == nil && listen != nil {
				listen(f.tracker.snapshot())
			}
			return f.image, f.err
		case <-ctx.Done():
			return Image{}, fmt.Errorf("pull was cut while %s: %w", f.tracker.snapshot().Stage, ctx.Err())
		case <-tick:
			listen(f.tracker.snapshot())
		}
	}
}
