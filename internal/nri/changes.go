package nri

import (
	"context"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"

	"github.com/huskd/husk/internal/nri/adjust"
)

// changeTimeout is how long an event waits for the changes of other containers that plugins
// request in their answers. The changes continue after that.
const changeTimeout = 5 * time.Second

// changes runs the changes that plugins request. Changes of one container run in the order
// of the requests, those of different containers concurrently. They run in the background,
// because an operation that holds a container's lock may be waiting for NRI.
type changes struct {
	mu   sync.Mutex
	last map[string]chan struct{} // closed when the last change of a container has ended; by ID
}

// add runs fn after the functions added earlier for id, and sends its error.
func (c *changes) add(id string, fn func() error) <-chan error {
	ended, done := make(chan struct{}), make(chan error, 1)
	c.mu.Lock()
	before := c.last[id]
	c.last[id] = ended
	c.mu.Unlock()
	go func() {
		if before != nil {
			<-before
		}
		done <- fn()
		close(ended)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.last[id] == ended {
			delete(c.last, id)
		}
	}()
	return done
}

// start starts the changes that plugins request, and returns a channel for the error of each.
func (r *Relay) start(updates []*api.ContainerUpdate) []<-chan error {
	var done []<-chan error
	for _, u := range updates {
		done = append(done, r.changes.add(u.GetContainerId(), func() error { return r.change(u) }))
	}
	return done
}

func (r *Relay) change(u *api.ContainerUpdate) error {
	limits, err := adjust.ToCRI(u.GetLinux().GetResources())
	if err == nil {
		err = r.objects.containers.Limit(context.Background(), u.GetContainerId(), limits)
	}
	if err != nil && !u.GetIgnoreFailure() {
		r.cfg.Log.Warn("NRI: could not change a container's limits as a plugin requests", "container", u.GetContainerId(), "error", err)
		return err
	}
	return nil
}

// apply makes changes and returns those that failed or didn't end within changeTimeout.
func (r *Relay) apply(ctx context.Context, updates []*api.ContainerUpdate) (failed []*api.ContainerUpdate) {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	for i, done := range r.start(updates) {
		select {
		case err := <-done:
			if err != nil {
				failed = append(failed, updates[i])
			}
		case <-ctx.Done():
			r.cfg.Log.Warn("NRI: changing a container's limits as a plugin requests takes long; it continues in the background", "container", updates[i].GetContainerId())
			failed = append(failed, updates[i])
		}
	}
	return failed
}

// unsolicited makes changes that a plugin requests on its own.
func (r *Relay) unsolicited(ctx context.Context, updates []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
	return r.apply(ctx, updates), nil
}

// synchronize sends the existing pods and containers to a plugin that registers.
func (r *Relay) synchronize(ctx context.Context, send adaptation.SyncCB) error {
	pods, containers := r.objects.snapshot(&r.announced)
	updates, err := send(ctx, pods, containers)
	if err != nil {
		return err
	}
	r.start(updates)
	return nil
}
