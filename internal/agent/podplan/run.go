package podplan

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// run starts the pod and keeps it running.
func (p *planner) run() {
	p.removeOldRecords()
	if !p.stopOldSandboxes() {
		return
	}
	if !p.sandboxUsable() {
		p.createSandbox()
		return
	}
	if p.restartAll() {
		return
	}
	p.stopUnhealthy()
	for _, c := range p.ephemerals() {
		if _, refused := p.finalStartFailure(c.name); len(p.runs[c.name]) == 0 && !refused {
			p.start(c)
		}
	}
	for _, c := range p.toStart() {
		p.start(c)
	}
}

// stopOldSandboxes stops sandboxes other than the usable one, and reports whether all of them are
// stopped. A new sandbox may need the same ports and volumes, so it must wait until then.
func (p *planner) stopOldSandboxes() bool {
	old := func(sandbox string) bool { return !p.sandboxUsable() || sandbox != p.current.ID }
	var left []Container
	for _, c := range p.o.Containers {
		if old(c.Sandbox) && live(c) {
			left = append(left, c)
		}
	}
	if len(left) > 0 {
		p.stopInOrder(left, func(c Container) { p.stop(c, p.now) })
		return false
	}
	if !p.sandboxUsable() && len(p.o.Starting) > 0 {
		return false // one of them may still start
	}
	stopped := true
	for _, s := range p.o.Sandboxes {
		if !old(s.ID) || s.State == SandboxStopped {
			continue
		}
		stopped = false
		if s.State != SandboxStopping {
			p.do(StopSandbox{s.ID})
		}
	}
	return stopped
}

// createSandbox creates the next sandbox, and pulls images in the meantime.
func (p *planner) createSandbox() {
	for _, c := range p.allContainers() {
		if c.init || p.shouldStart(c, Container{}, false) {
			p.ensureImage(c)
		}
	}
	if p.o.Creating || p.sandboxBackingOff() {
		return
	}
	attempt := uint32(0)
	if p.current != nil {
		attempt = p.current.Attempt + 1
	}
	p.do(CreateSandbox{attempt})
}

// toStart returns the containers that should run but don't.
func (p *planner) toStart() []podContainer {
	var out []podContainer
	initialized := p.initialized()
	for _, c := range p.allContainers() {
		run, ok := p.inCurrentSandbox(c.name)
		switch {
		case !c.init:
			if !initialized {
				return out
			}
			if p.shouldStart(c, run, ok) {
				out = append(out, c)
			}
		case c.runsToCompletion:
			if initialized || ok && succeeded(run) {
				continue
			}
			if !ok || run.State != ContainerRunning {
				out = append(out, c)
			}
			return out
		default:
			if !ok || run.State != ContainerRunning {
				out = append(out, c)
			} else if p.hasStarted(c, run) {
				continue
			}
			if !initialized {
				return out
			}
		}
	}
	return out
}

// start brings a container one step closer to running: earlier runs are stopped first, then the
// image is pulled, then the container starts.
func (p *planner) start(c podContainer) {
	if p.o.Starting[c.name] || len(p.neverRan[c.name]) > 0 {
		return
	}
	attempt := uint32(0)
	for _, run := range p.runs[c.name] {
		if live(run) {
			p.stop(run, p.now)
			return
		}
		attempt = max(attempt, run.Attempt+1)
	}
	key := keyContainer(c.name)
	if p.backingOff(key, p.backoffs[key].containerDelay()) || !p.ensureImage(c) {
		return
	}
	p.do(StartContainer{c.name, p.current.ID, attempt})
}

// ensureImage reports whether a container's image is ready for its next start, and pulls it if not.
// Policy Always requires a pull before each start.
func (p *planner) ensureImage(c podContainer) bool {
	image := p.o.Images[c.Image]
	var since time.Time
	if runs := p.runs[c.name]; len(runs) > 0 && !runs[0].Started.After(p.now) { // otherwise the clock was set back
		since = runs[0].Started
	}
	switch {
	case image.State == ImagePulling, image.State == ImageMisnamed:
		return false
	case image.State == ImageUnclear:
		p.wakeAt(p.now.Add(minDelay))
		return false
	case image.State == ImagePresent && (!image.alwaysPulled(c.ImagePullPolicy) || image.Pulled.After(since)):
		return true
	case c.ImagePullPolicy == corev1.PullNever:
		return false
	}
	key := keyImage(c.Image)
	if !p.backingOff(key, p.backoffs[key].imageDelay()) {
		p.pull(c.Image)
	}
	return false
}

// alwaysPulled reports whether an image with this policy is pulled although the node has it.
// Without a policy, which only manifests can leave out, an image of an archive is not: the image
// that a registry has under the same name may be somebody else's.
func (i Image) alwaysPulled(policy corev1.PullPolicy) bool {
	return policy == corev1.PullAlways || policy == "" && !i.Loaded
}

// pull pulls an image, once for all containers that use it.
func (p *planner) pull(image string) {
	for _, a := range p.decision.Actions {
		if a == (PullImage{image}) {
			return
		}
	}
	p.do(PullImage{image})
}
