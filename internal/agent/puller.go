package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/view"
	"github.com/huskd/husk/internal/image"
	"github.com/huskd/husk/internal/image/access"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/manifest/criconfig"
	"github.com/huskd/husk/internal/manifest/podspec"
	"github.com/huskd/husk/internal/trace"
)

// puller pulls the images of a pod.
type puller struct {
	*podState
	published *publisher
	pulls     map[string]image.Progress // under way, by image
	results   map[string]podplan.Image  // of earlier pulls, by image
	// fresh has the images that were pulled for a container that hasn't started since, by image, with
	// the container's name.
	fresh map[string]string
}

// start pulls an image in the background. The caller holds mu.
func (p *puller) start(name string) {
	p.pulls[name] = image.Progress{Ref: name, Stage: image.Resolving}
	ctx := p.startCtx
	p.a.background.Go(func() { p.pull(ctx, name) })
}

func (p *puller) pull(ctx context.Context, name string) {
	ctx, end := p.span(ctx, "agent/PullImage", trace.Image, name)
	c := p.user(name)
	_, err := p.fetch(ctx, name, c, func(progress image.Progress) {
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
		p.fresh[name] = c
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

// user returns the first container of the pod that has the image.
func (p *puller) user(name string) string {
	spec := &p.record().Pod.Spec
	for c := range podspec.Containers(spec) {
		if c.Image == name {
			return c.Name
		}
	}
	for _, c := range spec.EphemeralContainers {
		if c.Image == name {
			return c.Name
		}
	}
	return ""
}

// present notes that a container starts with an image that the node has. It adds an event if the
// image wasn't pulled for this container.
func (p *puller) present(c *corev1.Container) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fresh[c.Image] == c.Name {
		delete(p.fresh, c.Image)
		return
	}
	p.normalEvent(c.Name, "Pulled", fmt.Sprintf("Container image %q already present on machine", c.Image))
}

// fetch pulls an image with the pod's credentials, for a container or, if that is empty, for a
// volume. progress may be nil.
func (p *puller) fetch(ctx context.Context, name, container string, progress func(image.Progress)) (image.Image, error) {
	began := time.Now()
	p.normalEvent(container, "Pulling", fmt.Sprintf("Pulling image %q", name))
	img, err := p.tryLogins(ctx, name, progress)
	if err == nil {
		took := time.Since(began).Round(time.Millisecond)
		p.normalEvent(container, "Pulled", fmt.Sprintf("Successfully pulled image %q in %v (%v including waiting). Image size: %d bytes.", name, took, took, img.Size))
	}
	return img, err
}

// tryLogins pulls an image with one login after the other, as a kubelet does, until one is
// accepted. How a registry refuses a login is its own choice, so that no answer of it ends the
// attempts. The error is the one that says most: that of the last login which wasn't just refused.
func (p *puller) tryLogins(ctx context.Context, name string, progress func(image.Progress)) (img image.Image, err error) {
	for _, login := range p.logins(ctx, name) {
		var failed error
		login.Progress = progress
		img, failed = p.a.cfg.Images.Pull(ctx, name, login)
		if failed == nil || ctx.Err() != nil {
			return img, failed
		}
		if err == nil || !refused(failed) || refused(err) {
			err = failed
		}
	}
	return image.Image{}, err
}

// refused reports whether a registry has refused a login, or hides from it that there is an image.
func refused(err error) bool {
	return errdefs.IsUnauthorized(err) || errdefs.IsPermissionDenied(err) || errdefs.IsNotFound(err)
}

// logins returns the logins to be tried for an image, at least the anonymous one. The pod's own
// come first.
func (p *puller) logins(ctx context.Context, name string) (out []image.PullOptions) {
	name = p.a.cfg.Images.PulledName(name)
	for _, l := range criconfig.LoginsFor(p.manifest, name, p.record().Objects) {
		out = append(out, image.PullOptions{Username: l.Username, Password: l.Password, Secret: p.secret(l)})
	}
	if p.a.cfg.Logins != nil {
		for _, l := range p.a.cfg.Logins(ctx, name) {
			out = append(out, image.PullOptions{Username: l.Username, Password: l.Password, Access: access.Node})
		}
	}
	if len(out) == 0 {
		out = []image.PullOptions{{}}
	}
	return out
}

// secret returns the Secret of a cluster that has one of the pod's logins. A Secret of the node has
// no identity but its content: manifests may replace it by another one of that name.
func (p *puller) secret(l criconfig.Login) access.Secret {
	if l.UID == "" {
		return access.Secret{}
	}
	return access.Secret{UID: l.UID, Namespace: p.manifest.Namespace, Name: l.Secret}
}

// local returns an image that the node has, and whether the pod, with these objects, may use it
// without a pull.
func (p *puller) local(name string, objects manifest.Objects) (image.Image, bool, error) {
	return p.a.cfg.Images.GetFor(name, func(repository string) (out []access.Credential) {
		for _, l := range criconfig.LoginsFor(p.manifest, repository, objects) {
			out = append(out, image.Credential(l.Username, l.Password, p.secret(l)))
		}
		return out
	})
}

// progress returns the pulls that are under way. The caller holds mu.
func (p *puller) progress() []image.Progress { return slices.Collect(maps.Values(p.pulls)) }

// state returns what is known of an image. The caller holds mu.
func (p *puller) state(name string) podplan.Image {
	out := p.results[name]
	out.State = podplan.ImageAbsent
	switch img, allowed, err := p.local(name, p.rec.Objects); {
	case err == nil && allowed:
		out.State, out.Loaded = podplan.ImagePresent, len(img.Digests) == 0
	case err == nil:
		out.State = podplan.ImageDenied
	case image.CheckName(name) != nil && !errdefs.IsNotFound(err):
		out.State, out.Problem = podplan.ImageMisnamed, err.Error()
	case !errdefs.IsNotFound(err): // it may be the beginning of several IDs
		out.State, out.Problem = podplan.ImageUnclear, err.Error()
	}
	if _, ok := p.pulls[name]; ok {
		out.State = podplan.ImagePulling
	}
	return out
}
