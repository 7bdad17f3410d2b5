package daemon

import (
	"context"
	"fmt"
	"net"

	"golang.org/x/sync/errgroup"

	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/image"
	"github.com/huskd/husk/internal/metrics"
	"github.com/huskd/husk/internal/sandbox"
	"github.com/huskd/husk/internal/trace/export"
)

// measure begins to count, before there is anything: the sources are asked once
// somebody scrapes.
func (d *daemon) measure() {
	d.metrics = metrics.New(metrics.Sources{
		Sandboxes:  func() []sandbox.Status { return d.sandboxes.List() },
		Containers: func() []container.Status { return d.containers.List("") },
		Images:     func() []image.Image { return d.images.List() },
		Debts:      func() int { return len(d.debts()) },
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

// trace begins to trace, if that is configured.
func (d *daemon) trace(ctx context.Context) (err error) {
	if d.cfg.Tracing.Endpoint == "" {
		return nil
	}
	d.tracer, err = export.New(ctx, export.Config{
		Endpoint: d.cfg.Tracing.Endpoint, Sampling: d.cfg.Tracing.Sampling, Node: nodeName(d.cfg), Log: d.log,
	})
	return err
}
