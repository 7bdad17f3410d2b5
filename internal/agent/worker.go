package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/view"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/image"
	"github.com/huskd/husk/internal/logs"
	"github.com/huskd/husk/internal/manifest/criconfig"
	"github.com/huskd/husk/internal/manifest/podspec"
	"github.com/huskd/husk/internal/manifest/remedy"
)

// worker runs one pod. It asks podplan what to do and has its parts do it. Each part has its own
// fields, which podState.mu guards.
type worker struct {
	*podState
	// gone is closed once nothing of a removed pod is left.
	gone     chan struct{}
	backoffs podplan.Backoffs

	inventory *inventory
	images    *puller
	volumes   *volumes
	messages  *messages
	prober    *prober
	launcher  *launcher
	stopper   *stopper
	resizer   *resizer
	tasks     *retrier
	published *publisher
}

func (a *Agent) newWorker(rec record) *worker {
	s := &podState{a: a, manifest: rec.Pod, wake: make(chan struct{}, 1), rec: rec}
	s.startCtx, s.cancelStarts = context.WithCancel(a.closing)
	w := &worker{podState: s, gone: make(chan struct{})}
	w.inventory = &inventory{podState: s}
	w.published = &publisher{podState: s}
	w.tasks = &retrier{podState: s, running: map[string]bool{}, failures: map[string]int{}, waiting: map[string]func() bool{}}
	w.images = &puller{podState: s, published: w.published, pulls: map[string]image.Progress{}, results: map[string]podplan.Image{}, fresh: map[string]string{}}
	w.volumes = &volumes{podState: s, images: w.images}
	w.messages = &messages{podState: s, known: map[string]string{}}
	w.prober = &prober{podState: s, hasProbes: hasProbes(rec.Pod), postStart: map[string]string{}}
	w.launcher = &launcher{
		podState: s, inventory: w.inventory, images: w.images, volumes: w.volumes, messages: w.messages, prober: w.prober,
		starting: map[string]bool{}, startFailures: map[string]podplan.Failure{},
	}
	w.stopper = &stopper{podState: s, prober: w.prober, tasks: w.tasks, deadlines: map[string]time.Time{}, hooks: map[string]*preStop{}}
	w.resizer = &resizer{podState: s, tasks: w.tasks}
	w.publish(podplan.Decision{Status: podplan.Initial(w.spec())}, snapshot{}) // it may be listed before its first step
	return w
}

func (w *worker) start() { w.a.background.Go(w.run) }

// run decides and acts until the pod is gone or the agent is closed.
func (w *worker) run() {
	for w.a.closing.Err() == nil {
		next, gone := w.step()
		if gone && w.cleanUp() {
			return
		}
		var alarm <-chan time.Time
		if !next.IsZero() {
			alarm = time.After(time.Until(next))
		}
		select {
		case <-w.wake:
		case <-alarm:
		case <-w.a.closing.Done():
		}
	}
}

// step decides what to do now and starts it. It returns when to decide again, if nothing changes
// before, and whether only the cleanup of the pod is left.
func (w *worker) step() (next time.Time, gone bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := w.inventory.list()
	w.prober.watch(seen, w.launcher.starting, w.stopper.stopping)
	if len(w.launcher.starting) == 0 {
		w.resizer.apply(seen)
	}
	if w.launcher.retry {
		w.launcher.retry, w.backoffs = false, w.backoffs.RetrySandbox()
	}
	d := podplan.Plan(w.spec(), w.observe(seen), time.Now())
	w.checkAdmission(&d, seen)
	w.backoffs = d.Backoffs
	for _, action := range d.Actions {
		w.begin(action)
	}
	w.publish(d, seen)
	w.continueEviction()
	return d.Next, d.Gone && w.idle()
}

// observe translates what exists and what is under way into podplan's terms. The caller holds w.mu.
func (w *worker) observe(seen snapshot) podplan.Observed {
	o := podplan.Observed{
		Images:         map[string]podplan.Image{},
		Creating:       w.launcher.creating,
		Starting:       maps.Clone(w.launcher.starting),
		SandboxFailure: w.launcher.sandboxFailure,
		StartFailures:  maps.Clone(w.launcher.startFailures),
		Backoffs:       w.backoffs,
	}
	maps.Copy(o.StartFailures, w.rec.Refused)
	for _, st := range seen.sandboxes {
		o.Sandboxes = append(o.Sandboxes, podplan.Sandbox{
			ID:      st.ID,
			Attempt: attempt(st),
			State:   view.SandboxState(st),
			IPs:     w.a.addresses(st),

			Displaced: st.Displaced.Message,
		})
	}
	for _, st := range seen.containers {
		if w.launcher.starting[st.Name()] && st.Started.IsZero() {
			continue
		}
		o.Containers = append(o.Containers, podplan.Container{
			ID: st.ID, Name: st.Name(), Sandbox: st.Sandbox, Attempt: st.Config.GetMetadata().GetAttempt(),
			State:   view.ContainerState(st),
			Started: st.Started, Finished: st.Exit.At,
			ExitCode: st.Exit.Code, OOMKilled: st.Exit.OOMKilled, Reason: st.Reason, Message: w.messages.of(st),
			Deadline: w.stopper.deadlines[st.ID],
			Health:   w.prober.health(st.ID),
			Outdated: outdated(w.rec.Pod, st),
		})
	}
	spec := &w.rec.Pod.Spec
	for c := range podspec.Containers(spec) {
		o.Images[c.Image] = w.images.state(c.Image)
	}
	for _, c := range spec.EphemeralContainers {
		o.Images[c.Image] = w.images.state(c.Image)
	}
	return o
}

// outdated reports whether a run must make way for a new one, because its container now has another
// image, or resources that need a restart.
func outdated(pod *corev1.Pod, run container.Status) bool {
	c := criconfig.FindContainer(pod, run.Name())
	if c == nil {
		return false
	}
	image := run.Config.GetImage().GetUserSpecifiedImage()
	return image != "" && image != c.Image || resizeRestarts(pod, c, run)
}

// checkAdmission drops the actions of a pod that doesn't fit on the node, and releases the capacity
// of one that has ended. What already runs is admitted even if it doesn't fit, and so are the pods
// of an API server, whose scheduler has done the counting. The caller holds w.mu.
func (w *worker) checkAdmission(d *podplan.Decision, seen snapshot) {
	ended := w.spec().Want != podplan.Run || d.Status.Phase == podplan.PhaseSucceeded || d.Status.Phase == podplan.PhaseFailed
	if ended {
		w.volumes.noteEnd(d.Status.Phase)
		if (d.Gone || d.Status.Phase != podplan.PhaseRunning && d.Status.Phase != podplan.PhasePending) && w.a.admitted.Release(w.uid()) {
			w.a.background.Go(w.a.capacityFreed)
		}
		return
	}
	force := seen.occupied() || w.launcher.creating || w.rec.from() == remedy.Cluster
	if refusal := w.a.admitted.Admit(w.rec.Pod, force); refusal.Reason != "" {
		d.Actions, d.Backoffs = nil, w.backoffs
		d.Status.Reason, d.Status.Message, d.Status.Stuck = refusal.Reason, refusal.Message, refusal.Final
		if pod := w.rec.Pod; criconfig.Critical(pod) {
			w.a.background.Go(func() { w.a.preemptFor(pod) })
		}
	}
}

// begin starts an action in the background. The caller holds w.mu.
func (w *worker) begin(action podplan.Action) {
	switch do := action.(type) {
	case podplan.CreateSandbox:
		w.launcher.creating = true
		w.a.background.Go(func() { w.launcher.createSandbox(do.Attempt) })
	case podplan.StartContainer:
		w.launcher.starting[do.Name] = true
		ctx := w.startCtx
		w.a.background.Go(func() { w.launcher.startContainer(ctx, do) })
	case podplan.PullImage:
		w.images.start(do.Image)
	case podplan.StopContainer:
		w.stopper.stop(do)
	case podplan.StopSandbox:
		w.tasks.run(do.ID, func(ctx context.Context) error { return w.a.cfg.Sandboxes.Stop(ctx, do.ID) })
	case podplan.RemoveSandbox:
		w.tasks.run(do.ID, func(ctx context.Context) error { return w.a.cfg.Sandboxes.Remove(ctx, do.ID) })
	case podplan.RestartAll:
		w.tasks.run(restartTask, func(context.Context) error { return w.launcher.restartAll(do) })
	case podplan.RemoveContainer:
		delete(w.prober.postStart, do.ID)
		delete(w.messages.known, do.ID)
		w.tasks.run(do.ID, func(ctx context.Context) error { return w.removeContainer(ctx, do.ID) })
	}
}

func (w *worker) removeContainer(ctx context.Context, id string) error {
	st, err := w.a.cfg.Containers.Get(id)
	if err != nil {
		return nil //nolint:nilerr // it is gone already
	}
	if err := w.a.cfg.Containers.Remove(ctx, id); err != nil || st.Log == "" {
		return err
	}
	return errors.Join(w.a.cfg.Logs.Unlink(st.Log, id), logs.Remove(st.Log))
}

// idle reports whether nothing is under way. The caller holds w.mu.
func (w *worker) idle() bool {
	return !w.launcher.creating && len(w.launcher.starting) == 0 && len(w.images.pulls) == 0 && len(w.tasks.running) == 0 && len(w.stopper.deadlines) == 0
}

// cleanUp removes what the pod has besides its sandboxes, then its record. It reports whether that
// succeeded.
func (w *worker) cleanUp() bool {
	err := w.volumes.remove()
	if err == nil {
		err = w.a.cfg.Logs.Remove(w.uid())
	}
	if err == nil {
		err = w.a.records.Delete(w.uid())
	}
	if err != nil {
		w.mu.Lock()
		w.tasks.running[cleanupTask] = true
		w.mu.Unlock()
		w.tasks.finish(cleanupTask, fmt.Errorf("pod %s: %w", w.name(), err), func() { delete(w.tasks.running, cleanupTask) })
		return false
	}
	w.a.forget(w)
	close(w.gone)
	return true
}

// want changes what should become of the pod. A removal can't be taken back: only its grace can
// still change.
func (w *worker) want(want podplan.Want, grace *time.Duration) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	rec := w.rec
	if rec.Want == podplan.Remove {
		want = podplan.Remove
	}
	rec.Grace = grace
	if want == podplan.Run {
		rec.Since, rec.Started, rec.First, rec.Evicted = time.Time{}, time.Now(), w.inventory.nextAttempt(), nil
		for _, c := range rec.Pod.Spec.EphemeralContainers {
			rec.giveUp(c.Name, "the pod was started again") // otherwise it would run again, too
		}
	} else if rec.Want == podplan.Run {
		rec.Since = time.Now()
	}
	rec.Want = want
	put := w.a.records.Put
	if want != podplan.Run {
		put = w.a.records.PutUsingReserve
	}
	if err := w.save(put, rec); err != nil {
		return err
	}
	w.cancelStarts()
	if want == podplan.Run {
		w.startCtx, w.cancelStarts = context.WithCancel(w.a.closing)
		w.resetBackoffs()
	}
	// A caller of await must not see the state of before.
	w.published.update(func(p *Pod) { p.Want, p.Finished = want, false })
	w.nudge()
	return nil
}

// resetBackoffs makes what has failed be tried again at once. The caller holds w.mu.
func (w *worker) resetBackoffs() {
	w.backoffs = w.backoffs.Reset()
	clear(w.launcher.startFailures)
}

// drain stops the pod within the budget, until huskd is started again.
func (w *worker) drain(budget time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	grace := min(budget, time.Duration(*w.manifest.Spec.TerminationGracePeriodSeconds)*time.Second)
	rec := w.rec
	rec.Want, rec.Since, rec.Grace = podplan.Stop, time.Now(), &grace
	w.drained = &rec
	w.cancelStarts()
	w.published.update(func(p *Pod) { p.Finished = false })
	w.nudge()
}

// await waits until ok returns true for the pod, or the pod is gone.
func (w *worker) await(ctx context.Context, what string, ok func(Pod) bool) error {
	for {
		p := w.published.pod()
		if ok(p) {
			return nil
		}
		select {
		case <-w.gone:
			return nil
		case <-p.Newer:
		case <-w.a.closing.Done():
			return fmt.Errorf("pod %s is not %s yet: huskd is shutting down, try again once it is back", p.Name(), what)
		case <-ctx.Done():
			why := ""
			if p.Problem != "" {
				why = ": " + p.Problem
			}
			return fmt.Errorf("pod %s is still being %s%s: %w", p.Name(), what, why, context.Cause(ctx))
		}
	}
}

// publish makes a decision visible to List and Get. The caller holds w.mu.
func (w *worker) publish(d podplan.Decision, seen snapshot) {
	finished := w.spec().Want != podplan.Run || d.Status.Phase == podplan.PhaseSucceeded || d.Status.Phase == podplan.PhaseFailed
	finished = finished && len(d.Actions) == 0 && w.idle() && !seen.occupied()
	w.published.publish(Pod{
		Manifest: w.rec.Pod, Source: w.rec.Source, Want: w.rec.Want, Created: w.rec.Started,
		Status: d.Status, Sandboxes: seen.sandboxes, Containers: seen.containers, ImageRefs: w.imageRefs(seen), Pulls: w.images.progress(),
		Finished: finished, Problem: w.tasks.problem, Resize: w.resizer.status(),
	})
}

// imageRefs returns Pod.ImageRefs.
func (w *worker) imageRefs(seen snapshot) map[string]string {
	out := map[string]string{}
	for _, st := range seen.containers {
		if out[st.ImageID] != "" {
			continue
		}
		if img, err := w.a.cfg.Images.Get(st.ImageID); err == nil && len(img.Digests) > 0 {
			out[st.ImageID] = img.Digests[0]
		}
	}
	return out
}
