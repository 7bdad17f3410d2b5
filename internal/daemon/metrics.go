package daemon

import (
	"context"
	"fmt"
	"net"

	"golang.org/x/sync/errgroup"

	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/metrics"
)

func (d *daemon) measure() {
	d.metrics = metrics.New(metrics.Sources{
		Sandboxes:  d.sandboxes.List,
		Containers: func() []container.Status { return d.containers.List("") },
		Images:     d.images.List,
		Debts:      func() int { return len(networks{d}.Owed()) },
	})
}

// serveMetrics serves the metrics until ctx ends, if that is configured.
func (d *daemon) serveMetrics(ctx context.Context, running *errgroup.Group) error {
	if d.cfg.Metrics == "" {
		return nil
	}
	listener, err := net.Listen("tcp", d.cfg.Metrics)
	if err != nil {
		return fmt.Errorf("--metrics-listen: %w", err)
	}
	running.Go(func() error { return d.metrics.Serve(ctx, listener) })
	return nil
}
