package agent

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/view"
	"github.com/huskd/husk/internal/image"
	"github.com/huskd/husk/internal/manifest/criconfig"
	"github.com/huskd/husk/internal/trace"
)

// puller pulls the images of a pod.
type puller struct {
	*podState
	published *publisher
	pulls     map[string]image.Progress // under way, by image
	results   map[string]podplan.Image  // of earlier pulls, by image
}

// start pulls an image in the background. The caller holds mu.
func (p *puller) start(name string) {
	p.pulls[name] = image.Progress{Ref: name, Stage: image.Resolving}
	ctx := p.startCtx
	p.a.background.Go(func() { p.pull(ctx, name) })
}

func (p *puller) pull(ctx context.Context, name string) {
	ctx, end := p.span(ctx, "agent/PullImage", trace.Image, name)
	_, err := p.fetch(ctx, name, func(progress image.Progress) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.pulls[name] = progress
		p.published.update(func(pod *Pod) { pod.Pulls = p.progress() })
	})
	end(err)
	p.mu.Lock()
	delete(p.pulls, name)
	result := p.results[name]
	switch {
	case err == nil:
		result.Pulled = time.Now()
	case ctx.Err() == nil:
		result.Failure = view.Failure(err)
		p.warn("agent: pulling an image failed", err)
	}
	p.results[name] = result
	p.mu.Unlock()
	p.nudge()
	if err == nil {
		p.a.ImagesChanged()
	}
}

// fetch pulls an image with the pod's credentials. progress may be nil.
func (p *puller) fetch(ctx context.Context, name string, progress func(image.Progress)) (image.Image, error) {
	p.normalEvent("Pulling", "pulling image "+name)
	login := criconfig.LoginFor(p.manifest, name, p.record().Objects)
	img, err := p.a.cfg.Images.Pull(ctx, name, image.PullOptions{Username: login.Username, Password: login.Password, Progress: progress})
	if err == nil {
		p.normalEvent("Pulled", "pulled image "+name)
	}
	return img, err
}

// progress returns the pulls that are under way. The caller holds mu.
func (p *puller) progress() []image.Progress { return slices.Collect(maps.Values(p.pulls)) }

// state returns what is known of an image. The caller holds mu.
func (p *puller) state(name string) podplan.Image {
	out := p.results[name]
	out.State = podplan.ImageAbsent
	if _, err := p.a.cfg.Images.Get(name); err == nil {
		out.State = podplan.ImagePresent
	}
	if _, ok := p.pulls[name]; ok {
		out.State = podplan.ImagePulling
	}
	return out
}
