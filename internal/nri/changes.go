package nri

import (
	"context"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"

	"github.com/huskd/husk/internal/nri/adjust"
)

// settle is how long an event waits for the changes of other containers that
// plugins answered it with. They are made in any case.
const settle = 5 * time.Second

// changes of containers are made in the order in which plugins asked for them,
// those of one after another, those of several at once. Nothing of NRI waits for
// them, as who has a container's turn may be waiting for NRI.
type changes struct {
	mu   sync.Mutex
	last map[string]chan struct{} // closed when the latest change of a container is made
}

// add has fn called after what was added before under id. It sends fn's error.
func (c *changes) add(id string, fn func() error) <-chan error {
	made, done := make(chan struct{}), make(chan error, 1)
	c.mu.Lock()
	before := c.last[id]
	c.last[id] = made
	c.mu.Unlock()
	go func() {
		if before != nil {
			<-before
		}
		done <- fn()
		close(made)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.last[id] == made {
			delete(c.last, id)
		}
	}()
	return done
}

// begin begins to make changes that plugins want, and returns how each will end.
func (r *Relay) begin(updates []*api.ContainerUpdate) []<-chan error {
	var done []<-chan error
	for _, u := range updates {
		done = append(done, r.changes.add(u.GetContainerId(), func() error { return r.change(u) }))
	}
	return done
}

func (r *Relay) change(u *api.ContainerUpdate) error {
	limits, err := adjust.ToCRI(u.GetLinux().GetResources())
	if err == nil {
		err = r.containers.Limit(context.Background(), u.GetContainerId(), limits)
	}
	if err != nil && !u.GetIgnoreFailure() {
		r.cfg.Log.Warn("NRI: a plugin's change of a container's limits failed", "container", u.GetContainerId(), "error", err)
		return err
	}
	return nil
}

// apply makes changes and returns those that failed; after settle it leaves the
// others to themselves.
func (r *Relay) apply(ctx context.Context, updates []*api.ContainerUpdate) (failed []*api.ContainerUpdate) {
	ctx, cancel := context.WithTimeout(ctx, settle)
	defer cancel()
	for i, done := range r.begin(updates) {
		select {
		case err := <-done:
			if err != nil {
				failed = append(failed, updates[i])
			}
		case <-ctx.Done():
			r.cfg.Log.Warn("NRI: a plugin's change of a container's limits still waits for the container", "container", updates[i].GetContainerId())
			failed = append(failed, updates[i])
		}
	}
	return failed
}

// unsolicited makes changes that a plugin wants by itself.
func (r *Relay) unsolicited(ctx context.Context, updates []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
	return r.apply(ctx, updates), nil
}

// synchronize tells a plugin that registers what is there.
func (r *Relay) synchronize(ctx context.Context, tell adaptation.SyncCB) error {
	pods, containers := r.present()
	updates, err := tell(ctx, pods, containers)
	if err != nil {
		return err
	}
	r.begin(updates)
	return nil
}
