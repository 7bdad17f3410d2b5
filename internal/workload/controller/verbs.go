package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/workload"
)

// View is the state of a workload at one moment.
type View struct {
	*workload.Workload
	Status workload.Status
	Source string
	// Replicas is the number of pods, as the manifest or Scale says.
	Replicas int32
	Created  time.Time
	Removing bool
	// Newer is closed when a newer state may be available.
	Newer <-chan struct{}
}

func (c *Controller) view(e *entry) View {
	v := View{
		Workload: e.Workload, Status: e.status, Source: e.Source, Replicas: e.Workload.Replicas,
		Created: e.State.Created, Removing: e.Removing, Newer: c.newer,
	}
	if e.State.Scale != nil {
		v.Replicas = *e.State.Scale
	}
	return v
}

// List returns all workloads, sorted.
func (c *Controller) List() []View {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []View
	for _, ref := range slices.SortedFunc(maps.Keys(c.entries), compareRefs) {
		out = append(out, c.view(c.entries[ref]))
	}
	return out
}

// Get returns a workload.
func (c *Controller) Get(ref workload.Ref) (View, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, err := c.entry(ref)
	if err != nil {
		return View{}, err
	}
	return c.view(e), nil
}

// entry returns a workload. The caller holds c.mu.
func (c *Controller) entry(ref workload.Ref) (*entry, error) {
	if e := c.entries[ref]; e != nil {
		return e, nil
	}
	return nil, errdefs.ErrNotFound.WithMessage(fmt.Sprintf("no %s: husk rollout status lists what there is", short(ref)))
}

// Remove removes a workload with its pods, and returns once they are gone. It refuses a workload
// that is declared: that one has to be removed where it is declared.
func (c *Controller) Remove(ctx context.Context, ref workload.Ref) error {
	c.mu.Lock()
	e, err := c.entry(ref)
	if err == nil && c.isDeclared(ref, e.Source) {
		_, at, _ := strings.Cut(e.Source, ":")
		err = errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("%s is declared in %s: remove it there", ref, at))
	}
	if err == nil {
		c.beginRemoval(e)
	}
	c.mu.Unlock()
	if err != nil {
		return err
	}
	if err := c.cfg.Journal.Sync(ctx); err != nil {
		return fmt.Errorf("%s is being removed, but would exist again after a power failure: %w", ref, err)
	}
	select {
	case <-e.gone:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s is still being removed: %w", ref, context.Cause(ctx))
	}
}

// Scale sets the number of a workload's pods, until its manifest is changed or run again.
func (c *Controller) Scale(ctx context.Context, ref workload.Ref, replicas int32) error {
	return c.changeState(ctx, ref, func(s *workload.State) error {
		switch ref.Kind {
		case workload.Deployment, workload.ReplicaSet, workload.ReplicationController, workload.StatefulSet:
			s.Scale = &replicas
			return nil
		}
		return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("%s can't be scaled: deployments, replica sets and stateful sets can", ref))
	})
}

// Restart replaces the pods of a workload, as a change of its template would.
func (c *Controller) Restart(ctx context.Context, ref workload.Ref) error {
	return c.changeState(ctx, ref, func(s *workload.State) error {
		switch ref.Kind {
		case workload.Deployment, workload.StatefulSet, workload.DaemonSet:
			s.Restarted = time.Now().Round(0)
			return nil
		}
		return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("%s can't be restarted: deployments, stateful sets and daemon sets can", ref))
	})
}

func (c *Controller) changeState(ctx context.Context, ref workload.Ref, change func(*workload.State) error) error {
	c.mu.Lock()
	e, err := c.entry(ref)
	if err == nil && e.Removing {
		err = errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("%s is being removed", ref))
	}
	if err == nil {
		rec := e.record
		if err = change(&rec.State); err == nil {
			err = c.save(e, rec)
		}
	}
	c.mu.Unlock()
	if err != nil {
		return err
	}
	if err := c.cfg.Journal.Sync(ctx); err != nil {
		return fmt.Errorf("%s has changed, but not after a power failure: %w", ref, err)
	}
	return nil
}
