package controller

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/admission"
	"github.com/huskd/husk/internal/agent/event"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/workload"
)

func newUID() types.UID { return uuid.NewUUID() }

// The lengths of generated names are an API server's.
const (
	suffixLength = 5
	maxPrefix    = 63 - suffixLength
)

// createAtOnce is the number of pods that are created at the same time, createTimeout how long that
// may take. A pod of the same name may have to be removed first.
const (
	createAtOnce  = 32
	createTimeout = 10 * time.Second
)

// act removes and creates pods.
func (c *Controller) act(ctx context.Context, w work) {
	for _, uid := range w.remove {
		if err := c.cfg.Pods.Delete(uid); err != nil && !errdefs.IsNotFound(err) {
			c.cfg.Log.Error("workload: removing a pod failed", "pod", uid, "error", err)
		}
	}
	if len(w.create) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	var running errgroup.Group
	running.SetLimit(createAtOnce)
	var mu sync.Mutex
	failed := map[*entry]error{}
	for _, todo := range w.create {
		running.Go(func() error {
			if err := c.create(ctx, todo); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed[todo.owner] = err
			}
			return nil
		})
	}
	_ = running.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, todo := range w.create {
		e := todo.owner
		if failed[e] == nil {
			e.refused, e.failures, e.retry = "", 0, time.Time{}
		}
	}
	for e, err := range failed {
		c.postpone(e, err)
	}
	c.Nudge()
}

// create starts a pod.
func (c *Controller) create(ctx context.Context, todo creation) error {
	pod := todo.pod
	pod.UID = newUID()
	if prefix := pod.GenerateName; pod.Name == "" {
		pod.Name = prefix[:min(len(prefix), maxPrefix)] + rand.String(suffixLength)
		pod.GenerateName = ""
	}
	_, _, err := c.cfg.Pods.Apply(ctx, pod, todo.objects, Source+todo.owner.Workload.String())
	return err
}

// The delay before pods that could not be created are tried again. It doubles with each failure.
const (
	firstRetry   = time.Second
	longestRetry = time.Minute
)

// postpone notes why pods could not be created, and when to try again. The caller holds c.mu.
func (c *Controller) postpone(e *entry, err error) {
	delay := longestRetry
	if e.failures < 6 {
		delay = firstRetry << e.failures
	}
	e.failures++
	e.retry = time.Now().Add(delay)
	if text := err.Error(); text != e.refused {
		e.refused = text
		c.report(e, event.Event{Warning: true, Reason: "FailedCreate", Message: fmt.Sprintf("a pod could not be created: %v", err)})
	}
}

// view returns a pod of the agent in package workload's terms.
func view(p agent.Pod) workload.Pod {
	out := workload.Pod{
		Name: p.Manifest.Name, UID: string(p.Manifest.UID),
		Revision: workload.RevisionOf(p.Manifest), Ordinal: workload.OrdinalOf(p.Manifest),
		Created:   p.Created,
		Ready:     p.Status.Ready && p.Want == podplan.Run,
		Succeeded: p.Status.Phase == podplan.PhaseSucceeded,
		Failed:    p.Status.Phase == podplan.PhaseFailed,
		Removing:  p.Want == podplan.Remove,
		Stopped:   p.Want == podplan.Stop || p.Status.Phase == podplan.PhaseStopped,
		Disrupted: p.Status.Reason == podplan.ReasonEvicted || p.Status.Reason == podplan.ReasonPreempting,
		Reason:    p.Status.Reason,
		Exits:     map[string]int32{},
	}
	if strings.HasPrefix(p.Status.Reason, admission.OutOf) {
		out.Unfit = p.Status.Message
	}
	if p.Status.Message != "" {
		out.Reason += ": " + p.Status.Message
	}
	for i := range p.Status.Containers {
		s := &p.Status.Containers[i]
		out.Restarts += int32(s.Restarts)
		if s.State == podplan.Terminated {
			out.Exits[s.Name] = int32(s.ExitCode)
		}
		if s.Finished.After(out.Finished) {
			out.Finished = s.Finished
		}
	}
	return out
}
