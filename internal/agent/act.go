package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/view"
	"github.com/huskd/husk/internal/image"
	"github.com/huskd/husk/internal/manifest/criconfig"
)

// begin begins an action, and notes that it is under way. The caller holds w.mu.
func (w *worker) begin(action podplan.Action) {
	switch do := action.(type) {
	case podplan.CreateSandbox:
		w.underWay.creating = true
		w.a.background.Go(func() { w.createSandbox(do) })
	case podplan.StartContainer:
		w.underWay.starting[do.Name] = true
		ctx := w.wanted
		w.a.background.Go(func() { w.startContainer(ctx, do) })
	case podplan.PullImage:
		w.underWay.pulls[do.Image] = image.Progress{Ref: do.Image, Stage: image.Resolving}
		ctx := w.wanted
		w.a.background.Go(func() { w.pullImage(ctx, do) })
	case podplan.StopContainer:
		care{w}.stopContainer(do)
	case podplan.StopSandbox:
		w.end(do.ID, func(ctx context.Context) error { return w.a.cfg.Sandboxes.Stop(ctx, do.ID) })
	case podplan.RemoveSandbox:
		w.end(do.ID, func(ctx context.Context) error { return w.a.cfg.Sandboxes.Remove(ctx, do.ID) })
	case podplan.RemoveContainer:
		delete(w.seen.postStart, do.ID)
		delete(w.seen.messages, do.ID)
		w.end(do.ID, func(ctx context.Context) error { return w.removeContainer(ctx, do.ID) })
	}
}

// end ends something that has an ID, unless that is under way.
func (w *worker) end(id string, fn func(context.Context) error) {
	if w.underWay.ending[id] {
		return
	}
	w.underWay.ending[id] = true
	w.a.background.Go(func() {
		w.ended(id, fn(w.a.closing), func() { delete(w.underWay.ending, id) })
	})
}

// The waits before something that couldn't be ended is tried again.
const (
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// ended notes how the end of something went. What failed stays under way for a
// while, so that it isn't asked for again at once.
func (w *worker) ended(id string, err error, done func()) {
	if w.a.closing.Err() != nil {
		return // it goes on without us, and we learn of it at the next start
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.nudge()
	if err == nil {
		delete(w.underWay.tries, id)
		w.seen.problem = ""
		done()
		return
	}
	w.seen.problem = err.Error()
	n := w.underWay.tries[id]
	w.underWay.tries[id] = n + 1
	wait := min(firstRetry<<min(n, 10), lastRetry)
	teller{w}.warn("agent: not done, will be tried again", err, "in", wait)
	time.AfterFunc(wait, func() {
		w.mu.Lock()
		done()
		w.mu.Unlock()
		w.nudge()
	})
}

func (w *worker) removeContainer(ctx context.Context, id string) error {
	st, err := w.a.cfg.Containers.Get(id)
	if err != nil {
		return nil //nolint:nilerr // it is as gone as was asked
	}
	if err := w.a.cfg.Containers.Remove(ctx, id); err != nil {
		return err
	}
	if st.Log == "" {
		return nil
	}
	return view.RemoveLog(st)
}

// unconfigured is an error of a container that could not be described, because
// what its manifest refers to isn't there.
type unconfigured struct{ error }

func (u unconfigured) Unwrap() error { return u.error }

func (w *worker) createSandbox(do podplan.CreateSandbox) {
	config := criconfig.SandboxConfig(w.record().Pod, do.Attempt, w.a.cfg.Node())
	config.Labels[Label] = "true"
	ctx, end := teller{w}.span(w.a.closing, "agent/CreateSandbox")
	st, err := w.runSandbox(ctx, config, criconfig.Handler(w.manifest))
	end(err)
	if err == nil {
		w.a.owner.Store(st.ID, w)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.nudge()
	w.underWay.creating = false
	if err != nil {
		w.seen.sandboxFailure = view.Failure(err)
		teller{w}.warn("agent: sandbox", err)
		return
	}
	w.sandboxes = append(w.sandboxes, st.ID)
}

// startContainer starts a container, and runs its postStart hook unless ctx
// ends.
func (w *worker) startContainer(ctx context.Context, do podplan.StartContainer) {
	id, err := w.createAndStart(do)
	if err == nil {
		care{w}.postStart(ctx, id, criconfig.FindContainer(w.record().Pod, do.Name))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.nudge()
	delete(w.underWay.starting, do.Name)
	if err != nil {
		f := view.Failure(err)
		if _, is := errors.AsType[unconfigured](err); is {
			f.Reason = "CreateContainerConfigError"
		}
		w.seen.startFailures[do.Name] = f
		refuse(w, do.Name, f)
		teller{w}.warn("agent: start", err)
	}
}

// createAndStart returns an error if the container never ran, which then is
// gone. One that did has ended and tells itself why.
func (w *worker) createAndStart(do podplan.StartContainer) (id string, err error) {
	ctx, end := teller{w}.span(w.a.closing, "agent/StartContainer", view.ContainerName, do.Name)
	defer func() { end(err) }()
	config, err := w.containerConfig(do)
	if err != nil {
		return "", unconfigured{err}
	}
	config.Labels[Label] = "true"
	if in, err := w.a.cfg.Sandboxes.Get(do.Sandbox); err == nil {
		shareUsers(config, in.Config)
	}
	st, err := w.a.cfg.Containers.Create(ctx, do.Sandbox, config)
	if err != nil {
		return "", err
	}
	err = w.a.cfg.Containers.Start(ctx, st.ID)
	if st, getErr := w.a.cfg.Containers.Get(st.ID); err != nil && getErr == nil && !st.Started.IsZero() {
		teller{w}.warn("agent: start", err)
		return st.ID, nil
	}
	if err != nil {
		err = errors.Join(err, w.a.cfg.Containers.Remove(ctx, st.ID))
	}
	return st.ID, err
}

func (w *worker) pullImage(ctx context.Context, do podplan.PullImage) {
	w.tell(false, "", "Pulling", "pulling image "+do.Image)
	ctx, end := teller{w}.span(ctx, "agent/PullImage", view.ImageName, do.Image)
	login := criconfig.LoginFor(w.manifest, do.Image, w.record().Objects)
	_, err := w.a.cfg.Images.Pull(ctx, do.Image, image.PullOptions{Username: login.Username, Password: login.Password, Progress: func(p image.Progress) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.underWay.pulls[do.Image] = p
		w.showPulls()
	}})
	end(err)
	w.mu.Lock()
	delete(w.underWay.pulls, do.Image)
	at := w.seen.images[do.Image]
	switch {
	case err == nil:
		at.Pulled = time.Now()
		w.tell(false, "", "Pulled", "pulled image "+do.Image)
	case ctx.Err() == nil:
		at.Failure = view.Failure(err)
		teller{w}.warn("agent: pull", err)
	}
	w.seen.images[do.Image] = at
	w.mu.Unlock()
	w.nudge()
	if err == nil {
		w.a.ImagesChanged()
	}
}

// bury removes what the pod has beside its sandboxes, then its record, and says
// whether it is gone.
func (w *worker) bury() bool {
	pod := w.manifest
	w.writing.Lock()
	err := w.a.cfg.Volumes.TearDown(string(pod.UID))
	w.writing.Unlock()
	if err == nil {
		err = os.RemoveAll(criconfig.LogDirectory(pod, w.a.cfg.Node()))
	}
	if err == nil {
		err = w.a.records.Delete(string(pod.UID))
	}
	if err != nil {
		w.mu.Lock()
		w.underWay.ending["volumes"] = true
		w.mu.Unlock()
		w.ended("volumes", fmt.Errorf("pod %s: %w", nameOf(pod), err), func() { delete(w.underWay.ending, "volumes") })
		return false
	}
	w.a.forget(w)
	close(w.gone)
	return true
}

// containerConfig is CRI's message for a run of a container, with all that it
// needs on the node in place.
func (w *worker) containerConfig(do podplan.StartContainer) (*runtimeapi.ContainerConfig, error) {
	pod, node := w.record().Pod, w.a.cfg.Node()
	c := criconfig.FindContainer(pod, do.Name)
	st, err := w.a.cfg.Sandboxes.Get(do.Sandbox)
	if err != nil {
		return nil, err
	}
	img, err := w.a.cfg.Images.Get(c.Image)
	if err != nil {
		return nil, err
	}
	run := criconfig.Run{
		Attempt:   do.Attempt,
		PodIPs:    w.a.addresses(st),
		ImageRef:  img.ID,
		ImageUser: img.Config.User,
		Objects:   w.record().Objects,
	}
	if err := (care{w}).mounts(c, &run); err != nil {
		return nil, err
	}
	if err := writeHosts(w.a.cfg.Sandboxes.Files(st).Hosts, pod, run.PodIPs, node); err != nil {
		return nil, err
	}
	if err := (care{w}).mountMessage(c, &run); err != nil {
		return nil, err
	}
	config, err := criconfig.ContainerConfig(pod, c, run, node)
	if err == nil {
		err = w.a.aim(config, pod, do.Sandbox)
	}
	return config, err
}

// writeHosts writes the pod's /etc/hosts, which running containers have
// mounted: it is left alone if it is right.
func writeHosts(path string, pod *corev1.Pod, ips []string, n criconfig.Node) error {
	node, err := os.ReadFile("/etc/hosts")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	want := criconfig.HostsFile(pod, ips, node, n)
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, want) {
		return nil
	}
	return os.WriteFile(path, want, 0o644)
}
