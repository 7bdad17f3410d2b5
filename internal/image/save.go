package image

import (
	"context"
	"fmt"
	"io"

	"github.com/containerd/containerd/v2/core/images/archive"
)

// Save writes an OCI archive of images, which docker and containerd can load, too. An image that is
// named by its ID has no name in it.
func (s *Store) Save(ctx context.Context, names []string, to io.Writer) error {
	var options []archive.ExportOpt
	for _, name := range names {
		h, err := s.hold(name, "husk image save")
		if err != nil {
			return err
		}
		defer h.release()
		s.index.mu.RLock()
		_, full, err := s.index.find(name)
		s.index.mu.RUnlock()
		if err != nil {
			return err
		}
		if full == "" || isDigestName(full) {
			options = append(options, archive.WithManifest(h.manifest))
		} else {
			options = append(options, archive.WithManifest(h.manifest, full))
		}
	}
	if err := archive.Export(s.db.Context(ctx), s.db.Content, to, options...); err != nil {
		return fmt.Errorf("save %q: %w", names, err)
	}
	return nil
}
