package image

import (
	"context"
	"slices"
	"sync"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/opencontainers/go-digest"

	"github.com/huskd/husk/internal/image/access"
	"github.com/huskd/husk/internal/image/database"
	"github.com/huskd/husk/internal/image/layer"
	"github.com/huskd/husk/internal/image/registry"
)

// maxPossessions bounds what is remembered of downloads that aren't part of an image yet.
const maxPossessions = 10_000

// possessions remembers who has downloaded which content. An image names its parts by digests,
// which are no secrets: a registry that knows those of an image of others could have huskd put it
// together from what the node has. So a pull only uses content of an image that its pod may use,
// and of downloads that were made with its login or for all pods; it downloads the rest again. Its
// zero value is ready for use.
type possessions struct {
	mu sync.Mutex
	of map[digest.Digest][]string // the hashes of logins; "" is all pods
}

func (p *possessions) add(d digest.Digest, who string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of == nil || len(p.of) > maxPossessions {
		p.of = map[digest.Digest][]string{}
	}
	if !slices.Contains(p.of[d], who) {
		p.of[d] = append(p.of[d], who)
	}
}

func (p *possessions) has(d digest.Digest, who string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Contains(p.of[d], who) || slices.Contains(p.of[d], "")
}

// holder is who pulls an image, and what of the node's content the pull may use. The nil holder is
// the administrator, who may use all.
type holder struct {
	store *Store
	grant access.Grant
}

// newHolder returns the holder of a pull that gives a grant.
func newHolder(s *Store, g access.Grant) *holder {
	if g.Kind == access.Preloaded || s.verify.Off() {
		return nil
	}
	return &holder{store: s, grant: g}
}

// got notes that the pull has all content with a digest.
func (h *holder) got(d digest.Digest) {
	if h != nil {
		h.store.possessions.add(d, h.grant.Hash)
	}
}

// may reports whether the pull may use content of the node: a blob, or a layer by its chain ID.
func (h *holder) may(d digest.Digest) bool {
	if h == nil || h.store.possessions.has(d, h.grant.Hash) {
		return true
	}
	logins := func(string) []access.Credential {
		c := access.Credential{Hash: h.grant.Hash}
		if h.grant.Secret != nil {
			c.Secret = *h.grant.Secret
		}
		return []access.Credential{c}
	}
	h.store.index.mu.RLock()
	defer h.store.index.mu.RUnlock()
	for _, e := range h.store.index.entries {
		if e.has(d) && h.store.verify.Allows("", e.grants, logins) {
			return true
		}
	}
	return false
}

// has reports whether the image has a blob or a layer.
func (e *entry) has(d digest.Digest) bool {
	return e.manifest.Digest == d || slices.Contains(e.blobs, d) ||
		slices.ContainsFunc(e.layers, func(l database.Layer) bool { return l.ChainID == d })
}

// prove downloads a layer's blob that the node has, and keeps nothing of it.
func prove(ctx context.Context, from *registry.Registry, l *imageLayer) error {
	err := registry.Retry(ctx, func() (bool, error) {
		digester := l.blob.Digest.Algorithm().Digester()
		err := download(ctx, from, l, digester.Hash(), 0)
		if err == nil && digester.Digest() != l.blob.Digest {
			err = errCorrupt
		}
		return false, err
	})
	return explainMissing(err)
}

// checkDiffID checks that the stored blob of a layer is what was unpacked under its chain ID, which
// an image only claims.
func (u *unpacker) checkDiffID(ctx context.Context, l *imageLayer) error {
	blob, err := u.db.Content.ReaderAt(ctx, l.blob)
	if err != nil {
		return err
	}
	defer blob.Close()
	return layer.Check(l.progress.reader(content.NewReader(blob)), l.diffID)
}
