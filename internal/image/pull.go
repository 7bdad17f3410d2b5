package image

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/huskd/husk/internal/image/access"
	"github.com/huskd/husk/internal/image/database"
	"github.com/huskd/husk/internal/image/registry"
	"github.com/huskd/husk/internal/trace"
)

// parallelLayers is how many layers of an image are downloaded concurrently.
const parallelLayers = 3

// errStalled is the cause with which a stalled pull is cancelled.
var errStalled = errors.New("stalled")

// PullOptions are the options of Pull.
type PullOptions struct {
	// Platform is, for example, linux/arm64; empty is this host's.
	Platform string
	// Username and Password are a login at the registry. A password without a
	// user name is a token. Without any, it is the node's own, see Logins.
	Username, Password string
	// Token is a bearer token of the registry. It overrides the login.
	Token string
	// Access says who may use the image after it was pulled with this login: empty is
	// access.Login. Without a login, all pods may.
	Access access.Kind
	// Secret is the Secret of a cluster that has the login, if any.
	Secret access.Secret
	// Progress, if set, is called about ten times a second from the goroutine
	// that called Pull, and once more at the end of a successful pull.
	Progress func(Progress)
}

// Pull fetches the image that ref names from its registry and unpacks it. Calls
// for the same image with the same login share one download. It is cancelled when
// the last caller's context ends; the next attempt resumes it.
func (s *Store) Pull(ctx context.Context, ref string, opts PullOptions) (Image, error) {
	named, err := s.index.short.pulled(ref)
	if err != nil {
		return Image{}, err
	}
	platform, err := parsePlatform(opts.Platform)
	if err != nil {
		return Image{}, fmt.Errorf("image %q: %w", ref, err)
	}
	p := &puller{Store: s, name: named, platform: platform}
	own := registry.Login{Username: opts.Username, Password: opts.Password, Token: opts.Token}
	if p.login, err = s.Logins.or(own, named); err != nil {
		return Image{}, fmt.Errorf("image %q: %w", ref, err)
	}
	p.grant = grantOf(named, own, opts)
	p.holder = newHolder(s, p.grant)
	key := pullKey{named.String(), platforms.Format(platform), p.login, p.grant.Kind, opts.Secret}
	shared, err := s.join(ctx, key, p.run)
	if err != nil {
		return Image{}, fmt.Errorf("image %q: %w", ref, err)
	}
	defer s.inflight.leave(key, shared)
	img, err := shared.wait(ctx, opts.Progress)
	if err != nil {
		return Image{}, fmt.Errorf("image %q: %w", ref, err)
	}
	return img, nil
}

// PulledName returns the full name by which ref is pulled, or "" if it isn't pulled.
func (s *Store) PulledName(ref string) string { return s.index.short.fullName(ref) }

// join returns the running pull with this key. If there is none, it starts run,
// which continues while anyone waits and is traced as part of from's span.
func (s *Store) join(from context.Context, key pullKey, run func(context.Context, *tracker) (Image, error)) (*inflightPull, error) {
	s.inflight.mu.Lock()
	defer s.inflight.mu.Unlock()
	if p := s.inflight.pulls[key]; p != nil {
		p.waiters++
		return p, nil
	}
	exit, err := s.enter()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(trace.Follow(s.ctx, from))
	p := &inflightPull{tracker: s.unpacker.newTracker(key.name), cancel: cancel, waiters: 1, done: make(chan struct{})}
	s.inflight.add(key, p)
	go func() {
		defer exit()
		defer cancel()
		p.image, p.err = run(ctx, p.tracker)
		s.inflight.finish(key, p)
	}()
	return p, nil
}

// puller is one pull.
type puller struct {
	*Store
	name     reference.Named
	platform ocispec.Platform
	login    registry.Login
	grant    access.Grant // of whoever pulls
	holder   *holder

	registry *registry.Registry
	tracker  *tracker
	op       *database.Operation
}

// run pulls the image in a span of its own and reports how long that took.
func (p *puller) run(ctx context.Context, t *tracker) (Image, error) {
	began := time.Now()
	ctx, span := trace.Start(ctx, "image/pull", trace.Image, p.name.String())
	img, err := p.pull(ctx, t)
	span.End(err)
	if p.pulled != nil {
		p.pulled(time.Since(began), err)
	}
	return img, err
}

// pull resolves, fetches, unpacks and records the image.
func (p *puller) pull(ctx context.Context, t *tracker) (Image, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go t.watch(ctx, p.stall, func() { cancel(errStalled) })

	p.tracker = t
	var err error
	if p.registry, err = registry.New(ctx, p.certsDir, p.name, p.login); err != nil {
		return Image{}, err
	}
	defer p.registry.Close()
	resolving, span := trace.Start(ctx, "image/resolve")
	target, err := p.registry.Resolve(resolving)
	span.End(err)
	if err != nil {
		return Image{}, p.explain(ctx, err)
	}
	names, err := namesOf(p.name, target)
	if err != nil {
		return Image{}, err
	}
	assembling, span := trace.Start(ctx, "image/assemble")
	if p.op, err = p.db.Begin(assembling); err != nil {
		span.End(err)
		return Image{}, p.explain(ctx, err)
	}
	e, err := p.assemble(target)
	span.End(err)
	if err == nil {
		var list []Image
		if list, err = p.commit(p.op, namedEntry{e, names, access.Grants{p.grant}}); err == nil {
			t.enter(Done)
			return list[0], nil
		}
	}
	if ctx.Err() != nil || registry.Transient(err) {
		p.partials.add(p.op)
		return Image{}, p.explain(ctx, err)
	}
	return Image{}, p.abort(p.op, p.explain(ctx, err))
}

// explain turns an error into one clear line.
func (p *puller) explain(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), errStalled) {
		return errdefs.ErrUnavailable.WithMessage(fmt.Sprintf("registry %s sent no data for %v: try again", p.registry.Name(), p.stall))
	}
	if ctx.Err() != nil {
		return fmt.Errorf("pull interrupted: %w", ctx.Err())
	}
	return p.explainDiskFull(p.registry.Explain(err))
}

// assemble fetches and unpacks the image that target refers to.
func (p *puller) assemble(target ocispec.Descriptor) (*entry, error) {
	m, err := p.manifest(target)
	if err != nil {
		return nil, err
	}
	if err := p.config(m); err != nil {
		return nil, err
	}
	first, err := p.unpacker.unpacked(p.op.Context, m.layers)
	if err != nil {
		return nil, err
	}
	for i, l := range m.layers {
		l.holder = p.holder
		if i < first && !p.holder.may(l.chainID) {
			first = i
		}
		if i < first {
			l.progress.enter(Unpacked)
		}
	}
	p.tracker.reset(p.tracker.ref, m.trackers())
	p.tracker.enter(Downloading)
	if err := p.layers(m.layers, first); err != nil {
		return nil, err
	}
	return p.unpacker.describe(p.op.Context, m)
}

// layers downloads and unpacks the layers from index first on, several concurrently.
func (p *puller) layers(list []*imageLayer, first int) error {
	group, ctx := errgroup.WithContext(p.op.Context)
	group.Go(func() error {
		downloads, ctx := errgroup.WithContext(ctx)
		downloads.SetLimit(parallelLayers)
		for _, l := range list[first:] {
			downloads.Go(func() error {
				if err := p.unpacker.fetch(ctx, p.registry, l); err != nil {
					return fmt.Errorf("layer %s %w", l.blob.Digest, err)
				}
				close(l.fetched)
				return nil
			})
		}
		return downloads.Wait()
	})
	group.Go(func() error { return p.unpacker.unpackAll(ctx, list, first) })
	return group.Wait()
}

// manifest fetches and stores the manifest for the platform; desc refers to it or to an index.
func (p *puller) manifest(desc ocispec.Descriptor) (*manifest, error) {
	for range maxIndexDepth {
		if !images.IsManifestType(desc.MediaType) && !images.IsIndexType(desc.MediaType) {
			// Some registries don't send the type. parseDocument doesn't need it.
			desc.MediaType = ocispec.MediaTypeImageManifest
		}
		raw, err := p.unpacker.document(p.op.Context, p.registry, desc, p.holder)
		if err != nil {
			return nil, err
		}
		doc, err := parseDocument(desc, raw)
		if err != nil {
			return nil, err
		}
		if doc.manifest != nil {
			return doc.manifest, p.unpacker.store(p.op.Context, doc.manifest.desc, raw)
		}
		if desc, err = choose(doc.index, p.platform); err != nil {
			return nil, err
		}
	}
	return nil, errTooDeep
}

// config fetches and stores a manifest's config.
func (p *puller) config(m *manifest) error {
	raw, err := p.unpacker.document(p.op.Context, p.registry, m.Config, p.holder)
	if err != nil {
		return err
	}
	if err := m.parse(raw, p.tracker.layer); err != nil {
		return err
	}
	if err := m.runsOn(p.platform); err != nil {
		return err
	}
	return p.unpacker.store(p.op.Context, m.Config, raw)
}
