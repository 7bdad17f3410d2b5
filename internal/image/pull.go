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
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/huskd/husk/internal/image/database"
	"github.com/huskd/husk/internal/image/registry"
	"github.com/huskd/husk/internal/trace"
)

// parallelLayers is how many layers of an image are downloaded at once.
const parallelLayers = 3

// errStalled is why a pull is cut that gets no further.
var errStalled = errors.New("stalled")

// PullOptions are what a pull needs beside a name.
type PullOptions struct {
	// Platform is for example linux/arm64; empty is this host's.
	Platform string
	// Username and Password are a login at the registry. A password without a
	// user name is a token.
	Username, Password string
	// Token is a bearer token of the registry's, which goes before a login.
	Token string
	// Progress, if set, is called about ten times a second from the goroutine
	// that called Pull, and once more at the end of a successful pull.
	Progress func(Progress)
}

// Pull makes the image that ref names at its registry be here, unpacked. Calls
// for the same image share one download; it is cut when the last of them gives
// up, and what it fetched serves the next attempt.
func (s *Store) Pull(ctx context.Context, ref string, opts PullOptions) (Image, error) {
	named, err := parseName(ref)
	if err != nil {
		return Image{}, err
	}
	if !hasRegistry(ref, named) {
		where := "not here, and "
		if _, err := s.Get(ref); err == nil {
			where = ""
		}
		return Image{}, errdefs.ErrInvalidArgument.WithMessage(
			fmt.Sprintf("image %q: %sa name without a registry is not pulled: write it whole, such as %s", ref, where, named))
	}
	platform, err := parsePlatform(opts.Platform)
	if err != nil {
		return Image{}, fmt.Errorf("image %q: %w", ref, err)
	}
	p := &puller{
		Store:    s,
		name:     named,
		platform: platform,
		login:    registry.Login{Username: opts.Username, Password: opts.Password, Token: opts.Token},
	}
	key := flightKey{named.String(), platforms.Format(platform), p.login}
	f, err := s.join(ctx, key, p.measured)
	if err != nil {
		return Image{}, fmt.Errorf("image %q: %w", ref, err)
	}
	defer s.flights.leave(key, f)
	img, err := f.wait(ctx, opts.Progress)
	if err != nil {
		return Image{}, fmt.Errorf("image %q: %w", ref, err)
	}
	return img, nil
}

// join returns the flight with this key. If there is none, it starts run, which
// goes on for as long as anybody waits, and has the span of from.
func (s *Store) join(from context.Context, key flightKey, run func(context.Context, *tracker) (Image, error)) (*flight, error) {
	s.flights.mu.Lock()
	defer s.flights.mu.Unlock()
	if f := s.flights.by[key]; f != nil {
		f.waiters++
		return f, nil
	}
	exit, err := s.enter()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(trace.Follow(s.ctx, from))
	f := &flight{tracker: s.assembler.track(key.name), cancel: cancel, waiters: 1, done: make(chan struct{})}
	s.flights.add(key, f)
	go func() {
		defer exit()
		defer cancel()
		f.image, f.err = run(ctx, f.tracker)
		s.flights.land(key, f)
	}()
	return f, nil
}

// puller is one pull.
type puller struct {
	*Store
	name     reference.Named
	platform ocispec.Platform
	login    registry.Login

	registry *registry.Registry
	tracker  *tracker
	op       *database.Operation
}

// measured pulls, in a span of its own.
func (p *puller) measured(ctx context.Context, t *tracker) (Image, error) {
	began := time.Now()
	ctx, span := trace.Start(ctx, "image/pull", trace.Image, p.name.String())
	img, err := p.pull(ctx, t)
	span.End(err)
	if p.pulled != nil {
		p.pulled(time.Since(began), err)
	}
	return img, err
}

// pull does all of it, from the name to the record.
func (p *puller) pull(ctx context.Context, t *tracker) (Image, error) {
	ctx, cut := context.WithCancelCause(ctx)
	defer cut(nil)
	go t.watch(ctx, p.stall, func() { cut(errStalled) })

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
		if list, err = p.commit(p.op, named{e, names}); err == nil {
			t.enter(Done)
			return list[0], nil
		}
	}
	if ctx.Err() != nil || registry.Transient(err) {
		p.partial.add(p.op)
		return Image{}, p.explain(ctx, err)
	}
	return Image{}, p.undo(p.op, p.explain(ctx, err))
}

// explain makes one clear line of an error.
func (p *puller) explain(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), errStalled) {
		return errdefs.ErrUnavailable.WithMessage(fmt.Sprintf("not a byte came from registry %s for %v: try again", p.registry.Name(), p.stall))
	}
	if ctx.Err() != nil {
		return fmt.Errorf("pull was cut: %w", ctx.Err())
	}
	return p.diskFull(p.registry.Explain(err))
}

// assemble makes the layers of what target names be here, unpacked.
func (p *puller) assemble(target ocispec.Descriptor) (*entry, error) {
	m, err := p.manifest(target)
	if err != nil {
		return nil, err
	}
	if err := p.config(m); err != nil {
		return nil, err
	}
	first, err := p.assembler.unpacked(p.op.Context, m.layers)
	if err != nil {
		return nil, err
	}
	for _, l := range m.layers[:first] {
		l.progress.enter(Unpacked)
	}
	p.tracker.reset(p.tracker.ref, m.trackers())
	p.tracker.enter(Downloading)
	if err := p.layers(m.layers, first); err != nil {
		return nil, err
	}
	return p.assembler.describe(p.op.Context, m)
}

// layers downloads the layers from the first one that isn't unpacked, several
// at once, and unpacks each as soon as it and those below it are here.
func (p *puller) layers(list []*layer, first int) error {
	group, ctx := errgroup.WithContext(p.op.Context)
	group.Go(func() error {
		downloads, ctx := errgroup.WithContext(ctx)
		downloads.SetLimit(parallelLayers)
		for _, l := range list[first:] {
			downloads.Go(func() error {
				if err := p.assembler.fetch(ctx, p.registry, l); err != nil {
					return fmt.Errorf("layer %s %w", l.blob.Digest, err)
				}
				close(l.fetched)
				return nil
			})
		}
		return downloads.Wait()
	})
	group.Go(func() error {
		var parent digest.Digest
		for i, l := range list {
			if i >= first {
				select {
				case <-l.fetched:
				case <-ctx.Done():
				}
				if ctx.Err() != nil {
					return ctx.Err()
				}
				if err := p.assembler.unpack(ctx, l, parent); err != nil {
					return err
				}
			}
			parent = l.chainID
		}
		return nil
	})
	return group.Wait()
}

// manifest finds and stores the manifest for the platform in what desc names.
func (p *puller) manifest(desc ocispec.Descriptor) (*manifest, error) {
	for range maxIndexDepth {
		if !images.IsManifestType(desc.MediaType) && !images.IsIndexType(desc.MediaType) {
			// Some registries don't tell. What it is, is seen when it is here.
			desc.MediaType = ocispec.MediaTypeImageManifest
		}
		raw, err := p.assembler.document(p.op.Context, p.registry, desc)
		if err != nil {
			return nil, err
		}
		doc, err := parseDocument(desc, raw)
		if err != nil {
			return nil, err
		}
		if doc.manifest != nil {
			return doc.manifest, p.assembler.keep(p.op.Context, doc.manifest.desc, raw)
		}
		if desc, err = choose(doc.index, p.platform); err != nil {
			return nil, err
		}
	}
	return nil, errTooDeep
}

// config fetches and stores a manifest's config.
func (p *puller) config(m *manifest) error {
	raw, err := p.assembler.document(p.op.Context, p.registry, m.Config)
	if err != nil {
		return err
	}
	if err := m.parse(raw, p.tracker.layer); err != nil {
		return err
	}
	if err := m.runsOn(p.platform); err != nil {
		return err
	}
	return p.assembler.keep(p.op.Context, m.Config, raw)
}
